//! How the PEs of a job find each other: a PE's number, the number of PEs, and an allgather of small blobs.
//!
//! [`open`] reads the settings and the variables that the job's launcher has set, and returns a [`Bootstrap`]:
//!
//! | bootstrap | file | taken when | traffic |
//! |---|---|---|---|
//! | launcher | [`launcher`] | `symrail run` set its variables | a TCP connection to the launcher, see [`rendezvous`] |
//! | unique id | [`uid`] | `SYMRAIL_BOOTSTRAP_UID` is set, or by [`uid::open`] | a TCP connection to the PE that created the id |
//! | PMIx | [`pmix`] | `PMIX_RANK` and `PMIX_NAMESPACE` are set (`mpirun`, Slurm) | the process manager's own |
//! | single | [`single`] | none of these | none |
//!
//! With `SYMRAIL_BOOTSTRAP=auto` the innermost launcher counts, whichever it is: a `symrail run` inside of an `mpirun`
//! starts a job of its own, and so does an `mpirun` inside of a `symrail run` ([`find_origin`]). Where two describe the
//! same process, they must agree; then the first of these counts.
//!
//! # What all of them promise
//! - All PEs make the same steps in the same order. An error names a PE that does not, to all PEs.
//! - Waits are bounded by `SYMRAIL_TIMEOUT_S`, and end early when a PE dies or leaves (with PMIx: as soon as the
//!   process manager reports it). If `symrail run` finds the processes of late PEs alive, the others wait for them,
//!   with a warning. After a failed step every later one fails the same way.
//! - A bootstrap serves set-up and tear-down. It is not fast, and never on the data path.

mod error;
pub mod launcher;
mod leaving;
mod open;
mod origin;
pub mod pmix;
pub mod rendezvous;
pub mod single;
pub mod uid;
mod variables;

use symrail_transport::Pe;

use crate::interrupt::GoOn;
pub use error::{Error, Result, Step};
pub use open::{open, open_until};
pub use origin::{Origin, find as find_origin, is_pe};

/// The largest job.
pub const MAX_PES: u32 = 1 << 20;

/// A PE that takes part in no further step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPe {
    /// The PE.
    pub pe: Pe,
    /// The outcome.
    pub why: String,
}

/// This PE's traffic with other PEs, or with the service.
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
    /// This PE's number: `0..n_pes`.
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

    /// A [`Bootstrap::barrier`] after which this PE leaves together with all others. It is the last step. Here the
    /// time-out also ends the wait for a late PE that is alive. Collective.
    ///
    /// # Errors
    /// As for [`Bootstrap::allgather`].
    fn finish(&mut self) -> Result<()> {
        self.barrier()
    }

    /// Names the purpose of the next steps: a warning of a long wait prints it.
    fn set_stage(&mut self, _stage: Option<&'static str>) {}

    /// Lets this process end the waits of all further steps, with [`Error::Interrupted`]; later steps then fail too.
    /// `go_on` is as for [`Runtime::set_interrupt`](crate::Runtime::set_interrupt). A bootstrap without other PEs has
    /// no waits.
    fn set_interrupt(&mut self, _go_on: GoOn) {}

    /// The PEs that are known to take part in no further step. Does not wait.
    fn lost_pes(&mut self) -> &[LostPe] {
        &[]
    }

    /// Requests the end of the whole job with this exit code, and sends the other PEs the reason. Returns; the caller
    /// ends this process. A launcher ends the processes that it started; PEs that joined by a unique id get the error
    /// in their next step.
    fn abort(&mut self, code: i32, why: &str);

    /// The traffic so far; zero if another process carries it.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// The chosen bootstrap and its address, for `symrail info` and logs.
    fn describe(&self) -> String;
}
