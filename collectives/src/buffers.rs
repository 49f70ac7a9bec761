//! The buffers of a collective.

/// Input and output, as the device names memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffers<M> {
    pub input: M,
    pub output: M,
    /// Bytes of a part: see [`Call::part`](crate::run::Call::part).
    pub part: u64,
}
