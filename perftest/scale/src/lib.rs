//! Jobs of thousands of PEs, simulated in one thread on a virtual clock.
//!
//! What runs is the code of every PE: endpoints, engine and target agent, operations, teams, collectives, waits and
//! what they say of who is lost. What is simulated is the time, by LogGP ([`Costs`]), and the fabric
//! ([`TimedFabric`](symrail_transport::mock::timed::TimedFabric)). What a PE of a simulation has not is said in
//! [`symrail::simulation`]. A run follows from its options alone.
//!
//! | file | concept |
//! |---|---|
//! | here | what is simulated, and what comes out |
//! | `joining` | PEs that join by the tree |
//! | `job` | a job's PEs, and whose turn it is |
//! | `work` | what they do |
//! | `thread` | a PE's stack |
//! | `launcher` | what PEs hear of whoever has started them |
//! | [`memory`] | what each PE holds |
//! | `model` | how long a collective has to take at least |
//! | `random` | chance |

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

/// What goes wrong with a simulation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of a simulated PE.
    #[error(transparent)]
    Symrail(#[from] symrail::Error),
    /// The system has no memory for it.
    #[error("no stacks for so many PEs: {0}; simulate fewer")]
    Memory(#[from] std::io::Error),
    /// Data that is not what it should be.
    #[error("{what} brought {found}, not {expected}")]
    Wrong {
        /// The data.
        what: &'static str,
        /// The number found.
        found: u64,
        /// The number expected.
        expected: u64,
    },
    /// A collective was asked for before the team.
    #[error("there is no team yet")]
    NoTeam,
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Options {
    /// PEs, in blocks on hosts.
    pub pes: u32,
    /// Hosts.
    pub hosts: u32,
    /// What chance has it.
    pub seed: u64,
    /// What things cost.
    pub costs: Costs,
    /// Bytes of larger writes take their time, but are not moved.
    pub carried: usize,
    /// `SYMRAIL_TIMEOUT_S`.
    pub timeout_s: u64,
    /// A hundredth of the PEs die in this.
    pub dies_in: Option<Work>,
    /// Nanoseconds after which the others are told of a PE that has died.
    pub told_after: u64,
}

impl Options {
    /// So many PEs on so many hosts, with costs as measured on loopback.
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
            told_after: 50_000_000,
        }
    }

    /// PEs of each host, and at most so many of the last.
    #[must_use]
    pub fn pes_of_a_host(&self) -> u32 {
        self.pes.div_ceil(self.hosts)
    }
}
