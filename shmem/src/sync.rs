//! Barriers over all PEs, and votes in them.
//!
//! `barrier_plan` has the steps of a barrier.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use symrail_core::{SignalUpdate, lock};
use symrail_heap::SymmetricHeap;
use symrail_kernels::barrier_words::WORDS;
use symrail_kernels::cpu::DeviceTeam;
use symrail_transport::Pe;

use crate::barrier_plan::{self, Barrier, FLAG_BYTES, Plan};
use crate::collective::call::CALL_LEN;
use crate::error::Result;
use crate::operations::Operations;
use crate::space::{at, load};
use crate::team::group::Group;
use crate::team::hosts::Hosts;
use crate::waiting::Among;
use crate::waiting::post::{Board, POST_BYTES};

/// Offsets in the area, behind the flags.
const CALL_SIGNAL: u64 = FLAG_BYTES;
const CALL: u64 = CALL_SIGNAL + 8;
const DEVICE: u64 = (CALL + CALL_LEN as u64).next_multiple_of(64);
const BOARD: u64 = DEVICE + WORDS * 8;
/// Bytes of the area.
pub(crate) const SYNC_BYTES: u64 = BOARD + POST_BYTES;

/// The runtime's own symmetric memory for barriers, and their number so far.
pub(crate) struct SyncArea {
    offset: u64,
    plan: Plan,
    /// All PEs, for a CPU device.
    pub on_device: Arc<DeviceTeam>,
    /// The number of barriers begun, and of calls compared.
    state: Mutex<(u64, u64)>,
    /// The number of compared collective calls of all PEs; one thread at a time makes such a call.
    pub calls: Mutex<u64>,
    /// The number of collective calls on the heap.
    pub heap_calls: AtomicU64,
}

impl SyncArea {
    /// Allocates the area, as the heap's first block on every PE. Also returns the board on which this PE posts what it
    /// waits in.
    pub fn allocate(heap: &mut SymmetricHeap, group: Group, hosts: &[Pe]) -> Result<(SyncArea, Board)> {
        let block = heap.calloc(1, SYNC_BYTES)?;
        block.map_or(Ok(()), |block| heap.keep(block.ptr.as_ptr()))?;
        let plan = Plan::new(group, &Hosts::new(group, hosts));
        let offset = block.map_or(0, |b| b.offset);
        let on_device = Arc::new(DeviceTeam::new(offset + DEVICE, plan.steps()));
        let board = Board::new(heap.base().as_ptr().expose_provenance(), offset + BOARD);
        let (state, calls, heap_calls) = (Mutex::default(), Mutex::default(), AtomicU64::default());
        Ok((SyncArea { offset, plan, on_device, state, calls, heap_calls }, board))
    }
}

/// All PEs of the job, with their barriers.
#[derive(Clone, Copy)]
pub(crate) struct Everybody<'rt> {
    /// Operations on the default context.
    pub ops: Operations<'rt>,
    pub area: &'rt SyncArea,
}

impl Everybody<'_> {
    /// Waits for all PEs, within a collective call or at its end.
    pub fn wait_for_all(&self, what: &'static str) -> Result<()> {
        self.any(what, false).map(drop)
    }

    /// A barrier that returns on all PEs whether any of them passed `true`.
    pub fn any(&self, what: &'static str, mine: bool) -> Result<bool> {
        let count = {
            let mut state = lock(&self.area.state);
            state.0 += 1;
            state.0
        };
        let (group, flags) = (self.ops.comm.job.everybody(), self.area.offset);
        barrier_plan::run(&self.ops, what, &Barrier { group, plan: &self.area.plan, flags, count }, mine)
    }

    /// The number of barriers of all PEs that this PE has entered.
    pub fn barriers(&self) -> u64 {
        lock(&self.area.state).0
    }

    /// A barrier that also checks that all PEs make the same call. `Ok(false)`: they do not.
    ///
    /// Each PE compares its call with its neighbour's in a ring: if not all are equal, some neighbours differ.
    pub fn same_call(&self, what: &'static str, mine: &[u8; CALL_LEN]) -> Result<bool> {
        let (ops, job, space) = (&self.ops, &self.ops.comm.job, &self.ops.comm.space);
        if job.n_pes == 1 {
            return Ok(true);
        }
        let expected = {
            let mut state = lock(&self.area.state);
            state.1 += 1;
            state.1
        };
        let to = (job.me + 1) % job.n_pes;
        let here = |offset: u64| at(space.base, self.area.offset + offset);
        let signal = SignalUpdate::set(here(CALL_SIGNAL).cast::<u64>(), expected);
        // SAFETY: the source lives until the call returns, after which it may be re-used.
        unsafe { ops.put_signal(here(CALL), mine.as_ptr(), mine.len(), signal, to) }?;
        ops.wait_for(what, Among::All(job.everybody()), || {
            // SAFETY: the word is in this PE's committed heap and aligned.
            (unsafe { load(here(CALL_SIGNAL), 8) } == expected).then_some(())
        })?;
        let mut theirs = [0; CALL_LEN];
        // SAFETY: the neighbour has written its call and does not write again before the barrier below.
        unsafe { here(CALL).copy_to_nonoverlapping(theirs.as_mut_ptr(), theirs.len()) };
        let differs = self.any(what, theirs != *mine)?;
        ops.quiet()?;
        Ok(!differs)
    }
}
