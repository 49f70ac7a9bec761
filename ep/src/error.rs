//! What can go wrong.

use symrail::Pe;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a dispatch or a combine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the runtime.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// An expert that is not there.
    #[error(
        "top-k index of token {token}, slot {slot}: there is no expert {expert}; there are 0 to {last}, and -1 for none"
    )]
    NoSuchExpert {
        /// The token.
        token: usize,
        /// Which of its top-k slots.
        slot: usize,
        /// What is there.
        expert: i64,
        /// The last expert.
        last: usize,
    },
    /// Arguments that do not go together.
    #[error("{what}: {found}, where {wanted} is wanted")]
    Argument {
        /// Which argument, and what of it.
        what: &'static str,
        /// What it is.
        found: String,
        /// What it has to be.
        wanted: String,
    },
    /// More tokens than the buffers were made for.
    #[error(
        "{tokens} tokens, where the buffers are for {most} of each rank; make them larger, or send fewer at a time"
    )]
    TooManyTokens {
        /// How many were to be sent.
        tokens: usize,
        /// How many can be.
        most: usize,
    },
    /// Buffers in which not even the smallest piece has room.
    #[error("{what} takes {needed} bytes of each rank's heap, where {given} were given; give at least {needed}")]
    BufferTooSmall {
        /// What the buffer is for.
        what: &'static str,
        /// Bytes that it takes.
        needed: usize,
        /// Bytes that there are.
        given: usize,
    },
    /// Ranks that call with different shapes or sizes, or different calls.
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
    /// What is to arrive has no room in this process.
    #[error("{rows} rows of {bytes} bytes are to arrive, for which there is no memory")]
    NoMemory {
        /// How many rows.
        rows: usize,
        /// Bytes of each.
        bytes: usize,
    },
    /// Ranks that have not arrived in time.
    #[error("{what}: rank {me} has waited {seconds:.1} s for rank {}", list(ranks))]
    Late {
        /// What is waited in.
        what: &'static str,
        /// Who has waited: this rank, or one that this rank waits for.
        me: Pe,
        /// Those who are waited for.
        ranks: Vec<Pe>,
        /// For how long.
        seconds: f64,
    },
    /// Ranks that have masked this one, because it had not come to a call in time.
    #[error("rank {me} came too late: rank {} went on without it; it can take part again in a new job", list(ranks))]
    Left {
        /// This rank.
        me: Pe,
        /// Those who go on without it.
        ranks: Vec<Pe>,
    },
    /// A wait that was ended by what [`Runtime::set_interrupt`](symrail::Runtime::set_interrupt) was given.
    #[error("{what}: the wait for rank {} was ended", list(ranks))]
    Interrupted {
        /// What was waited in.
        what: &'static str,
        /// Those who were waited for.
        ranks: Vec<Pe>,
    },
    /// Buffers of which nobody knows what is in them, since a call has failed in its midst.
    #[error("these buffers cannot be used any more: {why}; all ranks have to make new ones")]
    Broken {
        /// What has failed before.
        why: String,
    },
    /// The compiler of kernels, or the GPU's driver.
    #[error("on a GPU: {reason}")]
    Device {
        /// What it says.
        reason: String,
    },
    /// Calls in an order that makes no sense.
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
    /// Arguments that do not go together.
    #[allow(clippy::needless_pass_by_value)] // numbers, and texts that are made for it
    pub(crate) fn argument(what: &'static str, found: impl ToString, wanted: impl ToString) -> Error {
        Error::Argument { what, found: found.to_string(), wanted: wanted.to_string() }
    }
}
