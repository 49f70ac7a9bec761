//! The operations that callers submit to an endpoint, and the results that they get back.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::amo::{AmoOp, AmoType};
use crate::error::{Error, Operation};
use crate::wire::RequestKind;

/// The issuer of an operation. Each issuer has its own quiet and its own first error.
pub type Issuer = u16;

/// The handle of an operation in flight; 0 is an operation that has already completed.
pub type OpHandle = u64;

/// The owner of an operation, and how its completion is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The issuer whose quiet waits for it.
    pub issuer: Issuer,
    /// The tag that [`Finished`] returns; `None` when only the issuer's quiet matters.
    pub tag: Option<u64>,
}

/// How long an operation may wait for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// It is posted at once, whatever bulk operations wait. With [`RailPolicy::Adaptive`] that is the first pieces of
    /// one of more than 128 KiB that needs more than half a millisecond.
    ///
    /// [`RailPolicy::Adaptive`]: crate::env::RailPolicy::Adaptive
    #[default]
    Urgent,
    /// Its data, if that is more than 64 KiB, travels in pieces of as many bytes. On each lane two of them at most wait
    /// on the path at a time, besides those that fill it; urgent operations wait for no others. Unlike a stripe, a piece
    /// takes whichever lane has room.
    Bulk,
}

/// The priority of later operations, which any thread may set. At first they are urgent.
#[derive(Debug, Default)]
pub struct AtomicPriority {
    bulk: AtomicBool,
}

impl AtomicPriority {
    /// Sets it.
    pub fn store(&self, priority: Priority) {
        self.bulk.store(priority == Priority::Bulk, Ordering::Relaxed);
    }

    /// Returns it.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Priority {
        if self.bulk.load(Ordering::Relaxed) { Priority::Bulk } else { Priority::Urgent }
    }
}

/// The source of a put.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// Memory that stays unchanged until the operation is complete.
    Stable(*const u8),
    /// Memory that the caller may change as soon as `submit` returns; at most [`Endpoint::copy_limit`] bytes.
    ///
    /// [`Endpoint::copy_limit`]: crate::endpoint::Endpoint::copy_limit
    Copied(*const u8),
}

impl Source {
    /// The address of the bytes.
    #[inline]
    #[must_use]
    pub fn ptr(self) -> *const u8 {
        match self {
            Source::Stable(ptr) | Source::Copied(ptr) => ptr,
        }
    }
}

/// How a signal word is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Symmetric offset of the 64-bit word.
    pub offset: u64,
    /// The value to set or add.
    pub value: u64,
    /// `Set` or `Add`.
    pub op: AmoOp,
}

/// One operation on a peer's symmetric memory.
#[derive(Debug, Clone, Copy)]
pub enum Command {
    /// Writes `len` bytes to symmetric offset `dest`.
    Put {
        /// Symmetric offset of the destination.
        dest: u64,
        /// The source.
        source: Source,
        /// The length in bytes.
        len: u64,
    },
    /// Reads `len` bytes from symmetric offset `source`.
    Get {
        /// Symmetric offset of the source.
        source: u64,
        /// The local destination, which no other code accesses until the operation is complete.
        dest: *mut u8,
        /// The length in bytes.
        len: u64,
    },
    /// Writes, then updates the signal once the bytes are visible.
    PutSignal {
        /// Symmetric offset of the destination.
        dest: u64,
        /// The source.
        source: Source,
        /// The length in bytes.
        len: u64,
        /// The signal update.
        signal: Signal,
    },
    /// Performs an atomic on one word.
    Amo {
        /// Symmetric offset of the word.
        offset: u64,
        /// Its type.
        ty: AmoType,
        /// The operation.
        op: AmoOp,
        /// Operand bits.
        operand: u64,
        /// Comparand bits.
        compare: u64,
        /// Whether the old value is returned, and where it is stored besides [`Finished::result`].
        fetch: Fetch,
    },
    /// Asks the target agent for work that takes longer than a message, and completes when the agent reports its end.
    ///
    /// It is only for memory that no rail reaches. The endpoint does not know the offsets in it and does not check
    /// them.
    AgentRequest(AgentRequest),
}

/// A request to a target agent, with the fields of the wire format.
#[derive(Debug, Clone, Copy)]
pub struct AgentRequest {
    /// The kind of request.
    pub kind: RequestKind,
    /// The AMO, or the update of the signal.
    pub op: AmoOp,
    /// The word's type.
    pub ty: AmoType,
    /// Symmetric offset of the word or destination.
    pub offset: u64,
    /// Operand or signal value.
    pub operand: u64,
    /// Comparand, or the signal word's symmetric offset.
    pub second: u64,
    /// The payload.
    pub payload: Payload,
}

/// The payload of an [`AgentRequest`]; at most [`Endpoint::copy_limit`](crate::endpoint::Endpoint::copy_limit) bytes.
#[derive(Debug, Clone, Copy)]
pub enum Payload {
    /// Host memory that stays unchanged until the operation is complete.
    Stable(*const u8, usize),
    /// The first bytes of this array, as many as the count says.
    Inline([u8; 16], u8),
}

impl Payload {
    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match *self {
            Payload::Stable(_, len) => len,
            Payload::Inline(_, len) => usize::from(len).min(16),
        }
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The destination of an AMO's old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// The caller does not want it.
    No,
    /// It is returned in [`Finished::result`].
    Returned,
    /// It is stored at an address (of the AMO's type), and returned.
    Stored(*mut u8),
}

impl Command {
    /// The kind of operation, for errors.
    #[inline]
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Command::Put { .. } => Operation::Put,
            Command::Get { .. } => Operation::Get,
            Command::PutSignal { .. } => Operation::PutSignal,
            Command::Amo { .. } => Operation::Amo,
            Command::AgentRequest(ask) => match ask.kind {
                RequestKind::Amo => Operation::Amo,
                RequestKind::PutSignal | RequestKind::PullSignal => Operation::PutSignal,
                RequestKind::Put | RequestKind::Pull => Operation::Put,
                RequestKind::Push | RequestKind::Get => Operation::Get,
                RequestKind::Flush
                | RequestKind::Introduce
                | RequestKind::Move
                | RequestKind::Broken
                | RequestKind::Offer
                | RequestKind::Accept
                | RequestKind::Ping
                | RequestKind::Pong => Operation::Quiet,
            },
        }
    }

    /// The local buffer; null if it has none.
    #[must_use]
    pub fn local(&self) -> *mut u8 {
        match *self {
            Command::Put { source, .. } | Command::PutSignal { source, .. } => source.ptr().cast_mut(),
            Command::Get { dest, .. } => dest,
            Command::Amo { fetch: Fetch::Stored(to), .. } => to,
            Command::Amo { .. } | Command::AgentRequest(_) => std::ptr::null_mut(),
        }
    }

    /// The highest symmetric offset that it names.
    #[must_use]
    pub fn highest_offset(&self) -> u64 {
        match *self {
            Command::Put { dest: offset, .. } | Command::Get { source: offset, .. } | Command::Amo { offset, .. } => {
                offset
            }
            Command::PutSignal { dest, signal, .. } => dest.max(signal.offset),
            Command::AgentRequest(ask) => ask.offset.max(ask.second),
        }
    }

    /// The number of bytes moved.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Command::Put { len, .. } | Command::Get { len, .. } | Command::PutSignal { len, .. } => *len,
            Command::Amo { ty, .. } => ty.size() as u64,
            Command::AgentRequest(ask) => ask.payload.len() as u64,
        }
    }
}

/// The end of an operation that had a tag.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The issuer of the operation.
    pub issuer: Issuer,
    /// The tag of the operation.
    pub tag: u64,
    /// The old value of a fetching AMO, else 0; or the error. The error is boxed to keep the successful result small.
    pub result: Result<u64, Box<Error>>,
}

impl Finished {
    /// Takes the end of an issuer's operation with this tag out of `many`, if it is there.
    #[inline]
    pub fn take(many: &mut Vec<Finished>, issuer: Issuer, tag: u64) -> Option<Finished> {
        let at = many.iter().rposition(|f| f.issuer == issuer && f.tag == tag)?;
        Some(many.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_issuer_gets_the_completion_of_its_own_operation() {
        let finished = |issuer, tag, value| Finished { issuer, tag, result: Ok(value) };
        let mut many = vec![finished(0, 1, 10), finished(1, 1, 11), finished(0, 2, 20), finished(1, 3, 30)];
        let mut take = |issuer, tag| Finished::take(&mut many, issuer, tag).and_then(|f| f.result.ok());
        assert_eq!(take(0, 3), None);
        assert_eq!([take(0, 1), take(1, 1), take(0, 2), take(0, 2)], [Some(10), Some(11), Some(20), None]);
        assert_eq!(take(1, 3), Some(30), "others' stay");
    }
}
