//! What operations need, and the handle by which they are started: what a PE reaches the others by, in which context.
//!
//! Puts, gets and AMOs are in `rma` and `atomics`, waits in `waiting`.

use crate::error::{Error, Result};
use crate::job::Job;
use crate::space::Space;
use crate::team::Group;
use crate::waiting::post::Board;
use crate::wire::{ContextState, Contexts, Wire, WireContext};

/// How a PE reaches the others.
pub(crate) struct Communicator {
    /// The endpoints; or why there are none.
    pub wire: Result<Wire>,
    /// The default context's.
    pub context: ContextState,
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
    context: &'rt ContextState,
}

impl<'rt> Operations<'rt> {
    /// Those on the default context.
    #[inline]
    pub(crate) fn of(comm: &'rt Communicator) -> Operations<'rt> {
        Operations { comm, context: &comm.context }
    }

    /// Those on another one.
    pub(crate) fn on(comm: &'rt Communicator, context: &'rt ContextState) -> Operations<'rt> {
        Operations { comm, context }
    }

    #[inline]
    pub(crate) fn on_wire(&self) -> Result<WireContext<'rt>> {
        Ok(WireContext::new(self.comm.wire()?, self.context))
    }

    /// As [`Operations::on_wire`]; `None` when there is no wire.
    #[inline]
    pub(crate) fn on_wire_if_any(&self) -> Option<WireContext<'rt>> {
        let wire = self.comm.wire.as_ref().ok().filter(|_| self.comm.job.process.is_here());
        wire.map(|wire| WireContext::new(wire, self.context))
    }

    /// Connects to the PEs of a group that are reached over the wire, and waits until each has answered.
    pub(crate) fn connect(&self, group: Group) -> Result<()> {
        let Some(wire) = self.on_wire_if_any() else { return Ok(()) };
        for (_, pe) in group.others().filter(|&(_, pe)| !self.comm.space.is_mapped(pe)) {
            wire.start_to_connect(pe)?;
        }
        self.quiet()
    }

    /// Waits until everything that was issued over the wire is delivered; at once if that is nothing.
    #[inline]
    pub(crate) fn end_on_wire(&self) -> Result<()> {
        match &self.comm.wire {
            Ok(wire) if !self.context.is_quiet() => Ok(WireContext::new(wire, self.context).quiet()?),
            _ => Ok(()),
        }
    }
}
