//! Symmetric scratch memory for collectives on streams; each team has a part of it.

use symrail_kernels::cuda::collectives::Members;
use symrail_kernels::cuda::{DevicePtr, DeviceTeam};

use super::{GpuDevice, device_address};
use crate::error::Result;
use crate::runtime::Runtime;
use crate::team::{MAX_TEAMS, Team};

/// Bytes for the team of all PEs, which most programs use alone, and for each other team.
const OF_ALL: usize = 1 << 20;
const OF_TEAM: usize = 64 << 10;
/// The least bytes for each PE of a job.
const OF_PE: usize = 32;

/// The parts of all teams that a PE can be in at a time, made by [`GpuDevice::scratch`].
pub struct Scratch {
    start: DevicePtr,
    of_all: usize,
    of_team: usize,
}

fn parts(n_pes: u32) -> (usize, usize) {
    let least = n_pes as usize * OF_PE;
    (OF_ALL.max(least), OF_TEAM.max(least))
}

impl Runtime {
    /// Bytes of the heap that [`GpuDevice::scratch`] takes in a job of `n_pes` PEs.
    #[must_use]
    pub fn gpu_scratch_bytes(n_pes: u32) -> usize {
        let (of_all, of_team) = parts(n_pes);
        of_all + (MAX_TEAMS as usize - 1) * of_team
    }
}

impl GpuDevice {
    /// Allocates memory of the heap for teams' collectives on streams: [`Runtime::gpu_scratch_bytes`]. It is never
    /// freed. Collective.
    ///
    /// # Errors
    /// The heap has no space for it.
    pub fn scratch(&self) -> Result<Scratch> {
        let (of_all, of_team) = parts(self.runtime().n_pes());
        let start = self.runtime().malloc(Runtime::gpu_scratch_bytes(self.runtime().n_pes()))?;
        self.runtime().allocator().keep(start)?;
        Ok(Scratch { start: device_address(self.0.base, start), of_all, of_team })
    }
}

impl Scratch {
    /// A team's parameters for collectives on streams; `device` is the result of [`GpuDevice::team`], or none for the
    /// team of all PEs.
    #[must_use]
    pub fn members<'a>(&self, team: &Team, device: Option<&'a DeviceTeam>) -> Members<'a> {
        let group = team.group();
        let stride = i64::from(group.pe(1.min(group.size() - 1))) - i64::from(group.pe(0));
        // The team of all PEs has the first area, and so the first part.
        let scratch = match team.area().slot() as usize {
            0 => (self.start.get(), self.of_all as u64),
            slot => ((self.start + (self.of_all + (slot - 1) * self.of_team) as u64).get(), self.of_team as u64),
        };
        Members { team: device, me: group.me(), n_pes: group.size(), start: group.pe(0), stride, scratch }
    }
}
