//! PEs that can wait for one another, which is all that the simplest collectives need.

use crate::error::Result;
use crate::operations::Operations;
use crate::team::{Group, Team};

/// Memory of this PE that a collective reads or writes: its address and its bytes.
pub(crate) type Buffer = (*const u8, usize);

/// PEs that can wait for one another.
pub(crate) trait Members {
    /// Operations of this PE, on the default context.
    fn ops(&self) -> Operations<'_>;
    fn group(&self) -> Group;
    /// Returns when all members have called it. Completes no operations.
    fn wait_for_all(&self) -> Result<()>;

    /// Refuses memory that host threads cannot access: see [`Space::must_be_host`](crate::space::Space::must_be_host)
    /// and [`Space::must_hold`](crate::space::Space::must_hold). Before this check products of sizes saturate.
    fn must_hold(&self, what: &'static str, buffers: &[Buffer]) -> Result<()> {
        let comm = self.ops().comm;
        buffers.iter().try_for_each(|&(ptr, bytes)| {
            comm.space.must_be_host(what, [ptr; 2])?;
            comm.space.must_hold(what, comm.job.me, ptr, bytes)
        })
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
