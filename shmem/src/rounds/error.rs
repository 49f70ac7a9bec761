//! The errors of rounds.

use symrail_transport::Pe;

/// An error of a plan, a communicator or a buffer that several PEs use in rounds.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A PE did not do its part within the time limit.
    #[error("PE {pe}: {what}: waited {seconds:.1} s for {waiting}; PE {} is late or gone", list(late))]
    TimedOut {
        /// The PE that waited: this one, or one for which this PE waits.
        pe: Pe,
        /// The operation.
        what: &'static str,
        /// What was awaited.
        waiting: String,
        /// The PEs that are late.
        late: Vec<Pe>,
        /// The duration of the wait.
        seconds: f64,
    },
    /// A PE has given up a round, and so do all. The data of that round are not valid.
    #[error("PE {pe}: {what}: PE {by} has given up{}; make what failed anew on all PEs", because(*lost))]
    Aborted {
        /// This PE.
        pe: Pe,
        /// The operation.
        what: &'static str,
        /// The PE that gave up.
        by: Pe,
        /// The PE that it lost, if that was the reason.
        lost: Option<Pe>,
    },
    /// A call has failed after its start: the state that the PEs share is unknown.
    #[error("PE {pe}: {what} cannot be used any more, since a round has failed{}; make it anew on all PEs", after(why))]
    Poisoned {
        /// This PE.
        pe: Pe,
        /// The operation.
        what: &'static str,
        /// The first failure, where it was kept.
        why: Option<String>,
    },
    /// Another PE of the team could not do its part of a call that all PEs make or none.
    #[error("PE {pe}: {what}: another PE of the team could not do its part; its error says why")]
    PeerRefused {
        /// This PE.
        pe: Pe,
        /// The call.
        what: &'static str,
    },
}

fn list(pes: &[Pe]) -> String {
    pes.iter().map(Pe::to_string).collect::<Vec<_>>().join(", ")
}

fn because(lost: Option<Pe>) -> String {
    lost.map_or_else(|| ", and its error says why".into(), |lost| format!(", since it has lost PE {lost}"))
}

fn after(why: &Option<String>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
}
