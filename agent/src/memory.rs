//! How programs name memory.

use symrail_proxy::session::memory::Memory;

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

impl Descriptor {
    /// Whether all of it is in this memory.
    pub(crate) fn is_inside(&self, memory: &Memory) -> bool {
        let front = self.address.checked_sub(memory.base());
        front.and_then(|front| front.checked_add(self.len)).is_some_and(|end| end <= memory.len())
    }
}
