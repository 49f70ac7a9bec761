//! Errors as values that name the place and the remedy.

use std::fmt;

use crate::escaped::Escaped;
use crate::pe::Pe;

/// The result of fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The operation of an error.
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

/// The report of a rail about one work request or about itself.
///
/// A fault has no PE and no operation. The poster of the work request adds these and makes it an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The provider's error number (positive; `FI_E*` or `IBV_WC_*`), an errno, or the code of a target agent's
    /// refusal.
    pub code: i32,
    /// The provider's text.
    pub text: String,
    /// Whether the path failed, and not the request. Then it may succeed on another rail, or later. It is never set for
    /// a request that a target or a NIC refused (a wrong key, a range that is not registered).
    pub retryable: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.text, self.code)
    }
}

/// The PE, rail, operation and size of an [`Error`], as far as it has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Subject<'e> {
    /// The operation that failed.
    pub operation: Option<Operation>,
    /// The PE at the other end.
    pub pe: Option<Pe>,
    /// The rail's name.
    pub rail: Option<&'e str>,
    /// The size in bytes.
    pub bytes: Option<u64>,
}

/// An error of the transport. Every variant has the data that is needed to act on it.
#[derive(Debug, Clone, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(name(ErrorKind), doc = "Which [`Error`] it is: for interfaces that have a code for each.")]
#[non_exhaustive]
pub enum Error {
    /// An environment variable has a value that is not accepted.
    #[error("{name}={}: not accepted; use {accepted}", Escaped(.value))]
    Setting {
        /// The variable's full name.
        name: String,
        /// The value.
        value: String,
        /// A description of accepted values.
        accepted: String,
    },
    /// A library that is loaded at run time is missing or too old.
    #[error("{} cannot be used: {}; {remedy}", Escaped(.library), Escaped(.reason))]
    Library {
        /// The library's file name or path.
        library: String,
        /// The reason that the loader or the version check reported.
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
        /// The fault that the provider reported.
        fault: Fault,
    },
    /// An operation failed in the fabric or at its target.
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
        /// The fault that the provider reported.
        fault: Fault,
    },
    /// Too many operations are in flight. Nothing was started.
    #[error("no room for another {operation} to PE {pe}: make progress (quiet, wait or poll), then try again")]
    Full {
        /// The operation that failed.
        operation: Operation,
        /// The target.
        pe: Pe,
    },
    /// An operation did not complete in time.
    #[error("{operation} to PE {pe} did not complete within {seconds} s (SYMRAIL_TIMEOUT_S){}", remedy(rails))]
    Timeout {
        /// The operation that failed.
        operation: Operation,
        /// The PE that did not answer.
        pe: Pe,
        /// The time-out that passed.
        seconds: u64,
        /// The rails that have not returned the operation's data, while others lead to the PE; mostly empty.
        rails: String,
    },
    /// The PE has been given up as dead.
    #[error("{operation} to PE {pe} cannot be done: {why}")]
    PeerLost {
        /// The operation that failed.
        operation: Operation,
        /// The PE.
        pe: Pe,
        /// The reason.
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
        /// The PE of the memory.
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
        /// The PE of the memory.
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
    /// A connection info, handle or message that is malformed.
    #[error("{what} from PE {pe} is malformed: {why}")]
    Malformed {
        /// The name of the malformed data.
        what: &'static str,
        /// The sender.
        pe: Pe,
        /// The reason.
        why: String,
    },
    /// The operating system refused a call.
    #[error("{what} failed: {reason}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
    /// This combination of provider and settings does not support a request.
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

/// The end of the text of [`Error::Timeout`].
fn remedy(rails: &str) -> String {
    if rails.is_empty() {
        return "; is the PE alive?".into();
    }
    format!(
        ": its data is on {rails}, which has neither delivered nor returned it; repair the path, leave the rail out \
         (SYMRAIL_NIC_LIST), or let the rail report failures sooner (TCP: net.ipv4.tcp_retries2; ibverbs: \
         SYMRAIL_IB_TIMEOUT)"
    )
}

impl Error {
    /// The error's PE, rail, operation and size, for interfaces that return them separately from the text.
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
