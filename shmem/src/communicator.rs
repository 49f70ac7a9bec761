//! What operations need: the job, the address space, and the endpoints, with what is under way on them.

use symrail_transport::Pe;

use crate::error::{Error, Result};
use crate::job::Job;
use crate::space::Space;
use crate::staged::STAGED_OFFSET;
use crate::waiting::post::Board;
use crate::wire::{Contexts, Flow, Wire};

/// How a PE reaches the others.
pub(crate) struct Communicator {
    /// The endpoints; or why there are none.
    pub wire: Result<Wire>,
    /// The default context's.
    pub flow: Flow,
    pub contexts: Contexts,
    /// What this PE waits in.
    pub board: Board,
    pub job: Job,
    // Last: everything above points into it.
    pub space: Space,
}

impl Communicator {
    /// Where `pe`'s heap is in this process; 0 if it is reached over the wire, as memory is that the CPU cannot touch:
    /// at `offset` there, or the local buffer. In a forked child all are, and the wire refuses it.
    #[inline]
    pub fn mapped(&self, pe: Pe, offset: u64, local: *const u8) -> Result<usize> {
        match self.space.bases.get(pe as usize) {
            Some(_) if self.space.staged.is_some() && (offset >= STAGED_OFFSET || self.space.is_staged(local)) => Ok(0),
            Some(&base) => Ok(base),
            None => Err(symrail_transport::Error::NoSuchPe { pe: pe.into(), last: self.job.n_pes - 1 }.into()),
        }
    }

    /// The endpoints.
    ///
    /// # Errors
    /// Why there are none; a process that was forked from the one that has joined.
    pub fn wire(&self) -> Result<&Wire> {
        self.job.here()?;
        self.wire.as_ref().map_err(Error::clone)
    }

    /// Whether CPUs perform AMOs and signals, so that those on mapped memory are done here; else NICs perform all of
    /// them.
    #[inline]
    pub fn cpu_performs_amos(&self) -> bool {
        !self.job.native_amo
    }

    /// Lets the device see what NICs have written to its memory before others came to a barrier.
    pub fn flush_nic_writes(&self) {
        if let (Some(_), Ok(wire)) = (&self.space.staged, &self.wire) {
            wire.driver().engine().flush_nic_writes();
        }
    }
}
