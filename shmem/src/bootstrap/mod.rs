//! How the PEs of a job find each other: who am I, how many are we, and an allgather of small blobs.
//!
//! [`open`] reads the settings and what the job's starter left in the environment, and gives a [`Bootstrap`]:
//!
//! | bootstrap | file | taken when | traffic |
//! |---|---|---|---|
//! | launcher | [`launcher`] | `symrail run` set its variables | a TCP connection to the launcher, see [`rendezvous`] |
//! | unique id | [`uid`] | `SYMRAIL_BOOTSTRAP_UID` is set, or by [`uid::open`] | a TCP connection to the PE that created the id |
//! | PMIx | [`pmix`] | `PMIX_RANK` and `PMIX_NAMESPACE` are set (`mpirun`, Slurm) | the process manager's own |
//! | single | [`single`] | none of these | none |
//!
//! That is also the order in which `SYMRAIL_BOOTSTRAP=auto` looks. The innermost starter wins: a `symrail run` inside
//! of an `mpirun` starts a job of its own.
//!
//! # What all of them promise
//! - All PEs call the same steps in the same order. A PE that does not is named, to everybody.
//! - Waits are bounded by `SYMRAIL_TIMEOUT_S`, and end early when a PE dies or leaves (with PMIx: as soon as the
//!   process manager says so). Where `symrail run` sees that the processes of late PEs live, they are waited for, with
//!   a warning. After a failed step every later one fails the same way.
//! - This is for setting up and tearing down. Nothing here is fast, and nothing here is on the data path.

mod error;
pub mod launcher;
mod open;
pub mod pmix;
pub mod rendezvous;
pub mod single;
pub mod uid;
mod variables;

use symrail_transport::Pe;

use crate::interrupt::GoOn;
pub use error::{Error, Result, Step};
pub use open::{open, open_until};

/// The largest job.
pub const MAX_PES: u32 = 1 << 20;

/// A PE that takes part in nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPe {
    /// The PE.
    pub pe: Pe,
    /// The outcome.
    pub why: String,
}

/// What this PE has exchanged with others, or with whoever serves them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages in both directions.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// The PEs of a job, before they have a transport.
pub trait Bootstrap: Send {
    /// This PE: `0..n_pes`.
    fn pe(&self) -> Pe;

    /// The number of PEs in the job.
    fn n_pes(&self) -> u32;

    /// Gives every PE the contributions of all PEs, indexed by PE. They may differ in length; each is at most
    /// [`rendezvous::MAX_CONTRIBUTION`] bytes. Collective.
    ///
    /// # Errors
    /// A PE that died, left, did not arrive in time or is in another step; a contribution above the limit.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Returns once every PE has called it. Collective.
    ///
    /// # Errors
    /// As for [`Bootstrap::allgather`].
    fn barrier(&mut self) -> Result<()>;

    /// As [`Bootstrap::barrier`], behind which this PE leaves with all others. It is the last step. Here a PE that
    /// lives and does not arrive is no more waited for than one that does not live. Collective.
    ///
    /// # Errors
    /// As for [`Bootstrap::allgather`].
    fn finish(&mut self) -> Result<()> {
        self.barrier()
    }

    /// Says what the next steps are for: a warning of a long wait names it.
    fn set_stage(&mut self, _stage: Option<&'static str>) {}

    /// Lets waits of all further steps be ended from within, by [`Error::Interrupted`]; the steps after that fail, too.
    /// `go_on` is as for [`Runtime::set_interrupt`](crate::Runtime::set_interrupt). Where nobody else takes part there
    /// are no waits.
    fn set_interrupt(&mut self, _go_on: GoOn) {}

    /// The PEs of which it is known by now that they take part in nothing more. Does not wait.
    fn lost_pes(&mut self) -> &[LostPe] {
        &[]
    }

    /// Asks for the whole job to be ended with this exit code, and tells the others why. Returns; the caller is the one
    /// to end this process. A starter ends the processes it started; PEs joined by a unique id are told at their next
    /// step.
    fn abort(&mut self, code: i32, why: &str);

    /// What has been exchanged so far; nothing where that is another's business.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// What was chosen and where it leads, for `symrail info` and logs.
    fn describe(&self) -> String;
}
