//! A team together with the job that it belongs to.

use std::ops::Deref;
use std::sync::Arc;

use symrail::{Result, Team};

use crate::gpu::DeviceTeam;
use crate::job::Job;

/// A team, its team for kernels, and the job that it belongs to.
pub struct HeldTeam {
    /// `None` for all PEs, and without a GPU.
    pub on_gpu: Option<DeviceTeam>,
    /// Whether it is the job's own team of all PEs.
    pub is_world: bool,
    team: Team,
    pub job: Arc<Job>,
}

impl HeldTeam {
    /// The team of all PEs. Collective.
    pub fn world(job: Arc<Job>) -> Result<HeldTeam> {
        Ok(HeldTeam { on_gpu: None, is_world: true, team: job.runtime().team_world()?, job })
    }

    /// A team of some of this team's PEs. Collective over this one.
    pub fn split(&self, part: Option<symrail::Group>) -> Result<Option<HeldTeam>> {
        let Some(team) = self.team.split(part)? else { return Ok(None) };
        let on_gpu = self.job.gpu().map(|gpu| gpu.team(&team)).transpose()?;
        Ok(Some(HeldTeam { on_gpu, is_world: false, team, job: Arc::clone(&self.job) }))
    }

    /// Destroys the team. Collective over the team.
    pub fn destroy(self) -> Result<()> {
        drop(self.on_gpu);
        self.team.destroy()
    }
}

impl Deref for HeldTeam {
    type Target = Team;

    fn deref(&self) -> &Team {
        &self.team
    }
}
