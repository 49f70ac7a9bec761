//! The state that operations need, and the handle that starts them: a PE's endpoints and mappings, and a context.
//!
//! Puts, gets and AMOs are in `rma` and `atomics`, waits in `waiting`.

use crate::error::{Error, Result};
use crate::job::Job;
use crate::space::Space;
use crate::team::Group;
use crate::waiting::post::Board;
use crate::wire::{ContextState, Contexts, Wire, WireContext};

/// A PE's endpoints and mappings.
pub(crate) struct Communicator {
    /// The endpoints, or the reason why there are none.
    pub wire: Result<Wire>,
    /// The state of the default context.
    pub context: ContextState,
    pub contexts: Contexts,
    /// Where this PE posts what it waits in.
    pub board: Board,
    pub job: Job,
    // Dropped last: everything above points into it.
    pub space: Space,
}

impl Communicator {
    /// The endpoints.
    ///
    /// # Errors
    /// There are none, with the reason; the PE has left; this process was forked from the one that joined.
    #[inline]
    pub fn wire(&self) -> Result<&Wire> {
        self.job.here()?;
        self.wire.as_ref().map_err(Error::clone)
    }

    /// Whether CPUs perform AMOs and signals, so that those on mapped memory are performed here; otherwise NICs perform
    /// all of them.
    #[inline]
    pub fn cpu_performs_amos(&self) -> bool {
        !self.job.native_amo
    }

    /// Makes NIC writes that other PEs have completed before a barrier visible to the device.
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
    /// The operations on the default context.
    #[inline]
    pub(crate) fn of(comm: &'rt Communicator) -> Operations<'rt> {
        Operations { comm, context: &comm.context }
    }

    /// The operations on the context with this number.
    #[inline]
    pub(crate) fn on(comm: &'rt Communicator, number: usize) -> Operations<'rt> {
        Operations { comm, context: comm.contexts.get(number) }
    }

    #[inline]
    pub(crate) fn on_wire(&self) -> Result<WireContext<'rt>> {
        Ok(WireContext::new(self.comm.wire()?, self.context))
    }

    /// As [`Operations::on_wire`]; `None` when there is no wire.
    #[inline]
    pub(crate) fn on_wire_if_any(&self) -> Option<WireContext<'rt>> {
        let wire = self.comm.wire.as_ref().ok().filter(|_| self.comm.job.membership.lasts());
        wire.map(|wire| WireContext::new(wire, self.context))
    }

    /// Connects to the PEs of a group that need the wire, and waits until each has answered.
    pub(crate) fn connect(&self, group: Group) -> Result<()> {
        let Some(wire) = self.on_wire_if_any() else { return Ok(()) };
        for (_, pe) in group.others().filter(|&(_, pe)| !self.comm.space.is_mapped(pe)) {
            wire.start_to_connect(pe)?;
        }
        self.quiet()
    }

    /// Waits until all operations issued over the wire are delivered; returns at once if there are none.
    #[inline]
    pub(crate) fn end_on_wire(&self) -> Result<()> {
        match &self.comm.wire {
            Ok(wire) if !self.context.is_quiet() => Ok(WireContext::new(wire, self.context).quiet()?),
            _ => Ok(()),
        }
    }
}
