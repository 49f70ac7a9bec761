//! What can go wrong with device programs.

use symrail_heap::cuda::CudaError;

/// Why a program was not compiled, a kernel not launched, or what a kernel has reported.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver, or memory.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no NVRTC.
    #[error("no NVRTC library: {looked}; install it, or name its folder in LD_LIBRARY_PATH")]
    NoNvrtc {
        /// Where it was looked for.
        looked: String,
    },
    /// NVRTC does not accept a program.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Compile {
        /// The program.
        name: String,
        /// The target.
        arch: String,
        /// NVRTC's messages.
        log: String,
    },
    /// A module lacks something.
    #[error(
        "the module has no {what} {name:?}: include symrail_device.cuh, and declare kernels extern \"C\" __global__"
    )]
    NotInModule {
        /// A kernel or a symbol.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The parts of a state contradict one another.
    #[error("a device cannot have {0}")]
    Parts(String),
    /// A kernel reported an error: its operations are not complete.
    #[error("a kernel of PE {me} failed: {what}, PE {pe}, at {place:#x}: {why}")]
    Kernel {
        /// This PE.
        me: u32,
        /// What was attempted.
        what: &'static str,
        /// The other PE.
        pe: u64,
        /// An address, position or number, by what was attempted.
        place: u64,
        /// What was wrong, and what to do.
        why: &'static str,
    },
    /// The proxy could not do what kernels asked for.
    #[error("{count} requests of kernels failed in the proxy (channel {channel}); its error names the first")]
    Requests {
        /// How many since the last look.
        count: u64,
        /// The channel.
        channel: usize,
    },
}

/// Results of this folder.
pub type Result<T, E = Error> = std::result::Result<T, E>;
