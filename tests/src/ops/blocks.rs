//! Blocks of bytes.

use symrail::{Result, Runtime, SymSlice};

use super::Plan;
use crate::pattern::{self, GUARD};
use crate::pe::{before, neighbour};

/// Untouched bytes before and behind a block.
const MARGIN: usize = 64;

/// One way to move a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Put,
    PutFromHeap,
    PutNbi,
    PutNbiFromHeap,
    SlicePut,
    SlicePutNbi,
    Get,
    GetToHeap,
    GetNbi,
    SliceGet,
    SliceGetNbi,
}

const CALLS: [Call; 11] = [
    Call::Put,
    Call::PutFromHeap,
    Call::PutNbi,
    Call::PutNbiFromHeap,
    Call::SlicePut,
    Call::SlicePutNbi,
    Call::Get,
    Call::GetToHeap,
    Call::GetNbi,
    Call::SliceGet,
    Call::SliceGetNbi,
];

struct Area {
    /// Memory that peers read and write.
    remote: SymSlice<u8>,
    /// This PE's own side, if that is in the heap too.
    own: SymSlice<u8>,
}

/// Every way, size, alignment and distance.
///
/// # Errors
/// Those of the operations.
pub fn all(rt: &Runtime, plan: &Plan) -> Result<()> {
    let largest = plan.sizes.iter().max().copied().unwrap_or(0) + 2 * MARGIN + 8;
    let area = Area { remote: rt.alloc_slice(largest)?, own: rt.alloc_slice(largest)? };
    for &size in &plan.sizes {
        for call in CALLS {
            // Distances to this PE, the next and the one after; large blocks to the next one only.
            let distances = if plan.thorough && size <= 4096 { 0..rt.n_pes() } else { 1..2.min(rt.n_pes()) };
            for distance in distances {
                let shifts: &[(usize, usize)] =
                    if plan.thorough && size <= 65 { &[(0, 0), (1, 0), (0, 3), (5, 7)] } else { &[(size % 3, 0)] };
                for &shift in shifts {
                    block(rt, &area, call, size, distance, shift)?;
                }
            }
        }
    }
    area.own.free()?;
    area.remote.free()
}

/// Moves a block and checks it. `shift`: the misalignment of the remote and the own side.
fn block(rt: &Runtime, area: &Area, call: Call, size: usize, distance: u32, shift: (usize, usize)) -> Result<()> {
    let is_put = matches!(
        call,
        Call::Put | Call::PutFromHeap | Call::PutNbi | Call::PutNbiFromHeap | Call::SlicePut | Call::SlicePutNbi
    );
    let (peer, source) = (neighbour(rt, distance), if is_put { before(rt, distance) } else { neighbour(rt, distance) });
    let (me, whole) = (rt.my_pe(), size + 2 * MARGIN);
    let seed = |pe: u32| u64::from(pe) << 32 | (size * 16 + distance as usize) as u64;
    let (remote_at, own_at) = (shift.0 + MARGIN, shift.1 + MARGIN);
    let what = || format!("PE {me}: {call:?} of {size} bytes at distance {distance}, shifted by {shift:?}");

    crate::pe::doing(what());
    let guards = vec![GUARD; whole];
    area.remote.write_slice(shift.0, &guards)?;
    area.own.write_slice(shift.1, &guards)?;
    let mine = pattern::bytes(seed(me), size);
    if is_put { &area.own } else { &area.remote }.write_slice(if is_put { own_at } else { remote_at }, &mine)?;
    let mut private = vec![GUARD; whole + 8];
    if is_put {
        private[own_at..own_at + size].copy_from_slice(&mine);
    }
    rt.barrier_all()?;

    let remote = area.remote.as_ptr().wrapping_add(remote_at);
    let heap = area.own.as_ptr().wrapping_add(own_at);
    let local = private[own_at..].as_mut_ptr();
    // SAFETY: all sides have space for `size` bytes, and non-blocking operations complete before they are accessed
    // again.
    unsafe {
        match call {
            Call::Put => rt.put(remote, local, size, peer)?,
            Call::PutFromHeap => rt.put(remote, heap, size, peer)?,
            Call::PutNbi => rt.put_nbi(remote, local, size, peer)?,
            Call::PutNbiFromHeap => rt.put_nbi(remote, heap, size, peer)?,
            Call::SlicePut => area.remote.put(remote_at, &private[own_at..own_at + size], peer)?,
            Call::SlicePutNbi => area.remote.put_nbi(remote_at, &area.own, own_at, size, peer)?,
            Call::Get => rt.get(local, remote, size, peer)?,
            Call::GetToHeap => rt.get(heap, remote, size, peer)?,
            Call::GetNbi => rt.get_nbi(local, remote, size, peer)?,
            Call::SliceGet => area.remote.get(remote_at, &mut private[own_at..own_at + size], peer)?,
            Call::SliceGetNbi => area.remote.get_nbi(remote_at, &area.own, own_at, size, peer)?,
        }
    }
    if matches!(call, Call::Put | Call::PutFromHeap | Call::SlicePut) {
        // The source may be re-used at once.
        private.fill(!GUARD);
        area.own.write_slice(own_at, &vec![!GUARD; size])?;
    }
    rt.barrier_all()?;

    let mut found = vec![0; whole];
    if is_put {
        area.remote.read_slice(shift.0, &mut found)?;
    } else if matches!(call, Call::GetToHeap | Call::SliceGetNbi) {
        area.own.read_slice(shift.1, &mut found)?;
    } else {
        found.copy_from_slice(&private[shift.1..shift.1 + whole]);
    }
    pattern::check(&found, seed(source), MARGIN, &what);
    rt.barrier_all()
}
