//! The errors of this crate.

use symrail::Pe;
use symrail::kernels::cpu::{DeviceError, LaunchError};

/// Why a plan was refused, or a collective failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plan's file cannot be read.
    #[error("the plan {path} cannot be read: {source}")]
    Read {
        /// Its path.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A plan's file is malformed.
    #[error("{plan} is not a plan{field}: {source}")]
    Syntax {
        /// Its origin: its path, if it is a file.
        plan: String,
        /// The field that is wrong, behind a comma; empty if it is not known.
        field: String,
        /// The error, with its position.
        source: serde_json::Error,
    },
    /// A plan contradicts itself.
    #[error("plan {plan}{place}: {reason}")]
    Plan {
        /// Its name.
        plan: String,
        /// Rank, block and operation, as far as they are known.
        place: Place,
        /// What is wrong.
        reason: String,
    },
    /// A call does not suit the plan or the job.
    #[error("{0}")]
    Call(String),
    /// The parts of a communicator belong to different runtimes of this process.
    #[error("PE {pe}: the {what} of a communicator is of another runtime; make team, heap and device of one")]
    OtherRuntime {
        /// The part that belongs to another one.
        what: &'static str,
        /// This PE, in the communicator's runtime.
        pe: Pe,
    },
    /// An error of a call: a PE is late or has given up. The communicator cannot be used any more.
    #[error(transparent)]
    Round(#[from] symrail::rounds::Error),
    /// A send met a receive of another size.
    #[error(
        "PE {from} sends {sent} bytes to PE {to}, which receives them as {received}: the n-th send from a PE to another \
         meets the n-th receive there; the communicator cannot be used for sends and receives any more"
    )]
    Sizes {
        /// The sender.
        from: Pe,
        /// The receiver.
        to: Pe,
        /// Bytes of the send.
        sent: u64,
        /// Bytes of the receive.
        received: u64,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The threads of a call could not be run.
    #[error("{0}")]
    Launch(String),
    /// A GPU's kernels could not be made or run.
    #[error(transparent)]
    Gpu(#[from] symrail::kernels::cuda::Error),
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
}

/// A `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A place in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The rank.
    pub rank: Option<usize>,
    /// The block.
    pub block: Option<usize>,
    /// The operation's index in the block, and in its pipeline.
    pub op: Option<(usize, Option<usize>)>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, ", rank {rank}")?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        match self.op {
            Some((op, Some(inner))) => write!(f, ", operation {op}.{inner}"),
            Some((op, None)) => write!(f, ", operation {op}"),
            None => Ok(()),
        }
    }
}

impl From<symrail::bootstrap::Error> for Error {
    fn from(error: symrail::bootstrap::Error) -> Self {
        Error::Runtime(error.into())
    }
}

impl From<symrail::kernels::cuda::CudaError> for Error {
    fn from(error: symrail::kernels::cuda::CudaError) -> Self {
        Error::Gpu(error.into())
    }
}

impl From<LaunchError<Error>> for Error {
    fn from(error: LaunchError<Error>) -> Self {
        match error {
            LaunchError::Kernel { error, .. } => error,
            other => Error::Launch(other.to_string()),
        }
    }
}
