//! The handle by which operations are started: what a PE reaches the others by, and in which context.
//!
//! Puts, gets and AMOs are in `rma` and `atomics`, waits in `waiting`.

use crate::communicator::Communicator;
use crate::error::Result;
use crate::wire::{Flow, Via};

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
