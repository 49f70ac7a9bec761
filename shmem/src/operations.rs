//! What operations need, and the handle by which they are started: what a PE reaches the others by, in which context.
//!
//! Puts, gets and AMOs are in `rma` and `atomics`, waits in `waiting`.

use crate::error::{Error, Result};
use crate::job::Job;
use crate::space::Space;
use crate::waiting::post::Board;
use crate::wire::{Contexts, Flow, Via, Wire};

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

/// The operations of a runtime on one of its contexts.
#[derive(Clone, Copy)]
pub struct Operations<'rt> {
    pub(crate) comm: &'rt Communicator,
    flow: &'rt Flow,
}

impl<'rt> Operations<'rt> {
    /// Those on the default context.
    #[inline]
    pub(crate) fn of(comm: &'rt Communicator) -> Operations<'rt> {
        Operations { comm, flow: &comm.flow }
    }

    /// Those on another one.
    pub(crate) fn on(comm: &'rt Communicator, flow: &'rt Flow) -> Operations<'rt> {
        Operations { comm, flow }
    }

    #[inline]
    pub(crate) fn via(&self) -> Result<Via<'rt>> {
        Ok(Via::new(self.comm.wire()?, self.flow))
    }

    /// As [`Operations::via`]; `None` when there is no wire.
    #[inline]
    pub(crate) fn via_if_any(&self) -> Option<Via<'rt>> {
        let wire = self.comm.wire.as_ref().ok().filter(|_| self.comm.job.process.is_here());
        wire.map(|wire| Via::new(wire, self.flow))
    }

    /// Waits until everything that was issued over the wire is delivered; at once if that is nothing.
    #[inline]
    pub(crate) fn end_on_wire(&self) -> Result<()> {
        match &self.comm.wire {
            Ok(wire) if !self.flow.is_quiet() => Ok(Via::new(wire, self.flow).quiet()?),
            _ => Ok(()),
        }
    }
}
