//! Errors of device programs.

use symrail_cuda::CudaError;

/// Why a program was not compiled or a kernel not launched, or the report of a kernel.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the driver.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A module has no device state.
    #[error("the module has no constant {name:?}: include symrail_device.cuh")]
    NoState {
        /// The constant that is missing.
        name: &'static str,
    },
    /// The parts of a state contradict each other.
    #[error("a device cannot have {0}")]
    Parts(String),
    /// A kernel reported an error: its operations are not complete.
    #[error("a kernel of PE {me} failed: {what}, PE {pe}, at {place:#x}: {why}")]
    Kernel {
        /// This PE.
        me: u32,
        /// The operation that failed.
        what: &'static str,
        /// The other PE.
        pe: u64,
        /// An address, position or number, depending on the operation.
        place: u64,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// A wait of a kernel has ended by the time-out of its call.
    #[error(
        "a kernel of PE {me} failed: {what}, PE {pe}: it did not happen within {milliseconds} ms, the call's limit"
    )]
    Late {
        /// This PE.
        me: u32,
        /// The operation that failed.
        what: &'static str,
        /// The other PE.
        pe: u64,
        /// The limit.
        milliseconds: u64,
    },
    /// The proxy could not complete requests of kernels.
    #[error("{count} requests of kernels failed in the proxy (channel {channel}); its error names the first")]
    Requests {
        /// The number of failed requests since the last check.
        count: u64,
        /// The channel.
        channel: usize,
    },
}

/// Results of this folder.
pub type Result<T, E = Error> = std::result::Result<T, E>;
