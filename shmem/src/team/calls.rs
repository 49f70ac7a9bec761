//! Calls on a team as a whole: splitting, destroying, barriers.

use std::sync::Arc;

use super::{Group, MAX_TEAMS, Team};
use crate::collective::call::Call;
use crate::collective::reduction::Reduction;
use crate::error::{Error, Result};

impl Team {
    /// Makes a team of some of this team's PEs. `part` is `None` on PEs that will not be in it, and so is their result.
    /// PEs may pass different parts in one call, if these have no PE in common: each becomes a team. Collective over
    /// this team.
    ///
    /// # Errors
    /// A PE is in [`MAX_TEAMS`] teams already: then no PE gets a team. Or a peer does not answer.
    pub fn split(&self, part: Option<Group>) -> Result<Option<Team>> {
        let _turn = self.agree(Call::new("split of a team", 0))?;
        self.sync_flags()?;
        let common = |mut offer: u64| {
            self.combine(std::slice::from_mut(&mut offer), Reduction::and::<u64>())?;
            Ok(offer)
        };
        let area = self.areas().for_team(self.area(), part.is_some(), common)?.ok_or_else(no_area)?;
        Ok(part.map(|group| Team::new(self.runtime(), group, area, Arc::default(), Arc::clone(self.areas()))))
    }

    /// Waits for all of the team's PEs, then frees the team's area. Collective over the team. A team that is only
    /// dropped keeps its place among [`MAX_TEAMS`]; the team of all PEs does in any case.
    ///
    /// # Errors
    /// [`Error::InUse`] on all PEs if another handle of the team exists on any of them, such as that of a plan: then the
    /// team stays. Or a peer does not answer.
    pub fn destroy(self) -> Result<()> {
        let _turn = self.agree(Call::new("end of a team", 0))?;
        if self.is_world() {
            return self.sync_flags();
        }
        let handles = self.other_handles();
        let mut used = [handles as u64];
        self.combine(&mut used, Reduction::max::<u64>())?;
        if used != [0] {
            let pe = self.runtime().my_pe();
            return Err(Error::InUse { pe, what: "a team", handles });
        }
        // All messages to this PE through the area have arrived: it waited for each of them.
        self.sync_flags()?;
        self.areas().give_back(self.area());
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

    /// Completes all operations that this PE has issued, then waits for all of the team's PEs. Collective over the
    /// team.
    ///
    /// # Errors
    /// An operation that failed, or a peer that does not answer.
    pub fn barrier(&self) -> Result<()> {
        self.ops().quiet()?;
        self.sync()
    }
}

fn no_area() -> Error {
    let reason = format!(
        "a PE is in {MAX_TEAMS} teams and active sets already, or no room is left that is free on all; destroy teams that are not used any more"
    );
    Error::System { what: "making a team", reason }
}
