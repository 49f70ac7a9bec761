//! Jobs of thousands of PEs, simulated in one thread on a virtual clock.
//!
//! The simulation runs the code of every PE: endpoints, engine and target agent, operations, teams, collectives, waits
//! and their reports of lost PEs. It simulates the time, by LogGP ([`Costs`]), and the fabric
//! ([`TimedFabric`](symrail_transport::mock::timed::TimedFabric)). [`symrail::simulation`] lists what a simulated PE
//! lacks. The options alone determine a run.
//!
//! | file | concept |
//! |---|---|
//! | here | options and errors of a simulation |
//! | `joining` | PEs that join through the tree |
//! | `job` | a job's PEs, and the order in which they run |
//! | `work` | the works of PEs |
//! | `thread` | a PE's stack |
//! | `launcher` | the launcher's reports to PEs |
//! | [`memory`] | the bytes that each PE holds |
//! | `model` | lower bounds for the time of a collective |
//! | `random` | random numbers |

mod job;
mod joining;
mod launcher;
pub mod memory;
mod model;
mod random;
mod report;
mod thread;
mod work;

pub use joining::{Joining, join};
pub use report::{Held, Report, Row, simulate};
pub use symrail_transport::mock::timed::{Costs, Link, Traffic};
pub use work::{Posted, Work};

/// An error of a simulation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of a simulated PE's call.
    #[error(transparent)]
    Symrail(#[from] symrail::Error),
    /// The system has no memory for the simulation.
    #[error("no stacks for so many PEs: {0}; simulate fewer")]
    Memory(#[from] std::io::Error),
    /// Data has the wrong value.
    #[error("{what} brought {found}, not {expected}")]
    Wrong {
        /// The data.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The number expected.
        expected: u64,
    },
    /// A collective came before the team.
    #[error("there is no team yet")]
    NoTeam,
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The options of a simulation.
#[derive(Debug, Clone)]
pub struct Options {
    /// The number of PEs, in blocks on hosts.
    pub pes: u32,
    /// Hosts.
    pub hosts: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The costs of messages.
    pub costs: Costs,
    /// Writes of more bytes than this take their time, but no bytes are moved.
    pub carried: usize,
    /// `SYMRAIL_TIMEOUT_S`.
    pub timeout_s: u64,
    /// A hundredth of the PEs die in this work.
    pub dies_in: Option<Work>,
    /// Nanoseconds after which the others get the report of a PE that has died.
    pub reported_after: u64,
}

impl Options {
    /// A job of this size, with costs as measured on loopback.
    #[must_use]
    pub fn new(pes: u32, hosts: u32) -> Options {
        Options {
            pes,
            hosts: hosts.clamp(1, pes.max(1)),
            seed: 0,
            costs: model::MEASURED,
            carried: 64 << 10,
            timeout_s: 10,
            dies_in: None,
            reported_after: 50_000_000,
        }
    }

    /// The PEs of each host; the last host may have fewer.
    #[must_use]
    pub fn pes_of_a_host(&self) -> u32 {
        self.pes.div_ceil(self.hosts)
    }
}
