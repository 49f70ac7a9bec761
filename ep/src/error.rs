//! Errors of this crate.

use symrail::kernels::cuda::CudaError;
use symrail::{Pe, rounds};

use crate::element::{TYPES, names_of};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a dispatch or a combine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the runtime. Ranks whose calls, shapes or sizes differ get
    /// [`ParametersDiffer`](symrail::Error::ParametersDiffer).
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// Ranks that have not arrived in time, or buffers that an earlier call has left unusable.
    #[error(transparent)]
    Round(#[from] rounds::Error),
    /// A token names an expert that does not exist.
    #[error(
        "top-k index of token {token}, slot {slot}: there is no expert {expert}; there are 0 to {last}, and -1 for none"
    )]
    NoSuchExpert {
        /// The token.
        token: usize,
        /// The index of its top-k slot.
        slot: usize,
        /// The expert that it names.
        expert: i64,
        /// The last expert.
        last: usize,
    },
    /// Ranks whose rows, or scales, are of different types.
    #[error(
        "dispatch or combine: {what} of PE {pe} and PE {other} differ: {mine} and {theirs}; pass the same on all ranks",
        what = TYPES
    )]
    TypesDiffer {
        /// This rank.
        pe: Pe,
        /// Its types.
        mine: String,
        /// Another rank.
        other: Pe,
        /// That rank's types.
        theirs: String,
    },
    /// An argument that does not agree with the others.
    #[error("{what}: {found}, where {wanted} is wanted")]
    Argument {
        /// The argument and its property.
        what: &'static str,
        /// Its value.
        found: String,
        /// The value that it must have.
        wanted: String,
    },
    /// More tokens than the buffers were made for.
    #[error(
        "{tokens} tokens, where the buffers are for {most} of each rank; make them larger, or send fewer at a time"
    )]
    TooManyTokens {
        /// The number of tokens to send.
        tokens: usize,
        /// The most tokens of a call.
        most: usize,
    },
    /// A buffer that is too small for even the smallest block.
    #[error("{what} takes {needed} bytes of each rank's heap, where {given} were given; give at least {needed}")]
    BufferTooSmall {
        /// What the buffer is for.
        what: &'static str,
        /// The bytes that it needs.
        needed: usize,
        /// The bytes that it has.
        given: usize,
    },
    /// The memory of this process does not suffice for what is to arrive.
    #[error("{rows} rows of {bytes} bytes are to arrive, for which there is no memory")]
    NoMemory {
        /// The number of rows.
        rows: usize,
        /// Bytes of each row.
        bytes: usize,
    },
    /// More rows than a rank has memory for. No row was sent.
    #[error(
        "rank {rank} would get {rows} rows, and has room for {room}: give it more (num_worst_tokens; in Rust `room`)"
    )]
    NoRoom {
        /// The rank.
        rank: Pe,
        /// The number of rows.
        rows: u64,
        /// The most rows.
        room: u64,
    },
    /// Other ranks have masked this one, because it did not arrive at a call in time.
    #[error("rank {me} came too late: rank {} went on without it; it can take part again in a new job", list(ranks))]
    Left {
        /// This rank.
        me: Pe,
        /// The ranks that go on without it.
        ranks: Vec<Pe>,
    },
    /// An error of the kernel compiler or of the GPU's driver.
    #[error("on a GPU: {reason}")]
    Device {
        /// Its message.
        reason: String,
    },
    /// A call that is invalid at this point of the sequence of calls.
    #[error("{what}")]
    Order {
        /// What is wrong.
        what: &'static str,
    },
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::Device { reason: error.to_string() }
    }
}

fn list(ranks: &[Pe]) -> String {
    ranks.iter().map(Pe::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// Ranks that differ in `what`: this one has `mine`.
    pub(crate) fn differ(what: &'static str, pe: Pe, mine: u64, other: Pe, theirs: u64) -> Error {
        if what == TYPES {
            return Error::TypesDiffer { pe, mine: names_of(mine), other, theirs: names_of(theirs) };
        }
        symrail::Error::ParametersDiffer { call: "dispatch or combine", what, pe, mine, other, theirs }.into()
    }

    /// An argument that does not agree with the others.
    #[allow(clippy::needless_pass_by_value)] // numbers, and texts that are made for it
    pub(crate) fn argument(what: &'static str, found: impl ToString, wanted: impl ToString) -> Error {
        Error::Argument { what, found: found.to_string(), wanted: wanted.to_string() }
    }
}
