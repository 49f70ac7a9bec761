//! Barriers with the devices of other PEs: of all PEs and of teams.

use std::sync::atomic::{Ordering, fence};

use super::error::DeviceError;
use super::thread::Thread;
use super::view::DeviceTeam;
use crate::barrier_words::{Step, WORDS, word};
use symrail_core::Cmp;

impl Thread<'_> {
    /// Calls [`quiet`](Thread::quiet), then waits until one thread of every PE has called this.
    ///
    /// # Errors
    /// As for `quiet`, or a PE did not arrive in time.
    pub fn barrier_all(&self) -> Result<(), DeviceError> {
        self.barrier(&self.parts().world)
    }

    /// Waits until one thread of every PE has called this. It completes no operation.
    ///
    /// # Errors
    /// A PE did not arrive in time.
    pub fn sync_all(&self) -> Result<(), DeviceError> {
        self.team_sync(&self.parts().world)
    }

    /// As [`Thread::barrier_all`], for the PEs of a team.
    ///
    /// # Errors
    /// As there.
    pub fn barrier(&self, team: &DeviceTeam) -> Result<(), DeviceError> {
        self.quiet()?;
        self.team_sync(team)
    }

    /// As [`Thread::sync_all`], for the PEs of a team.
    ///
    /// # Errors
    /// As there.
    pub fn team_sync(&self, team: &DeviceTeam) -> Result<(), DeviceError> {
        let words = self.view.symmetric::<u64>(team.words, WORDS)?;
        let number = team.barriers.fetch_add(1, Ordering::Relaxed) + 1;
        for &step in &team.steps {
            match step {
                Step::SignalPeer(pe, flag) => {
                    // A PE that receives the signal observes everything that this thread has done and observed.
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
