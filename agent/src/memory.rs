//! How programs name memory.

/// The number of a registration. An agent gives none twice.
pub type MemoryId = u64;

/// Bytes in the address space of an agent's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The address of the first byte.
    pub address: u64,
    /// The length in bytes.
    pub len: u64,
}
