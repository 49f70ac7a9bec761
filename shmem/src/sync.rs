//! Barriers over all PEs, and agreeing while at it.
//!
//! How they meet is the matter of `meeting`.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use symrail_kernels::cpu::DeviceTeam;
use symrail_kernels::meeting::WORDS;
use symrail_transport::Pe;

use crate::collective::same_call::{CALL_LEN, Call};
use crate::error::Result;
use crate::meeting::{FLAG_BYTES, Plan};
use crate::rma::{SignalOp, at};
use crate::runtime::{Runtime, lock};
use crate::team::Hosts;
use crate::waiting::{Among, Board, POST_BYTES};

/// Where things are in the area, behind the flags.
const CALL_SIGNAL: u64 = FLAG_BYTES;
const CALL: u64 = CALL_SIGNAL + 8;
const DEVICE: u64 = (CALL + CALL_LEN as u64).next_multiple_of(64);
const BOARD: u64 = DEVICE + WORDS * 8;
/// Bytes of the area.
pub(crate) const SYNC_BYTES: u64 = BOARD + POST_BYTES;

/// The runtime's own symmetric memory for barriers.
#[derive(Default)]
pub(crate) struct SyncArea {
    offset: u64,
    plan: Plan,
    /// All PEs, as a CPU device knows them.
    pub on_device: Arc<DeviceTeam>,
    /// Barriers begun, and calls compared.
    state: Mutex<(u64, u64)>,
    /// What this PE waits in.
    pub board: Board,
}

impl SyncArea {
    /// Takes the area from the heap, as its first block on every PE.
    pub fn allocate(runtime: &Runtime) -> Result<SyncArea> {
        let mut heap = lock(&runtime.heap);
        let block = heap.calloc(1, SYNC_BYTES)?;
        block.map_or(Ok(()), |block| heap.keep(block.ptr.as_ptr()))?;
        let group = runtime.everybody();
        let plan = Plan::new(group, &Hosts::new(group, &runtime.hosts));
        let offset = block.map_or(0, |b| b.offset);
        let on_device = Arc::new(DeviceTeam::new(offset + DEVICE, plan.steps()));
        let board = Board::new(offset + BOARD);
        Ok(SyncArea { offset, plan, on_device, state: Mutex::default(), board })
    }
}

impl Runtime {
    /// Completes everything that this PE has issued and waits for all PEs to have done so. Collective.
    ///
    /// # Errors
    /// An operation that failed, or a peer that does not answer.
    pub fn barrier_all(&self) -> Result<()> {
        let _turn = self.agree(Call::new("barrier_all", 0))?;
        self.quiet()?;
        self.meet_all("a barrier")
    }

    /// Waits for all PEs. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn sync_all(&self) -> Result<()> {
        let _turn = self.agree(Call::new("sync_all", 0))?;
        self.meet_all("a barrier")
    }

    /// Waits for all PEs, within a collective call or at its end.
    pub(crate) fn meet_all(&self, what: &'static str) -> Result<()> {
        self.any(what, false).map(drop)
    }

    /// A barrier that tells all PEs whether any of them said `true`.
    pub(crate) fn any(&self, what: &'static str, mine: bool) -> Result<bool> {
        let count = {
            let mut state = lock(&self.sync.state);
            state.0 += 1;
            state.0
        };
        self.meet(what, (self.everybody(), &self.sync.plan), (self.sync.offset, count), mine)
    }

    /// How many barriers of all PEs this PE has come to.
    pub(crate) fn barriers(&self) -> u64 {
        lock(&self.sync.state).0
    }

    pub(crate) fn put_flag(&self, pe: Pe, offset: u64, value: u8) -> Result<()> {
        let base = self.mapped(pe, offset, std::ptr::null())?;
        if base != 0 {
            // SAFETY: the flag is in committed memory of every PE's heap, and reached as an atomic byte only.
            unsafe { AtomicU8::from_ptr(at(base, offset)) }.store(value, Ordering::SeqCst);
            return Ok(());
        }
        Ok(self.operations().via()?.put_flag(pe, offset, value)?)
    }

    /// A barrier that also checks that all PEs make the same call. `Ok(false)`: they do not.
    ///
    /// Each PE compares with its neighbour in a ring: if not all are equal, some neighbours differ.
    pub(crate) fn same_call(&self, what: &'static str, mine: &[u8; CALL_LEN]) -> Result<bool> {
        if self.n_pes == 1 {
            return Ok(true);
        }
        let expected = {
            let mut state = lock(&self.sync.state);
            state.1 += 1;
            state.1
        };
        let to = (self.me + 1) % self.n_pes;
        let here = |offset: u64| at(self.base, self.sync.offset + offset);
        let signal = (here(CALL_SIGNAL).cast::<u64>(), expected, SignalOp::Set);
        // SAFETY: the source lives until the call returns, which is when it may be re-used.
        unsafe { self.put_signal(here(CALL), mine.as_ptr(), mine.len(), signal, to) }?;
        self.wait_for(what, Among::All(self.everybody()), || {
            // SAFETY: the word is in this PE's committed heap and aligned.
            (unsafe { Runtime::load(here(CALL_SIGNAL), 8) } == expected).then_some(())
        })?;
        let mut theirs = [0; CALL_LEN];
        // SAFETY: the neighbour has written its call and does not write again before the barrier below.
        unsafe { here(CALL).copy_to_nonoverlapping(theirs.as_mut_ptr(), theirs.len()) };
        let differs = self.any(what, theirs != *mine)?;
        self.quiet()?;
        Ok(!differs)
    }
}
