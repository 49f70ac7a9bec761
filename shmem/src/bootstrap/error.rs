//! Errors while PEs find each other.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symrail_core::Escaped;
use symrail_transport::Pe;

/// The result of everything in this module that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A PE's activity. Collective steps are numbered from 1, both kinds in one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Connecting to the rendezvous service or to PMIx.
    Join,
    /// Collecting all PEs' contributions.
    Allgather(u64),
    /// Waiting for all PEs.
    Barrier(u64),
    /// An allgather or a barrier, by its purpose: a name that never travels to other PEs.
    #[serde(skip)]
    Stage(#[serde(skip)] &'static str, u64),
}

impl Step {
    /// Gives an allgather or a barrier the name of its purpose.
    pub(crate) fn in_stage(self, name: &'static str) -> Step {
        match self {
            Step::Allgather(number) | Step::Barrier(number) => Step::Stage(name, number),
            Step::Join | Step::Stage(..) => self,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Join => f.write_str("join"),
            Step::Allgather(number) => write!(f, "allgather {number}"),
            Step::Barrier(number) => write!(f, "barrier {number}"),
            Step::Stage(name, number) => write!(f, "{name} (step {number})"),
        }
    }
}

/// An error of the bootstrap. `pe` is always the PE that reports it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable that a launcher or the user sets has a value that is not accepted.
    #[error("{name}={}: not accepted; it holds {accepted}", Escaped(.value))]
    Variable {
        /// The variable's full name.
        name: &'static str,
        /// The value that it held.
        value: String,
        /// The expected value, in words.
        accepted: &'static str,
    },
    /// The environment has no trace of the bootstrap that the settings ask for.
    #[error("bootstrap {kind} was asked for, but {what}; {remedy}")]
    Missing {
        /// The bootstrap's name, as in `SYMRAIL_BOOTSTRAP`.
        kind: &'static str,
        /// The missing part.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Launchers contradict each other on this process's place, or this process cannot join the job of its launcher.
    #[error("{what}; {remedy}")]
    Origin {
        /// The launchers' variables, in words.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The rendezvous service could not be started.
    #[error("no rendezvous service on {address}: {reason}; {remedy}")]
    Service {
        /// The address asked for.
        address: String,
        /// The system's error.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A unique id was truncated, mistyped or made by another version.
    #[error("the unique id cannot be used: {why}; pass it unchanged from the PE that created it")]
    UniqueId {
        /// The reason.
        why: String,
    },
    /// The rendezvous service cannot be reached.
    #[error("PE {pe} cannot reach the rendezvous service at {address}: {reason}; {remedy}")]
    Unreachable {
        /// The PE that tried.
        pe: Pe,
        /// The service's address.
        address: String,
        /// The system's error.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The rendezvous service refused this PE.
    #[error("the rendezvous service at {address} refused PE {pe}: {why}")]
    Refused {
        /// The PE that was refused.
        pe: Pe,
        /// The service's address.
        address: String,
        /// Its reason, with what to do.
        why: String,
    },
    /// Another PE will never take part.
    #[error("PE {pe}: {step} cannot complete: PE {peer} {what}")]
    Peer {
        /// The PE that waited.
        pe: Pe,
        /// The step that it waited in.
        step: Step,
        /// The PE that is missing.
        peer: Pe,
        /// The outcome.
        what: &'static str,
    },
    /// Another PE aborted the job.
    #[error("PE {pe}: PE {peer} aborted the job with code {code}: {why}")]
    Aborted {
        /// The PE that reports it.
        pe: Pe,
        /// The PE that aborted.
        peer: Pe,
        /// The exit code it asked for.
        code: i32,
        /// Its reason.
        why: String,
    },
    /// PEs were still missing when the time-out passed.
    #[error("PE {pe}: {step} did not complete within {seconds} s (SYMRAIL_TIMEOUT_S); {missing}")]
    Timeout {
        /// The PE that waited.
        pe: Pe,
        /// The step that it waited in.
        step: Step,
        /// The time-out that passed.
        seconds: u64,
        /// The missing PEs, in words.
        missing: String,
    },
    /// The check that [`Bootstrap::set_interrupt`](super::Bootstrap::set_interrupt) installed, or the limit of
    /// [`with_timeout`](crate::with_timeout), ended a wait.
    #[error("PE {pe} stopped waiting in {step} after {waited:?}")]
    Interrupted {
        /// The PE that waited.
        pe: Pe,
        /// The step that it waited in.
        step: Step,
        /// How long the PE had waited.
        waited: Duration,
    },
    /// PEs disagree on a value that they must share.
    #[error("{what} differs: PE {pe} has {value}, {other} has {other_value}; start all PEs with the same")]
    Mismatch {
        /// The name of what must agree.
        what: &'static str,
        /// One PE.
        pe: Pe,
        /// Its value.
        value: String,
        /// The owner of the other value: a PE or the launcher.
        other: String,
        /// The other value.
        other_value: String,
    },
    /// A contribution above the limit.
    #[error("PE {pe}: {step}: a contribution of {bytes} bytes is above the limit of {limit}; exchange it in pieces")]
    TooLarge {
        /// The PE.
        pe: Pe,
        /// The step.
        step: Step,
        /// Its contribution, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// Bytes arrived that no honest service sends.
    #[error("PE {pe}: {step}: what {address} sent cannot be trusted: {why}; is something else listening there?")]
    Untrusted {
        /// The PE that received it.
        pe: Pe,
        /// The step that it was in.
        step: Step,
        /// The sender.
        address: String,
        /// The reason.
        why: String,
    },
    /// The connection to the rendezvous service broke.
    #[error("PE {pe}: {step}: lost the rendezvous service at {address}: {reason}; has its process ended?")]
    Connection {
        /// The PE.
        pe: Pe,
        /// The step that it was in.
        step: Step,
        /// The service's address.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// A library that is loaded at run time is missing or too old.
    #[error("{library} cannot be used: {reason}; {remedy}")]
    Library {
        /// The library's file name.
        library: &'static str,
        /// The loader's error.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// PMIx reported an error.
    #[error("{who}: {step}: {call} failed: {text} (status {status}); {remedy}")]
    Pmix {
        /// `PE n`, or `this process` before it knows its number.
        who: String,
        /// The step that the PE was in.
        step: Step,
        /// The function that failed.
        call: &'static str,
        /// PMIx's text for the status.
        text: String,
        /// PMIx's status.
        status: i32,
        /// The remedy.
        remedy: &'static str,
    },
    /// The system has no random numbers, memory or threads left.
    #[error("the system refused {what}: {reason}")]
    System {
        /// The requested resource.
        what: &'static str,
        /// The error.
        reason: String,
    },
}

impl Error {
    /// Adds the step's purpose, if this is an error of a step that could not complete.
    pub(crate) fn in_stage(mut self, name: &'static str) -> Error {
        if let Error::Peer { step, .. } | Error::Timeout { step, .. } | Error::Connection { step, .. } = &mut self {
            *step = step.in_stage(name);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_waits_in_vain_is_named() {
        let step = Step::Allgather(2);
        let late = Error::Timeout { pe: 1, step, seconds: 9, missing: "PE 3 did not arrive".into() };
        let text = late.in_stage("exchange of addresses").to_string();
        assert!(text.contains("exchange of addresses (step 2) did not complete within 9 s"), "{text}");
        let gone = Error::Peer { pe: 1, step: Step::Join, peer: 2, what: "has left" };
        assert_eq!(gone.clone().in_stage("exchange of addresses"), gone);
    }
}
