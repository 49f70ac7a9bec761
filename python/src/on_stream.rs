//! Collectives in the order of a stream, on arrays of the symmetric heap.

use pyo3::prelude::*;
use symrail::kernels::cuda::Transfer;
use symrail::kernels::cuda::collectives::Reduction;

use crate::errors::failed_on_gpu;
use crate::gpu::HeldGpu;
use crate::held::HeldTeam;
use crate::view::View;

/// A collective of a team.
#[derive(Clone, Copy)]
pub enum Collective {
    /// From the team's PE with this number.
    Broadcast(u32),
    Fcollect,
    Collect,
    /// With blocks of this size in bytes.
    Alltoall(usize),
    Reduce(Reduction),
    ReduceScatter(Reduction),
}

impl HeldGpu {
    /// Starts a collective of a team on a stream; the caller has compared lengths and types.
    pub fn collective(&self, team: &HeldTeam, what: Collective, to: &View, from: &View, stream: usize) -> PyResult<()> {
        let (to, from) = (to.bounds(), from.bounds());
        let (room, bytes) = (to.bytes() as u64, from.bytes() as u64);
        let (dest, source) = (self.symmetric_address(to, "dst")?, self.symmetric_address(from, "src")?);
        let of = |bytes| Transfer { dest, source, bytes };
        let members = self.scratch().members(team, team.on_gpu.as_ref());
        let (ops, stream, team) = (self.collectives()?, &self.stream(stream), &members);
        // SAFETY: the check has shown that the memory is in the heap and holds the compared lengths; the program keeps
        // the arrays until then.
        let started = unsafe {
            match what {
                Collective::Broadcast(root) => ops.broadcast(stream, team, of(bytes), root),
                Collective::Fcollect => ops.fcollect(stream, team, of(bytes)),
                Collective::Collect => ops.collect(stream, team, of(bytes), room),
                Collective::Alltoall(block) => ops.alltoall(stream, team, of(block as u64)),
                Collective::Reduce(how) => ops.reduce(stream, team, of(bytes), how),
                Collective::ReduceScatter(how) => ops.reduce_scatter(stream, team, of(room), how),
            }
        };
        started.map_err(failed_on_gpu)
    }
}
