//! Errors of agents: those of the transport, and those that name an agent.

use symrail_core::Escaped;

/// The result of fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an agent.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that is not accepted.
    #[error("{what}: {why}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// The reason, with what is accepted.
        why: String,
    },
    /// No metadata of this agent was loaded.
    #[error("agent {} is not known here: load its metadata", Escaped(.agent))]
    Unknown {
        /// The agent.
        agent: String,
    },
    /// A descriptor outside of registered memory.
    #[error(
        "{bytes} bytes at {address:#x} are not inside one registration of agent {} that is known here: register them, or load its metadata again",
        Escaped(.agent)
    )]
    NotRegistered {
        /// The owner of the memory.
        agent: String,
        /// The first address.
        address: u64,
        /// The length in bytes.
        bytes: u64,
    },
    /// Metadata that is malformed, was changed, or does not fit what is known.
    #[error("the metadata is not accepted: {why}")]
    Metadata {
        /// The reason.
        why: String,
    },
    /// The transfer, or the memory, is in use by a transfer under way.
    #[error("{what} is in use by a transfer under way: wait for its end, or cancel it")]
    Busy {
        /// What is in use.
        what: &'static str,
    },
    /// The agent has left, its process has ended, or it does not answer.
    #[error("agent {} is lost: {why}", Escaped(.agent))]
    Lost {
        /// The agent.
        agent: String,
        /// The reason.
        why: String,
    },
    /// The transport's error in what concerns one agent.
    #[error("agent {}: {error}", Escaped(.agent))]
    Failed {
        /// The agent.
        agent: String,
        /// The transport's error.
        error: symrail_transport::Error,
    },
    /// An error of the transport.
    #[error(transparent)]
    Transport(#[from] symrail_transport::Error),
}

impl Error {
    /// The transport's error in an operation on memory of an agent.
    pub(crate) fn of(agent: &str, error: symrail_transport::Error) -> Error {
        use symrail_transport::Error as T;
        let agent = agent.to_owned();
        match error {
            T::PeerLost { why, .. } => Error::Lost { agent, why },
            // The path has failed, and no other one leads to the agent.
            T::Operation { ref fault, .. } if fault.retryable => Error::Lost { agent, why: error.to_string() },
            T::Timeout { .. } => Error::Lost { agent, why: error.to_string() },
            error => Error::Failed { agent, error },
        }
    }
}
