//! Teams: PEs that do collective operations together.
//!
//! [`Runtime::team_world`](crate::Runtime::team_world) makes the first; [`Team::split`] makes teams of a team's PEs.
//! What a team can do is in [`collective`](crate::collective). A team's operations are called by all of its PEs, in the
//! same order.
//!
//! | file | concept |
//! |---|---|
//! | [`group`] | which PEs |
//! | `hosts` | who of them shares a host |
//! | `area` | the symmetric memory that a team talks through |
//! | `claim` | how the PEs of a new team agree on one |
//! | here | what a team is, and the barriers of its PEs |
//! | `calls` | splitting teams and giving them up; their barriers |
//! | [`heap`] | symmetric memory of teams, of which other PEs know nothing |
//! | `numbers` | numbers of all PEs: combined, gathered, compared |

pub(crate) mod area;
mod calls;
mod claim;
pub mod group;
pub mod heap;
pub(crate) mod hosts;
mod numbers;

use std::sync::{Arc, Mutex};

use symrail_core::lock;
use symrail_kernels::cpu::DeviceTeam;
use symrail_transport::Pe;

pub use area::MAX_TEAMS;
pub(crate) use area::{Area, Areas};
pub use group::Group;
pub use heap::TeamHeap;
use hosts::Hosts;

use crate::alloc::Allocator;
use crate::barrier_plan::{self, Plan};
use crate::error::Result;
use crate::operations::{Communicator, Operations};
use crate::sync::Everybody;

/// What a team has done so far; the same on all of its PEs between its operations.
#[derive(Default)]
pub(crate) struct Progress {
    pub syncs: u64,
    pub host_syncs: u64,
    pub tickets: u64,
    /// Tickets since one that took word from everybody to everybody.
    pub unheard: u64,
    pub turns: u64,
}

/// What the team of all PEs has, as long as the job runs.
pub(crate) struct World {
    areas: Arc<Areas>,
    progress: Arc<Mutex<Progress>>,
}

impl World {
    /// Takes the areas of all teams that there will be from the heap. Collective.
    pub fn allocate(allocator: &Allocator<'_>, comm: &Communicator) -> Result<World> {
        let areas = Areas::allocate(allocator, comm.space.base, comm.job.n_pes)?;
        Ok(World { areas: Arc::new(areas), progress: Arc::default() })
    }
}

/// Some of the job's PEs, this one among them. Not for use by two threads at a time: they would have to agree with
/// those of the other PEs whose turn it is.
pub struct Team<'rt> {
    pub(crate) everybody: Everybody<'rt>,
    pub(crate) group: Group,
    pub(crate) hosts: Hosts,
    plan: Plan,
    host_plan: Plan,
    pub(crate) area: Area,
    /// The fabric can count arrivals in the area's words.
    pub(crate) counts: bool,
    pub(crate) progress: Arc<Mutex<Progress>>,
    pub(crate) on_device: Arc<DeviceTeam>,
    /// Its compared calls, one thread at a time; how many were.
    pub(crate) calls: Mutex<u64>,
    areas: Arc<Areas>,
}

impl<'rt> Team<'rt> {
    /// The team of all PEs.
    pub(crate) fn world(everybody: Everybody<'rt>, world: &World) -> Team<'rt> {
        let World { areas, progress } = world;
        let (group, area) = (everybody.ops.comm.job.everybody(), areas.world());
        Team::new(everybody, group, area, Arc::clone(progress), Arc::clone(areas))
    }

    pub(crate) fn new(
        everybody: Everybody<'rt>,
        group: Group,
        area: Area,
        progress: Arc<Mutex<Progress>>,
        areas: Arc<Areas>,
    ) -> Team<'rt> {
        let hosts = Hosts::new(group, &everybody.ops.comm.job.hosts);
        let (plan, host_plan) = (Plan::new(group, &hosts), Plan::on_host(group, &hosts));
        let on_device = if area.slot() == areas.world().slot() {
            Arc::clone(&everybody.area.on_device)
        } else {
            Arc::new(DeviceTeam::new(area.device_words(), plan.steps()))
        };
        let counts = hosts.count() > 1 && everybody.ops.counts_in(area.last_count());
        let calls = Mutex::default();
        Team { everybody, group, hosts, plan, host_plan, area, counts, progress, on_device, calls, areas }
    }

    /// Which PEs.
    #[inline]
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }

    /// Whether it is of this runtime, and not of another one of the process.
    #[must_use]
    pub fn is_of(&self, runtime: &crate::Runtime) -> bool {
        std::ptr::eq(self.ops().comm, runtime.comm())
    }

    /// Operations of this PE, on the default context.
    #[inline]
    pub(crate) fn ops(&self) -> &Operations<'rt> {
        &self.everybody.ops
    }

    /// What teams of this job get their areas from.
    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.areas
    }

    /// Whether it is the team of all PEs, whose calls are also those of the runtime.
    pub(crate) fn is_world(&self) -> bool {
        self.area.slot() == self.areas.world().slot()
    }

    /// Waits for all of the team's PEs.
    pub(crate) fn sync_flags(&self) -> Result<()> {
        self.barrier_by("a team's barrier", &self.plan, self.area.flags(), |progress| &mut progress.syncs)
    }

    /// Waits for those of the team's PEs that are on this PE's host.
    pub(crate) fn sync_host(&self) -> Result<()> {
        self.barrier_by("a team's collective", &self.host_plan, self.area.host_flags(), |progress| {
            &mut progress.host_syncs
        })
    }

    /// A barrier by a plan, its flags and how many there were.
    fn barrier_by(
        &self,
        what: &'static str,
        plan: &Plan,
        flags: u64,
        count: fn(&mut Progress) -> &mut u64,
    ) -> Result<()> {
        let count = {
            let mut progress = lock(&self.progress);
            let count = count(&mut progress);
            *count += 1;
            *count
        };
        barrier_plan::run(self.ops(), what, (self.group, plan), (flags, count), false).map(drop)
    }

    /// The number of the next turn in the team's scratch memory. Who is in a turn has heard from everybody in the one
    /// before.
    pub(crate) fn next_turn(&self) -> u64 {
        let mut progress = lock(&self.progress);
        progress.turns += 1;
        progress.turns
    }

    /// Connects to the team's PEs, as [`Runtime::connect_all`](crate::Runtime::connect_all) does to all. Not
    /// collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn connect(&self) -> Result<()> {
        self.ops().connect(self.group)
    }

    /// The PE with this index in the team.
    ///
    /// # Errors
    /// [`symrail_transport::Error::NoSuchPe`], in terms of the team's indexes.
    pub fn pe(&self, index: i64) -> Result<Pe> {
        match u32::try_from(index).ok().filter(|&i| i < self.group.size()) {
            Some(index) => Ok(self.group.pe(index)),
            None => Err(symrail_transport::Error::NoSuchPe { pe: index, last: self.group.size() - 1 }.into()),
        }
    }
}
