//! Teams: PEs that do collective operations together.
//!
//! [`Runtime::team_world`](crate::Runtime::team_world) makes the first team; [`Team::split`] makes teams of a team's
//! PEs. A team's collectives are in [`collective`](crate::collective). All of a team's PEs call its operations, in the
//! same order.
//!
//! | file | concept |
//! |---|---|
//! | [`group`] | which PEs |
//! | `hosts` | which of them share a host |
//! | `area` | the symmetric memory of a team |
//! | `claim` | how the PEs of a new team agree on an area |
//! | here | the team's state, and the barriers of its PEs |
//! | `calls` | splitting and destroying teams; their barriers |
//! | [`heap`] | symmetric memory of teams, unknown to other PEs |
//! | `numbers` | numbers of all PEs: combined, gathered, compared |
//! | `own_job` | the unique id of a job of the team's PEs alone |

pub(crate) mod area;
mod calls;
mod claim;
pub mod group;
pub mod heap;
pub(crate) mod hosts;
mod numbers;
mod own_job;

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
use crate::barrier_plan::{self, Barrier, Plan};
use crate::error::Result;
use crate::operations::{Communicator, Operations};
use crate::runtime::Runtime;
use crate::waiting::check_alive;

/// A team's progress; between its operations it is the same on all of its PEs.
#[derive(Default)]
pub(crate) struct Progress {
    pub syncs: u64,
    pub host_syncs: u64,
    pub tickets: u64,
    /// Tickets since the last one in which every PE heard from all.
    pub since_barrier: u64,
    pub turns: u64,
}

/// The state of the team of all PEs, for the job's whole life.
pub(crate) struct World {
    areas: Arc<Areas>,
    progress: Arc<Mutex<Progress>>,
}

impl World {
    /// Allocates the areas of all future teams on the heap. Collective.
    pub fn allocate(allocator: &Allocator<'_>, comm: &Communicator) -> Result<World> {
        let areas = Areas::allocate(allocator, comm.space.base, comm.job.n_pes)?;
        Ok(World { areas: Arc::new(areas), progress: Arc::default() })
    }
}

/// Some of the job's PEs, including this one: a handle, whose clones are of the same team. Two threads must not use it
/// at the same time: they would have to agree on their order with the threads of the other PEs.
#[derive(Clone)]
pub struct Team(Arc<State>);

struct State {
    group: Group,
    hosts: Hosts,
    plan: Plan,
    host_plan: Plan,
    area: Area,
    /// Whether the fabric can count arrivals in the area's words.
    counts: bool,
    progress: Arc<Mutex<Progress>>,
    on_device: Arc<DeviceTeam>,
    /// The number of its compared calls; one thread at a time makes such a call.
    calls: Mutex<u64>,
    areas: Arc<Areas>,
    runtime: Runtime,
}

impl Team {
    /// The team of all PEs.
    pub(crate) fn world(runtime: &Runtime, world: &World) -> Team {
        let World { areas, progress } = world;
        let (group, area) = (runtime.comm().job.everybody(), areas.world());
        Team::new(runtime, group, area, Arc::clone(progress), Arc::clone(areas))
    }

    pub(crate) fn new(
        runtime: &Runtime,
        group: Group,
        area: Area,
        progress: Arc<Mutex<Progress>>,
        areas: Arc<Areas>,
    ) -> Team {
        let everybody = runtime.everybody();
        let hosts = Hosts::new(group, &everybody.ops.comm.job.hosts);
        let (plan, host_plan) = (Plan::new(group, &hosts), Plan::on_host(group, &hosts));
        let on_device = if area.slot() == areas.world().slot() {
            Arc::clone(&everybody.area.on_device)
        } else {
            Arc::new(DeviceTeam::new(area.device_words(), plan.steps()))
        };
        let counts = hosts.count() > 1 && everybody.ops.counts_in(area.last_count());
        let calls = Mutex::default();
        let runtime = runtime.clone();
        Team(Arc::new(State {
            group,
            hosts,
            plan,
            host_plan,
            area,
            counts,
            progress,
            on_device,
            calls,
            areas,
            runtime,
        }))
    }

    /// The team's PEs.
    #[inline]
    #[must_use]
    pub fn group(&self) -> Group {
        self.0.group
    }

    /// Whether it belongs to this runtime, and not to another one of the process.
    #[must_use]
    pub fn is_of(&self, runtime: &Runtime) -> bool {
        self.0.runtime.is_same(runtime)
    }

    /// For a caller's own wait: whether a PE of the team is known to have died or left. Does not block.
    ///
    /// # Errors
    /// [`Error::PeerLost`](crate::Error::PeerLost), in which `what` says what waits for it.
    pub fn check_alive(&self, what: &'static str) -> Result<()> {
        check_alive(&self.ops(), what, self.group())
    }

    /// Operations of this PE, on the default context.
    #[inline]
    pub(crate) fn ops(&self) -> Operations<'_> {
        self.0.runtime.operations()
    }

    /// The runtime whose PEs they are.
    #[inline]
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// The areas of this job's teams.
    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.0.areas
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.0.hosts
    }

    pub(crate) fn area(&self) -> &Area {
        &self.0.area
    }

    /// Whether the fabric can count arrivals in the area's words.
    pub(crate) fn counts(&self) -> bool {
        self.0.counts
    }

    pub(crate) fn progress(&self) -> &Mutex<Progress> {
        &self.0.progress
    }

    /// The number of its compared calls; one thread at a time makes such a call.
    pub(crate) fn calls(&self) -> &Mutex<u64> {
        &self.0.calls
    }

    pub(crate) fn on_device(&self) -> &Arc<DeviceTeam> {
        &self.0.on_device
    }

    /// The number of other handles of the team.
    fn other_handles(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Whether it is the team of all PEs, whose calls are also those of the runtime.
    pub(crate) fn is_world(&self) -> bool {
        self.area().slot() == self.areas().world().slot()
    }

    /// Waits for all of the team's PEs.
    pub(crate) fn sync_flags(&self) -> Result<()> {
        self.barrier_by("a team's barrier", &self.0.plan, self.area().flags(), |progress| &mut progress.syncs)
    }

    /// Waits for those of the team's PEs that are on this PE's host.
    pub(crate) fn sync_host(&self) -> Result<()> {
        self.barrier_by("a team's collective", &self.0.host_plan, self.area().host_flags(), |progress| {
            &mut progress.host_syncs
        })
    }

    /// A barrier with a plan, its flags and their count.
    fn barrier_by(
        &self,
        what: &'static str,
        plan: &Plan,
        flags: u64,
        count: fn(&mut Progress) -> &mut u64,
    ) -> Result<()> {
        let count = {
            let mut progress = lock(self.progress());
            let count = count(&mut progress);
            *count += 1;
            *count
        };
        let barrier = Barrier { group: self.group(), plan, flags, count };
        barrier_plan::run(&self.ops(), what, &barrier, false).map(drop)
    }

    /// The number of the next turn in the team's scratch buffer. In each turn a PE hears from all PEs of the turn
    /// before.
    pub(crate) fn next_turn(&self) -> u64 {
        let mut progress = lock(self.progress());
        progress.turns += 1;
        progress.turns
    }

    /// Connects to the team's PEs, as [`Runtime::connect_all`](crate::Runtime::connect_all) does to all. Not
    /// collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn connect(&self) -> Result<()> {
        self.ops().connect(self.group())
    }

    /// The PE with this index in the team.
    ///
    /// # Errors
    /// [`symrail_transport::Error::NoSuchPe`], with indexes of the team.
    pub fn pe(&self, index: i64) -> Result<Pe> {
        match u32::try_from(index).ok().filter(|&i| i < self.group().size()) {
            Some(index) => Ok(self.group().pe(index)),
            None => Err(symrail_transport::Error::NoSuchPe { pe: index, last: self.group().size() - 1 }.into()),
        }
    }
}
