//! Errors of a measurement.

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// Dispatch or combine failed.
    #[error(transparent)]
    Experts(#[from] symrail_ep::Error),
    /// A collective of devices failed.
    #[error(transparent)]
    Collective(#[from] symrail_collectives::Error),
    /// A transpose or a halo failed.
    #[error(transparent)]
    Pencils(#[from] symrail_decomp::Error),
    /// A product of a layer failed.
    #[error(transparent)]
    Product(#[from] symrail_overlap::Error),
    /// The transport failed outside of a runtime.
    #[error(transparent)]
    Transport(#[from] symrail_transport::Error),
    /// The PEs did not find each other.
    #[error(transparent)]
    Bootstrap(#[from] symrail::bootstrap::Error),
    /// The launcher could not start the PEs.
    #[error("{reason}")]
    Launch {
        /// The launcher's message.
        reason: String,
        /// The launcher's exit code for that.
        exit_code: i32,
    },
    /// The CPU device failed.
    #[error("the CPU device: {0}")]
    Device(String),
    /// The GPU failed.
    #[error("the GPU: {0}")]
    Gpu(String),
    /// Standard output cannot be written.
    #[error("standard output: {0}")]
    Output(std::io::Error),
    /// A combination of arguments that makes no sense, or that this machine cannot run.
    #[error("{0}")]
    Arguments(String),
    /// Bare libfabric failed.
    #[error("bare libfabric: {call} with {provider} failed: {reason}")]
    Fabric {
        /// The function.
        call: &'static str,
        /// The provider's name.
        provider: String,
        /// The error.
        reason: String,
    },
    /// A PE did not answer.
    #[error("PE {pe} waited {seconds} s for {what}")]
    Timeout {
        /// The PE that waited.
        pe: u32,
        /// What it waited for.
        what: &'static str,
        /// How long it waited.
        seconds: u64,
    },
    /// The received data differs from the sent data.
    #[error("{test}, {size} bytes: wrong data at PE {pe}: byte {at} is {found:#04x}, not {expected:#04x}")]
    WrongData {
        /// The test.
        test: &'static str,
        /// The size that was being measured.
        size: usize,
        /// The receiving PE.
        pe: u32,
        /// The index of the byte.
        at: usize,
        /// Its value.
        found: u8,
        /// The expected value.
        expected: u8,
    },
    /// A counter or a signal word has a wrong value.
    #[error("{test}: wrong word at PE {pe}: {found}, not {expected}")]
    WrongWord {
        /// The test.
        test: &'static str,
        /// The PE that has the word.
        pe: u32,
        /// Its value.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// The system refused something.
    #[error("{what}: {reason}")]
    System {
        /// The operation that failed.
        what: String,
        /// The error.
        reason: String,
    },
}

impl Error {
    /// The exit code: 2 for a wrong call, 1 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Arguments(_) => 2,
            Error::Launch { exit_code, .. } => *exit_code,
            _ => 1,
        }
    }
}
