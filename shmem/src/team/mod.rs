//! Teams: PEs that do collective operations together.
//!
//! [`Runtime::team_world`] makes the first; [`Team::split`] makes teams of a team's PEs. What a team can do is in
//! [`collective`](crate::collective). A team's operations are called by all of its PEs, in the same order.
//!
//! | file | concept |
//! |---|---|
//! | [`group`] | which PEs |
//! | `hosts` | who of them shares a host |
//! | `area` | the symmetric memory that a team talks through |
//! | `claim` | how the PEs of a new team agree on one |
//! | here | making, splitting and giving up teams; their barrier |

mod area;
mod claim;
pub mod group;
mod hosts;

use std::sync::{Arc, Mutex};

use symrail_kernels::cpu::DeviceTeam;
use symrail_transport::Pe;

pub use area::MAX_TEAMS;
pub(crate) use area::{Area, Areas, TICKETS};
pub use group::Group;
pub(crate) use hosts::Hosts;
#[cfg(test)]
pub(crate) use hosts::shapes;

use crate::collective::Reduction;
use crate::collective::same_call::{Call, Turn};
use crate::error::{Error, Result};
use crate::meeting::Plan;
use crate::runtime::{Runtime, lock};

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

/// Some of the job's PEs, this one among them. Not for use by two threads at a time: they would have to agree with those
/// of the other PEs whose turn it is.
pub struct Team<'rt> {
    pub(crate) runtime: &'rt Runtime,
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

impl Runtime {
    /// The team of all PEs, which is the same each time. The first time it takes memory from the heap, for all teams that there will be.
    /// Collective.
    ///
    /// # Errors
    /// The heap is exhausted, or a peer does not answer.
    pub fn team_world(&self) -> Result<Team<'_>> {
        let World { areas, progress } = match self.world.get() {
            Some(world) => world,
            None => {
                let areas = Arc::new(Areas::allocate(self)?);
                self.world.get_or_init(|| World { areas, progress: Arc::default() })
            }
        };
        let (group, area) = (self.everybody(), areas.world());
        Ok(Team::new(self, group, area, Arc::clone(progress), Arc::clone(areas)))
    }
}

impl<'rt> Team<'rt> {
    pub(crate) fn new(
        runtime: &'rt Runtime,
        group: Group,
        area: Area,
        progress: Arc<Mutex<Progress>>,
        areas: Arc<Areas>,
    ) -> Team<'rt> {
        let hosts = Hosts::new(group, &runtime.hosts);
        let (plan, host_plan) = (Plan::new(group, &hosts), Plan::on_host(group, &hosts));
        let on_device = if area.slot() == areas.world().slot() {
            Arc::clone(&runtime.sync.on_device)
        } else {
            Arc::new(DeviceTeam::new(area.device_words(), plan.steps()))
        };
        let counts = hosts.count() > 1 && runtime.operations().counts_in(area.last_count());
        let calls = Mutex::default();
        Team { runtime, group, hosts, plan, host_plan, area, counts, progress, on_device, calls, areas }
    }

    /// Which PEs.
    #[inline]
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }

    /// The runtime whose PEs they are.
    #[must_use]
    pub fn runtime(&self) -> &'rt Runtime {
        self.runtime
    }

    /// Makes a team of some of this team's PEs; `part` is `None` on PEs that will not be in it, and so is the result there.
    /// Parts that PEs name at the same call may be several teams if they have no PE in common. Collective over this team.
    ///
    /// # Errors
    /// A PE is in [`MAX_TEAMS`] teams already: then nobody gets a team. Or a peer does not answer.
    pub fn split(&self, part: Option<Group>) -> Result<Option<Team<'rt>>> {
        let _turn = self.agree(Call::new("split of a team", 0))?;
        self.sync_flags()?;
        let common = |mut offer: u64| {
            let word = (&raw mut offer).cast::<u8>();
            // SAFETY: the word is this call's own, in and out; the team's PEs are in the same call.
            unsafe { self.reduce(word, word, 1, Reduction::and::<u64>()) }?;
            Ok(offer)
        };
        let area = self.areas.for_team(&self.area, part.is_some(), common)?.ok_or_else(no_area)?;
        Ok(part.map(|group| Team::new(self.runtime, group, area, Arc::default(), Arc::clone(&self.areas))))
    }

    /// What teams of this job get their areas from.
    pub(crate) fn areas(&self) -> &Arc<Areas> {
        &self.areas
    }

    /// Waits for all of the team's PEs, then gives up what the team has. Collective over the team. A team that is only
    /// dropped keeps its place among [`MAX_TEAMS`]; that of all PEs does in any case.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn destroy(self) -> Result<()> {
        let _turn = self.agree(Call::new("end of a team", 0))?;
        // All that was sent to this PE through the area has arrived: it waited for each of the messages.
        self.sync_flags()?;
        if !self.is_world() {
            self.areas.give_back(&self.area);
        }
        Ok(())
    }

    /// Waits for all of the team's PEs. Collective over the team.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn sync(&self) -> Result<()> {
        let _turn = self.agree(Call::new("sync", 0))?;
        self.sync_flags()
    }

    /// Sees to it that all of the team's PEs make the same call, if that is asked for.
    #[inline]
    pub(crate) fn agree(&self, call: Call) -> Result<Turn<'_>> {
        if self.runtime.settings.check_collectives { Turn::of_team(self, &call) } else { Ok(Turn::none()) }
    }

    /// Whether it is the team of all PEs, whose calls are also those of the runtime.
    pub(crate) fn is_world(&self) -> bool {
        self.area.slot() == self.areas.world().slot()
    }

    /// Waits for all of the team's PEs.
    pub(crate) fn sync_flags(&self) -> Result<()> {
        self.meet_by("a team's barrier", &self.plan, self.area.flags(), |progress| &mut progress.syncs)
    }

    /// Waits for those of the team's PEs that are on this PE's host.
    pub(crate) fn sync_host(&self) -> Result<()> {
        self.meet_by("a team's collective", &self.host_plan, self.area.host_flags(), |progress| {
            &mut progress.host_syncs
        })
    }

    /// Meets by a plan, its flags and the count of its meetings.
    fn meet_by(&self, what: &'static str, plan: &Plan, flags: u64, count: fn(&mut Progress) -> &mut u64) -> Result<()> {
        let count = {
            let mut progress = lock(&self.progress);
            let count = count(&mut progress);
            *count += 1;
            *count
        };
        self.runtime.meet(what, (self.group, plan), (flags, count), false).map(drop)
    }

    /// The number of the next turn in the team's room. Who is in a turn has heard from everybody in the one before.
    pub(crate) fn next_turn(&self) -> u64 {
        let mut progress = lock(&self.progress);
        progress.turns += 1;
        progress.turns
    }

    /// Completes everything that this PE has issued, then waits for all of the team's PEs. Collective over the team.
    ///
    /// # Errors
    /// An operation that failed, or a peer that does not answer.
    pub fn barrier(&self) -> Result<()> {
        self.runtime.quiet()?;
        self.sync()
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

fn no_area() -> Error {
    let reason = format!(
        "a PE is in {MAX_TEAMS} teams and active sets already, or no room is left that is free on all; destroy teams that are not used any more"
    );
    Error::System { what: "making a team", reason }
}
