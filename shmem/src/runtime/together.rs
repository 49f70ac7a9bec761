//! Collectives of all PEs: barriers, teams, and leaving.

use std::time::Duration;

use symrail_core::lock;

use super::Runtime;
use crate::bootstrap::single::Single;
use crate::collective::call::Call;
use crate::error::{Error, Result};
use crate::observe::Trace;
use crate::team::{Team, World};
use crate::wire::Wire;

/// How long a PE that leaves without the others drains its sends.
const LAST_SENDS: Duration = Duration::from_secs(1);

impl Runtime {
    /// Completes all operations that this PE has issued, and waits for all PEs to do so. Collective.
    ///
    /// # Errors
    /// An operation that failed, or a peer that does not answer.
    pub fn barrier_all(&self) -> Result<()> {
        let all = self.everybody();
        let _compared = all.agree(Call::new("barrier_all", 0))?;
        self.quiet()?;
        all.wait_for_all("a barrier")
    }

    /// Connects to all PEs that need the wire, and waits until each has answered. Without this call a PE is connected
    /// at its first operation, which then takes longer. [`Team::connect`] connects to the PEs of a team. Not
    /// collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn connect_all(&self) -> Result<()> {
        self.operations().connect(self.comm().job.everybody())
    }

    /// Waits for all PEs. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn sync_all(&self) -> Result<()> {
        let all = self.everybody();
        let _compared = all.agree(Call::new("sync_all", 0))?;
        all.wait_for_all("a barrier")
    }

    /// The team of all PEs, the same each time. The first call allocates heap memory for all later teams. Collective.
    ///
    /// # Errors
    /// The heap is exhausted, or a peer does not answer.
    pub fn team_world(&self) -> Result<Team> {
        let world = match self.0.world.get() {
            Some(world) => world,
            None => {
                let world = World::allocate(&self.allocator(), self.comm())?;
                self.0.world.get_or_init(|| world)
            }
        };
        Ok(Team::world(self, world))
    }

    /// Leaves the job: waits for operations in flight and for all other PEs. Collective.
    ///
    /// Other handles of this PE may exist: their operations return [`Error::Finalized`] from then on, and the memory
    /// stays mapped until the last of them is dropped. The proxy threads end, so kernels of this PE's devices have
    /// ended before.
    ///
    /// # Errors
    /// An operation in flight failed, or a peer has died or left; the wait for a slow peer is unlimited, as in a
    /// barrier. The PE has left in any case. [`Error::Finalized`] if it had left before.
    pub fn finalize(self) -> Result<()> {
        let left = self.leave();
        if !self.is_forked() {
            self.0.observation.end();
            self.comm().wire.iter().for_each(Wire::stop);
            // A job of this PE alone takes the place of the one that it has left.
            let bootstrap = std::mem::replace(&mut *lock(&self.comm().job.bootstrap), Box::new(Single::default()));
            drop(bootstrap);
        }
        left
    }

    /// As [`Runtime::finalize`], for a process in which other threads may still be in operations, and kernels on
    /// devices: proxy threads go on until the last handle is dropped. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::finalize`].
    pub fn leave(&self) -> Result<()> {
        self.comm().job.here()?;
        let comm = self.comm();
        let left = self.leave_together();
        comm.job.membership.end();
        // Loads and stores to peers end, too.
        comm.space.bases.wipe();
        left
    }

    fn leave_together(&self) -> Result<()> {
        let comm = self.comm();
        let quiet = self.quiet();
        let all = self.everybody();
        let finalized = all.agree(Call::new("finalize", 0)).and_then(|_compared| all.wait_for_all("finalize"));
        if let Ok(wire) = &comm.wire {
            // PEs that do not answer may never receive the data sent to them.
            let time_limit =
                if finalized.is_ok() { Duration::from_secs(comm.job.settings.timeout_s) } else { LAST_SENDS };
            wire.drain(&comm.context, time_limit);
        }
        self.0.observation.write(|trace| {
            let records = comm.wire.as_ref().map_or_else(|_| Vec::new(), |wire| wire.lanes().take_records());
            trace.add(records, &self.0.observation.take_phases())
        });
        // No PE destroys its endpoints before all PEs have arrived here.
        let left = finalized.and_then(|()| lock(&comm.job.bootstrap).finish().map_err(Error::from));
        self.0.observation.write(Trace::end);
        quiet.and(left)
    }
}
