//! What can go wrong, as values that say where and what to do about it.

use std::fmt;

use crate::escaped::Escaped;
use crate::pe::Pe;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which operation an error belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Writing to remote memory.
    Put,
    /// Reading from remote memory.
    Get,
    /// An atomic memory operation.
    Amo,
    /// A put that updates a signal word once its data is visible.
    PutSignal,
    /// Waiting until everything issued has been delivered.
    Quiet,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Put => "put",
            Operation::Get => "get",
            Operation::Amo => "amo",
            Operation::PutSignal => "put_signal",
            Operation::Quiet => "quiet",
        })
    }
}

/// What a rail reported about one work request or about itself.
///
/// A fault knows nothing of PEs and operations; whoever posted the work request
/// adds that and makes it an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The provider's error number (positive; `FI_E*` or `IBV_WC_*`), an errno, or what a target's agent calls its
    /// refusal.
    pub code: i32,
    /// The provider's own words for it.
    pub text: String,
    /// The way failed, not the work: on another rail, or later, it may succeed. Never for what a target or a NIC
    /// refused (a wrong key, a range that is not registered).
    pub retryable: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.text, self.code)
    }
}

/// What an [`Error`] is about, as far as it says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Subject<'e> {
    /// The operation that failed.
    pub operation: Option<Operation>,
    /// The PE at the other end.
    pub pe: Option<Pe>,
    /// The rail's name.
    pub rail: Option<&'e str>,
    /// How many bytes.
    pub bytes: Option<u64>,
}

/// An error of the transport. Every variant names what is needed to act on it.
#[derive(Debug, Clone, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(name(ErrorKind), doc = "Which [`Error`] it is: for interfaces that have a code for each.")]
#[non_exhaustive]
pub enum Error {
    /// An environment variable holds something else than it accepts.
    #[error("{name}={}: not accepted; use {accepted}", Escaped(.value))]
    Setting {
        /// The variable's full name.
        name: String,
        /// The value that it held.
        value: String,
        /// What it accepts, in words.
        accepted: String,
    },
    /// A library that is loaded at run time is not there or too old.
    #[error("{} cannot be used: {}; {remedy}", Escaped(.library), Escaped(.reason))]
    Library {
        /// The library's file name or path.
        library: String,
        /// What the loader or the version check said.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// No rail fits the settings.
    #[error("no rail fits {}; there are: {found}", Escaped(.wanted))]
    NoRail {
        /// The settings that were applied.
        wanted: String,
        /// Everything that exists, comma separated, or `nothing`.
        found: String,
    },
    /// A call into the fabric failed outside of the data path.
    #[error("{call} on rail {rail} failed: {fault}")]
    Fabric {
        /// The function that failed.
        call: &'static str,
        /// The rail's name.
        rail: String,
        /// What the provider said.
        fault: Fault,
    },
    /// An operation failed on its way or at its target.
    #[error("{operation} of {bytes} bytes to PE {pe} over rail {rail} failed: {fault}")]
    Operation {
        /// The operation that failed.
        operation: Operation,
        /// The target.
        pe: Pe,
        /// The rail's name.
        rail: String,
        /// The operation's size in bytes.
        bytes: u64,
        /// What the provider said.
        fault: Fault,
    },
    /// Too much is in flight; nothing was started.
    #[error("no room for another {operation} to PE {pe}: make progress (quiet, wait or poll), then try again")]
    Full {
        /// The operation that failed.
        operation: Operation,
        /// The target.
        pe: Pe,
    },
    /// Nothing came back in time.
    #[error("{operation} to PE {pe} did not complete within {seconds} s (SYMRAIL_TIMEOUT_S); is the PE alive?")]
    Timeout {
        /// The operation that failed.
        operation: Operation,
        /// The PE that did not answer.
        pe: Pe,
        /// The time-out that passed.
        seconds: u64,
    },
    /// The PE has been given up.
    #[error("{operation} to PE {pe} cannot be done: {why}")]
    PeerLost {
        /// The operation that failed.
        operation: Operation,
        /// The PE that has been given up.
        pe: Pe,
        /// What became of it.
        why: String,
    },
    /// A PE number outside of the job.
    #[error("PE {pe} does not exist: the job has PEs 0 to {last}")]
    NoSuchPe {
        /// The requested value.
        pe: i64,
        /// The highest PE.
        last: Pe,
    },
    /// A symmetric address range that no registered segment holds.
    #[error(
        "{operation} touches {bytes} bytes at symmetric offset {offset:#x}, which is not inside one allocated segment of PE {pe}"
    )]
    OutOfSegment {
        /// The operation that failed.
        operation: Operation,
        /// The PE whose memory was meant.
        pe: Pe,
        /// The symmetric offset.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
    },
    /// A local buffer that a device may not use.
    #[error(
        "{operation} with PE {pe}: the local buffer of {bytes} bytes at {address:#x} is neither in the symmetric heap nor registered"
    )]
    LocalBuffer {
        /// The operation that failed.
        operation: Operation,
        /// The peer.
        pe: Pe,
        /// The buffer's address.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// An address that is not aligned for its operation.
    #[error("{operation} needs {needed}-byte alignment at symmetric offset {offset:#x} of PE {pe}")]
    Misaligned {
        /// The operation that failed.
        operation: Operation,
        /// The PE whose memory was meant.
        pe: Pe,
        /// The symmetric offset.
        offset: u64,
        /// The alignment needed, in bytes.
        needed: usize,
    },
    /// Two PEs do not agree on something they must share.
    #[error("{what} differs: PE {pe} has {value}, PE {other_pe} has {other_value}; start all PEs with the same")]
    Mismatch {
        /// The name of what must agree.
        what: &'static str,
        /// One PE.
        pe: Pe,
        /// Its value.
        value: String,
        /// The other PE.
        other_pe: Pe,
        /// Its value.
        other_value: String,
    },
    /// connection info, handle or message that cannot be understood.
    #[error("{what} from PE {pe} is malformed: {why}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// The sender.
        pe: Pe,
        /// The reason.
        why: String,
    },
    /// The operating system refused something.
    #[error("{what} failed: {reason}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
    /// Something this combination of provider and settings cannot do.
    #[error("{what} is not supported by {by}; {remedy}")]
    Unsupported {
        /// The requested value.
        what: String,
        /// The provider or device.
        by: String,
        /// The alternative.
        remedy: String,
    },
}

impl Error {
    /// What the error is about, for interfaces that have it apart from the text.
    #[must_use]
    pub fn subject(&self) -> Subject<'_> {
        let of = |operation, pe| Subject { operation: Some(operation), pe: Some(pe), ..Subject::default() };
        match *self {
            Error::Fabric { ref rail, .. } => Subject { rail: Some(rail), ..Subject::default() },
            Error::Operation { operation, pe, ref rail, bytes, .. } => {
                Subject { rail: Some(rail), bytes: Some(bytes), ..of(operation, pe) }
            }
            Error::OutOfSegment { operation, pe, bytes, .. } | Error::LocalBuffer { operation, pe, bytes, .. } => {
                Subject { bytes: Some(bytes), ..of(operation, pe) }
            }
            Error::Full { operation, pe } | Error::Misaligned { operation, pe, .. } => of(operation, pe),
            Error::Timeout { operation, pe, .. } | Error::PeerLost { operation, pe, .. } => of(operation, pe),
            Error::Mismatch { other_pe: pe, .. } | Error::Malformed { pe, .. } => {
                Subject { pe: Some(pe), ..Subject::default() }
            }
            Error::Setting { .. } | Error::Library { .. } | Error::NoRail { .. } => Subject::default(),
            Error::NoSuchPe { .. } | Error::System { .. } | Error::Unsupported { .. } => Subject::default(),
        }
    }
}
