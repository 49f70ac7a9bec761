//! Errors of this crate.

use symrail::Pe;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a dispatch or a combine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the runtime.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
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
    /// Ranks whose calls, shapes or sizes differ.
    #[error("{what}: rank {me} has {here}, rank {other} has {there}; all ranks must have the same")]
    Differ {
        /// What differs.
        what: &'static str,
        /// This rank.
        me: Pe,
        /// Its value.
        here: u64,
        /// A rank with another one.
        other: Pe,
        /// That rank's value.
        there: u64,
    },
    /// The memory of this process does not suffice for what is to arrive.
    #[error("{rows} rows of {bytes} bytes are to arrive, for which there is no memory")]
    NoMemory {
        /// The number of rows.
        rows: usize,
        /// Bytes of each row.
        bytes: usize,
    },
    /// Ranks that have not arrived in time.
    #[error("{what}: rank {me} has waited {seconds:.1} s for rank {}", list(ranks))]
    Late {
        /// The wait, in words.
        what: &'static str,
        /// The rank that waited: this one, or one that this rank waits for.
        me: Pe,
        /// The ranks that have not arrived.
        ranks: Vec<Pe>,
        /// The duration of the wait.
        seconds: f64,
    },
    /// Other ranks have masked this one, because it did not arrive at a call in time.
    #[error("rank {me} came too late: rank {} went on without it; it can take part again in a new job", list(ranks))]
    Left {
        /// This rank.
        me: Pe,
        /// The ranks that go on without it.
        ranks: Vec<Pe>,
    },
    /// A wait that the function given to [`Runtime::set_interrupt`](symrail::Runtime::set_interrupt) has ended.
    #[error("{what}: the wait for rank {} was ended", list(ranks))]
    Interrupted {
        /// The wait, in words.
        what: &'static str,
        /// The ranks that it waited for.
        ranks: Vec<Pe>,
    },
    /// Buffers whose contents are undefined because a call has failed after its start.
    #[error("these buffers cannot be used any more: {why}; all ranks have to make new ones")]
    Broken {
        /// The earlier failure.
        why: String,
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

fn list(ranks: &[Pe]) -> String {
    ranks.iter().map(Pe::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// An argument that does not agree with the others.
    #[allow(clippy::needless_pass_by_value)] // numbers, and texts that are made for it
    pub(crate) fn argument(what: &'static str, found: impl ToString, wanted: impl ToString) -> Error {
        Error::Argument { what, found: found.to_string(), wanted: wanted.to_string() }
    }
}
