//! What can go wrong.

use symrail::Pe;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a decomposition.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the runtime.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// A grid that is none, or not for these PEs.
    #[error("no such grid: {reason}")]
    Grid {
        /// What is wrong with it.
        reason: String,
    },
    /// Counts, or sizes of elements, that no plan can have.
    #[error("no such {what}: {reason}")]
    Plan {
        /// What was to be made.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// What this PE passed to an operation.
    #[error("PE {pe}: {operation}: {refusal} (needed {needed}, given {given})")]
    Refused {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
        /// What is wrong.
        refusal: Refusal,
        /// Bytes, or a number, that would do.
        needed: usize,
        /// What was given.
        given: usize,
    },
    /// What another PE passed to the same operation.
    #[error("PE {pe}: {operation}: nothing was exchanged with PE {by}, which was given something wrong: {refusal}")]
    RefusedBy {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
        /// The PE that has the full story.
        by: Pe,
        /// What is wrong there.
        refusal: Refusal,
    },
    /// A PE did not come within `SYMRAIL_TIMEOUT_S`, as kernels have found.
    #[error("PE {pe}: {operation}: waited {seconds} s for PE {late} ({waiting}); see what it does")]
    Late {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
        /// The PE that is late.
        late: Pe,
        /// What it was to say or to send.
        waiting: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// A round with buffers that are new to a plan cannot be captured in a graph.
    #[error("{operation}: a first round with these buffers cannot be captured in a graph: post it once before")]
    FirstCaptured {
        /// The operation.
        operation: &'static str,
    },
    /// A plan of which nobody knows what has been sent, since a round has not ended.
    #[error("PE {pe}: this plan of a {operation} cannot be used any more, since a round has failed; make another one")]
    Broken {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
    },
    /// Another PE's GPU has no memory for a plan, which that PE's error says.
    #[error("PE {pe}: this plan of a {operation} was refused by another PE's GPU, whose error says why")]
    OtherRefused {
        /// This PE.
        pe: Pe,
        /// The operation.
        operation: &'static str,
    },
    /// From a GPU.
    #[error(transparent)]
    Gpu(#[from] symrail::kernels::cuda::Error),
    /// A file of measured choices that cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<symrail::kernels::cuda::CudaError> for Error {
    fn from(error: symrail::kernels::cuda::CudaError) -> Self {
        Error::Gpu(error.into())
    }
}

impl Error {
    /// Whether the team's heap has no room, which all of its PEs are told.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Error::Runtime(symrail::Error::TeamHeapFull { .. }))
    }
}

/// Why an operation cannot work with what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Fewer bytes than needed.
    #[error("the workspace is too small: ask the plan for its size")]
    WorkspaceTooSmall,
    /// Made by another decomposition or plan.
    #[error("the workspace belongs to another grid")]
    OtherWorkspace,
    /// Fewer bytes than the input pencil has.
    #[error("the input is too small for its pencil")]
    InputTooSmall,
    /// Fewer bytes than the output pencil has.
    #[error("the output is too small for its pencil")]
    OutputTooSmall,
    /// An address that no element can have.
    #[error("a buffer is not aligned to its elements")]
    Misaligned,
    /// Memory that the CPU cannot touch.
    #[error("a buffer is in memory of a device, and this plan copies by the CPU: use host memory")]
    DeviceMemory,
    /// Memory that the GPU does not reach.
    #[error("a buffer is in host memory that the GPU does not reach, and this plan is for GPUs")]
    HostMemory,
    /// Neither the same buffer nor separate ones.
    #[error("input and output overlap: use one buffer, or separate ones")]
    Overlap,
    /// Symmetric memory of the receiver that the sender, which has its heap mapped, does not reach.
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

    /// Its number between PEs.
    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    /// The refusal with a number; the first one if there is none.
    pub(crate) fn of_code(code: u64) -> Refusal {
        Refusal::ALL.into_iter().find(|refusal| refusal.code() == code).unwrap_or(Refusal::ALL[0])
    }
}
