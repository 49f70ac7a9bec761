//! The errors of this crate.

use symrail::Pe;

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a decomposition.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the runtime.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// An error of a round: a PE that is late or has refused, or a plan that an earlier round has left unusable.
    #[error(transparent)]
    Round(#[from] symrail::rounds::Error),
    /// A grid that is invalid, or that does not fit the number of PEs.
    #[error("no such grid: {reason}")]
    Grid {
        /// The reason.
        reason: String,
    },
    /// Counts, or sizes of elements, that a plan does not support.
    #[error("no such {what}: {reason}")]
    Plan {
        /// The kind of plan.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// An invalid argument of this PE.
    #[error("PE {pe}: {operation}: {refusal} (needed {needed}, given {given})")]
    Refused {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
        /// The reason.
        refusal: Refusal,
        /// The bytes, or the number, that are needed.
        needed: usize,
        /// The value that was given.
        given: usize,
    },
    /// An invalid argument of another PE of the same operation.
    #[error("PE {pe}: {operation}: nothing was exchanged with PE {by}, which was given something wrong: {refusal}")]
    RefusedBy {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
        /// The PE whose own error has the details.
        by: Pe,
        /// The reason on that PE.
        refusal: Refusal,
    },
    /// A graph cannot capture a round with buffers that the plan has not used before.
    #[error("{operation}: a first round with these buffers cannot be captured in a graph: post it once before")]
    FirstCaptured {
        /// The operation.
        operation: &'static str,
    },
    /// An error of a GPU.
    #[error(transparent)]
    Gpu(#[from] symrail::kernels::cuda::Error),
    /// A file of measured choices cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
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

impl Error {
    /// Whether the team's heap is full, an error that all of its PEs get.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Error::Runtime(symrail::Error::TeamHeapFull { .. }))
    }
}

/// The reason why an operation refuses an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Fewer bytes than needed.
    #[error("the workspace is too small: ask the plan for its size")]
    WorkspaceTooSmall,
    /// The workspace of another decomposition or plan.
    #[error("the workspace belongs to another grid")]
    OtherWorkspace,
    /// Fewer bytes than the input pencil has.
    #[error("the input is too small for its pencil")]
    InputTooSmall,
    /// Fewer bytes than the output pencil has.
    #[error("the output is too small for its pencil")]
    OutputTooSmall,
    /// An address that is not aligned to the elements.
    #[error("a buffer is not aligned to its elements")]
    Misaligned,
    /// Memory that the CPU does not reach.
    #[error("a buffer is in memory of a device, and this plan copies by the CPU: use host memory")]
    DeviceMemory,
    /// Memory that the GPU does not reach.
    #[error("a buffer is in host memory that the GPU does not reach, and this plan is for GPUs")]
    HostMemory,
    /// Input and output that overlap without being the same buffer.
    #[error("input and output overlap: use one buffer, or separate ones")]
    Overlap,
    /// Symmetric memory of the receiver that the sender does not reach, although it has mapped the receiver's heap.
    #[error("a block was to go to symmetric memory that its sender has not mapped: make the plan without `direct`")]
    Unreached,
}

impl Refusal {
    const ALL: [Refusal; 9] = [
        Refusal::WorkspaceTooSmall,
        Refusal::OtherWorkspace,
        Refusal::InputTooSmall,
        Refusal::OutputTooSmall,
        Refusal::Misaligned,
        Refusal::DeviceMemory,
        Refusal::HostMemory,
        Refusal::Overlap,
        Refusal::Unreached,
    ];

    /// The code by which PEs exchange the refusal.
    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    /// The refusal with a code; the first one if no refusal has it.
    pub(crate) fn of_code(code: u64) -> Refusal {
        Refusal::ALL.into_iter().find(|refusal| refusal.code() == code).unwrap_or(Refusal::ALL[0])
    }
}
