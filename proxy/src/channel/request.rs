//! Requests of devices.

use symrail_core::{AmoOp, AmoType, Pe, SignalOp};

use super::codec::Width;
use super::error::Malformed;

/// A request, as a producer pushes it and the consumer takes it. Offsets are symmetric, sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// No operation; completes at once.
    Nop,
    /// Copies `size` bytes from `local` to `offset` at `pe`.
    Put {
        /// The target.
        pe: Pe,
        /// The destination.
        offset: u64,
        /// The source.
        local: Local,
        /// The length.
        size: u64,
        /// The reply entry, if a thread waits for this request alone.
        reply: Option<ReplyTo>,
    },
    /// Writes the low `width` bytes of `value` to `offset` at `pe`.
    P {
        /// The target.
        pe: Pe,
        /// The destination.
        offset: u64,
        /// The length.
        width: Width,
        /// The value's bits.
        value: u64,
    },
    /// Copies `size` bytes from `offset` at `pe` to `local`.
    Get {
        /// The source's PE.
        pe: Pe,
        /// The source.
        offset: u64,
        /// The destination.
        local: Local,
        /// The length.
        size: u64,
        /// The reply entry, if a thread waits for this request alone.
        reply: Option<ReplyTo>,
    },
    /// Reads `width` bytes from `offset` at `pe` into the reply's value, zero-extended.
    G {
        /// The source's PE.
        pe: Pe,
        /// The source.
        offset: u64,
        /// The length.
        width: Width,
        /// The destination of the value.
        reply: ReplyTo,
    },
    /// A put, and then an update of the 64-bit signal word at `signal` that is not visible before the data.
    PutSignal {
        /// The target.
        pe: Pe,
        /// The destination.
        offset: u64,
        /// The source.
        local: Local,
        /// The length; 0 updates the signal only.
        size: u64,
        /// The signal word's offset.
        signal: u64,
        /// The update of the signal word.
        op: SignalOp,
        /// The operand of the update.
        value: u64,
        /// The reply entry, if a thread waits for this request alone.
        reply: Option<ReplyTo>,
    },
    /// An atomic without a result. Never a [`AmoOp::Fetch`].
    Amo {
        /// The target.
        pe: Pe,
        /// The word's offset.
        offset: u64,
        /// The word's type.
        ty: AmoType,
        /// The operation; it is defined on the type.
        op: AmoOp,
        /// The operand's bits.
        operand: u64,
        /// The comparand's bits; 0 unless the operation compares.
        compare: u64,
    },
    /// An atomic whose old value, zero-extended, is the reply's value.
    FetchAmo {
        /// The target.
        pe: Pe,
        /// The word's offset.
        offset: u64,
        /// The word's type.
        ty: AmoType,
        /// The operation; it is defined on the type.
        op: AmoOp,
        /// The operand's bits; 0 for [`AmoOp::Fetch`].
        operand: u64,
        /// The comparand's bits; 0 unless the operation compares.
        compare: u64,
        /// The destination of the old value.
        reply: ReplyTo,
    },
    /// Orders later requests of this channel behind earlier ones, per destination. Completes at once.
    Fence,
    /// A malformed slot. The consumer reports it with [`fail`](super::Consumer::fail).
    Invalid {
        /// Chunk 0's `w0`.
        w0: u64,
        /// The reason.
        why: Malformed,
    },
}

/// Memory of the requester's PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// An address in the symmetric heap or in a registered buffer.
    Address(u64),
    /// An offset in the symmetric heap.
    Symmetric(u64),
    /// The first bytes of this, as many as the size and at most 8: the source of a put, in the slot.
    Value(u64),
}

/// A reply entry and the generation that the requester waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    /// The entry.
    pub index: u32,
    /// 31 bits, chosen by the requester; differs from that of the entry's previous use.
    pub generation: u32,
}
