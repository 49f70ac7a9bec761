//! Errors of a device, as values.

use symrail_proxy::channel::Refused;
use symrail_transport::{Operation, Pe};

/// Why an operation of a device failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An operation's arguments are wrong; nothing was started. The transport provides the text.
    #[error("{0}")]
    Argument(String),
    /// A request cannot be encoded.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The proxy could not complete this operation.
    #[error("{operation} of {bytes} bytes to PE {pe} failed in the proxy; its error names the rail and the reason")]
    Failed {
        /// The operation that failed.
        operation: Operation,
        /// The other PE.
        pe: Pe,
        /// The operation's size in bytes.
        bytes: u64,
    },
    /// Operations that were not awaited individually failed.
    #[error("{count} operations of channel {channel} failed before this quiet; the proxy's error names the first")]
    FailedBeforeQuiet {
        /// The number since the thread's last quiet (or since its start).
        count: u64,
        /// The channel's number.
        channel: usize,
    },
    /// An operation was not answered in time. The proxy may still use its local buffer.
    #[error("{operation} of {bytes} bytes to PE {pe} was not answered within {seconds} s (SYMRAIL_TIMEOUT_S)")]
    Timeout {
        /// The operation that failed.
        operation: Operation,
        /// The other PE.
        pe: Pe,
        /// The operation's size in bytes.
        bytes: u64,
        /// The time-out that passed.
        seconds: u64,
    },
    /// An awaited event did not happen in time.
    #[error("{what} did not end within {seconds} s (SYMRAIL_TIMEOUT_S)")]
    WaitTimeout {
        /// The awaited event, with the last state.
        what: String,
        /// The time-out that passed.
        seconds: u64,
    },
    /// A PE that is not mapped, and there is no channel to it.
    #[error("PE {pe} is not mapped and this device has no channel: there is no wire (SYMRAIL_LOG=info says why)")]
    NoChannel {
        /// The other PE.
        pe: Pe,
    },
    /// All entries of the channel's reply table are in use.
    #[error(
        "channel {channel} has {replies} reply entries and all are in use: launch fewer threads or use more channels"
    )]
    NoReply {
        /// The channel's number.
        channel: usize,
        /// The table's size.
        replies: usize,
    },
    /// This thread gave up waiting for an operation that is still unanswered.
    #[error("an earlier operation of this thread timed out and is still unanswered: nothing more can wait for a reply")]
    Unanswered,
    /// Another thread of the block ended with an error, so its barrier will never complete.
    #[error("a thread of block {block} ended with an error; its barrier is broken")]
    BlockBroken {
        /// The block's number.
        block: usize,
    },
}

impl From<symrail_transport::Error> for DeviceError {
    fn from(error: symrail_transport::Error) -> Self {
        DeviceError::Argument(error.to_string())
    }
}

/// Why a grid did not run to completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError<E> {
    /// A grid has no threads.
    #[error("a grid of {blocks} blocks of {threads_per_block} threads has no threads: use at least 1 of each")]
    Empty {
        /// Blocks in the grid.
        blocks: usize,
        /// Threads per block.
        threads_per_block: usize,
    },
    /// The system could not create a thread.
    #[error("thread {thread} of the grid cannot be started: {source}; launch fewer threads")]
    Spawn {
        /// The thread's number.
        thread: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The kernel returned an error. The first one is reported.
    #[error("thread {thread} of the grid failed: {error}")]
    Kernel {
        /// The thread's number.
        thread: usize,
        /// The kernel's result.
        error: E,
    },
    /// The kernel panicked.
    #[error("thread {thread} of the grid panicked")]
    Panicked {
        /// The thread's number.
        thread: usize,
    },
}
