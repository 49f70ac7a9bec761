//! Errors of creating channels, of pushing requests, and of decoding slots.

/// Why a channel could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A capacity is out of range.
    #[error("a channel with {value} {what} cannot be made: use {accepted}")]
    Capacity {
        /// Slots or reply entries.
        what: &'static str,
        /// The requested value.
        value: usize,
        /// A description of accepted values.
        accepted: &'static str,
    },
    /// The system provides no memory.
    #[error("no {bytes} bytes of memory for a channel: {source}; use fewer slots or channels (SYMRAIL_PROXY_CHANNELS)")]
    Memory {
        /// The requested size.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system provides no event descriptor.
    #[error("no event descriptor for a channel: {0}; raise the limit of open files")]
    Doorbell(std::io::Error),
}

/// A value that does not fit into a slot, or that is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A number with more bits than its field.
    #[error("{field} {value:#x} does not fit: a request has {bits} bits for it")]
    TooLarge {
        /// The name of the field.
        field: &'static str,
        /// The given value.
        value: u64,
        /// The field's size.
        bits: u32,
    },
    /// An atomic operation that is not defined on its type, or that has no effect.
    #[error("{what} is not an atomic operation: {remedy}")]
    Amo {
        /// The requested value.
        what: &'static str,
        /// The alternative.
        remedy: &'static str,
    },
    /// [`Request::Invalid`](super::Request::Invalid) is a result of a consumer, and no producer may push it.
    #[error("an invalid request cannot be pushed")]
    Invalid,
}

/// Why a request was not pushed. Nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// All slots hold requests that the engine has not taken yet.
    #[error("all {slots} slots of the channel are taken; is the engine running?")]
    Full {
        /// The channel's capacity.
        slots: usize,
    },
    /// The request cannot be encoded.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The error in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The operation does not exist.
    #[error("opcode {0} does not exist")]
    Opcode(u8),
    /// Bits that must be zero are not.
    #[error("reserved bits are set")]
    Reserved,
    /// The mask names other chunks than the operation needs.
    #[error("chunk mask {given:#x} where {needed:#x} is needed")]
    Chunks {
        /// The value in the slot.
        given: u8,
        /// The value that the operation needs.
        needed: u8,
    },
    /// The type, size or kind of local buffer does not exist.
    #[error("type or size {0} does not exist for this operation")]
    Type(u8),
    /// The atomic operation does not exist, or not on this type.
    #[error("atomic operation {0} does not exist for this operation and type")]
    Op(u8),
    /// An offset with more than 63 bits.
    #[error("an offset has more than 63 bits")]
    Offset,
}
