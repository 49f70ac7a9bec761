//! Barriers with the devices of other PEs: of all PEs and of teams.

use std::sync::atomic::{Ordering, fence};

use super::error::DeviceError;
use super::thread::Thread;
use super::view::DeviceTeam;
use crate::barrier_plan::{Step, WORDS, word};
use symrail_core::Cmp;

impl Thread<'_> {
    /// A [`quiet`](Thread::quiet), then waits for one thread of every PE to have come here.
    ///
    /// # Errors
    /// As for `quiet`; or a PE did not arrive in time.
    pub fn barrier_all(&self) -> Result<(), DeviceError> {
        self.barrier(&self.parts().world)
    }

    /// Waits for one thread of every PE to have come here. Completes nothing.
    ///
    /// # Errors
    /// A PE did not arrive in time.
    pub fn sync_all(&self) -> Result<(), DeviceError> {
        self.team_sync(&self.parts().world)
    }

    /// As [`Thread::barrier_all`], for a team's PEs.
    ///
    /// # Errors
    /// As there.
    pub fn barrier(&self, team: &DeviceTeam) -> Result<(), DeviceError> {
        self.quiet()?;
        self.team_sync(team)
    }

    /// As [`Thread::sync_all`], for a team's PEs.
    ///
    /// # Errors
    /// As there.
    pub fn team_sync(&self, team: &DeviceTeam) -> Result<(), DeviceError> {
        let words = self.view.symmetric::<u64>(team.words, WORDS)?;
        let number = team.barriers.fetch_add(1, Ordering::Relaxed) + 1;
        for &step in &team.steps {
            match step {
                Step::SignalPeer(pe, flag) => {
                    // Who is told knows all that this thread did and has heard of.
                    fence(Ordering::SeqCst);
                    self.p(words.at(word(number, flag))?, number, pe)?;
                }
                Step::WaitFlag(flag) => {
                    self.wait_until(words.at(word(number, flag))?, Cmp::Ge, number)?;
                }
            }
        }
        Ok(())
    }
}
