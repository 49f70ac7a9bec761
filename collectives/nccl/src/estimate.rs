//! How long a group would take: an estimate from the bytes that pass a rank's links.

use std::ffi::c_uint;

use symrail_collectives::Transfer;

use crate::collectives::Collective;
use crate::config::{Found, Structure};
use crate::group::Work;
use crate::guard::Failure;
use crate::one_sided::Call;

/// Microseconds to begin a call, and bytes that pass in a microsecond: among GPUs that access one another over NVLink,
/// and over a network.
const DIRECT: (f64, f64) = (8.0, 300e3);
const WIRED: (f64, f64) = (60.0, 5e3);

/// The mark of `ncclSimInfo_t`.
pub const MAGIC: c_uint = 0x7468_5283;

/// `ncclSimInfo_t`.
#[repr(C)]
struct Estimate {
    size: usize,
    magic: c_uint,
    version: c_uint,
    microseconds: f32,
}

/// Bytes that pass in one direction between a rank of `n` and the others.
fn bytes(work: &Work, rank: u32, n: u32) -> f64 {
    let others = f64::from(n - 1) / f64::from(n);
    match work {
        Work::Collective(Collective::AllReduce(from, ..)) => 2.0 * others * from.len as f64,
        Work::Collective(
            Collective::ReduceScatter(all, ..) | Collective::AllGather(_, all) | Collective::AllToAll(all, _),
        ) => others * all.len as f64,
        Work::Collective(Collective::Reduce(from, ..) | Collective::Broadcast(from, ..)) => {
            if n > 1 {
                from.len as f64
            } else {
                0.0
            }
        }
        Work::Collective(Collective::Gather(part, _, root) | Collective::Scatter(_, part, root)) => {
            let parts = if *root == rank { n - 1 } else { 1 };
            f64::from(parts) * part.len as f64
        }
        Work::OneSided(Call::Put { bytes, signal, .. }) if signal.peer != rank => *bytes as f64,
        Work::OneSided(_) => 0.0,
        Work::Transfers(_, transfers) => {
            let (mut sent, mut received) = (0u64, 0u64);
            for transfer in transfers {
                match transfer {
                    Transfer::Send { to, memory } if *to != rank => sent += memory.len,
                    Transfer::Receive { from, memory } if *from != rank => received += memory.len,
                    _ => {}
                }
            }
            sent.max(received) as f64
        }
    }
}

/// Microseconds that a call takes on a rank of `n`.
pub fn microseconds(work: &Work, rank: u32, n: u32, direct: bool) -> f64 {
    let (begin, rate) = if direct { DIRECT } else { WIRED };
    begin + bytes(work, rank, n) / rate
}

/// The place for an estimate, an `ncclSimInfo_t`.
pub struct Place(Found);

impl Place {
    /// Checks the structure, before its group ends; none for a null pointer.
    pub fn of(info: Structure) -> Result<Option<Place>, Failure> {
        match info.find("ncclSimInfo_t", MAGIC, 0..=usize::MAX)? {
            Some(found) if found.size() < size_of::<Estimate>() => {
                Err(Failure::argument(format!("ncclSimInfo_t has {} bytes only", found.size())))
            }
            found => Ok(found.map(Place)),
        }
    }

    /// Writes an estimate.
    pub fn write(self, microseconds: f64) {
        self.0.set(std::mem::offset_of!(Estimate, microseconds), microseconds as f32);
    }
}

#[cfg(test)]
mod tests {
    use symrail_collectives::gpu::Memory;

    use super::*;

    #[test]
    fn more_bytes_take_longer() {
        let memory = |len| Memory { at: 0, len };
        let broadcast = |len| Work::Collective(Collective::Broadcast(memory(len), memory(len), 0));
        assert!((microseconds(&broadcast(0), 0, 2, true) - 8.0).abs() < 1e-9);
        assert!((microseconds(&broadcast(3_000_000), 0, 2, true) - 18.0).abs() < 1e-9);
        assert!(microseconds(&broadcast(1 << 20), 0, 2, false) > microseconds(&broadcast(1 << 20), 0, 2, true));
        // What a rank sends to itself passes no link.
        let own = [Transfer::Send { to: 1, memory: memory(100) }, Transfer::Receive { from: 0, memory: memory(60) }];
        assert!((bytes(&Work::Transfers(Vec::new(), own.to_vec()), 1, 2) - 60.0).abs() < 1e-9);
    }
}
