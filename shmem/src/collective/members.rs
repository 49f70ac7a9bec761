//! PEs that can wait for one another, which is all that the simplest collectives need.

use std::sync::atomic::Ordering;

use symrail_transport::Operation;

use crate::error::Result;
use crate::operations::Operations;
use crate::team::{Group, Team};

/// PEs that can wait for one another.
pub(crate) trait Members {
    /// Operations of this PE, on the default context.
    fn ops(&self) -> Operations<'_>;
    fn group(&self) -> Group;
    /// Returns when all members have called it. Completes no operations.
    fn wait_for_all(&self) -> Result<()>;

    /// Refuses more bytes than the heap has. After this check, products of sizes do not wrap and buffers of so many
    /// bytes can be allocated; before it they saturate.
    fn must_hold(&self, ptr: *const u8, bytes: usize) -> Result<()> {
        let comm = self.ops().comm;
        if bytes <= comm.space.committed.load(Ordering::Relaxed) {
            return Ok(());
        }
        comm.space.offset(Operation::Put, comm.job.me, ptr, bytes).map(drop)
    }
}

impl Members for Team {
    fn ops(&self) -> Operations<'_> {
        self.ops()
    }

    fn group(&self) -> Group {
        self.group()
    }

    fn wait_for_all(&self) -> Result<()> {
        self.sync_flags()
    }
}
