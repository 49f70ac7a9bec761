//! Registered memory: this agent's, and that of peers as far as it is known here.

use std::collections::BTreeMap;

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

/// Memory of one agent, found by address.
pub(crate) struct Table<T> {
    /// By the first address and the number of the registration.
    entries: BTreeMap<(u64, MemoryId), (u64, T)>,
    /// The length of the longest.
    longest: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { entries: BTreeMap::new(), longest: 0 }
    }
}

impl<T> Table<T> {
    pub fn insert(&mut self, memory: &Memory, value: T) {
        self.longest = self.longest.max(memory.len());
        self.entries.insert((memory.base(), memory.offset()), (memory.len(), value));
    }

    pub fn remove(&mut self, base: u64, id: MemoryId) -> Option<T> {
        let removed = self.entries.remove(&(base, id)).map(|(_, value)| value);
        if self.entries.is_empty() {
            self.longest = 0;
        }
        removed
    }

    pub fn clear(&mut self) {
        (self.entries, self.longest) = (BTreeMap::new(), 0);
    }

    pub fn descriptors(&self) -> impl Iterator<Item = Descriptor> {
        self.entries.iter().map(|((address, _), (len, _))| Descriptor { address: *address, len: *len })
    }

    /// The registration that holds all bytes of a descriptor: of several the one with the nearest first address, and
    /// the latest of those.
    pub fn find(&self, Descriptor { address, len }: Descriptor) -> Option<&T> {
        let end = address.checked_add(len)?;
        let before = self.entries.range(..=(address, MemoryId::MAX)).rev();
        let near = before.take_while(|((base, _), _)| end - base <= self.longest);
        near.map(|((base, _), (bytes, value))| (base.saturating_add(*bytes), value))
            .find_map(|(last, value)| (last >= end).then_some(value))
    }

    /// All registrations that have a byte of a descriptor.
    pub fn touching(&self, Descriptor { address, len }: Descriptor) -> impl Iterator<Item = &T> {
        let longest = self.longest;
        let before = self.entries.range(..(address.saturating_add(len), 0)).rev();
        let near = before.take_while(move |((base, _), _)| base.saturating_add(longest) > address);
        near.filter_map(move |((base, _), (bytes, value))| (base.saturating_add(*bytes) > address).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use symrail_proxy::session::memory::HANDLE_SIZE;

    use super::*;

    /// A handle with these fields, as [`Memory::encode`] lays them out.
    fn memory(offset: u64, base: u64, len: u64) -> Memory {
        let mut bytes = [0; HANDLE_SIZE];
        bytes[..4].copy_from_slice(b"SyM1");
        bytes[12] = 1;
        for (at, value) in [(16, offset), (24, len), (32, base)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        Memory::decode(&bytes).unwrap()
    }

    #[test]
    fn a_descriptor_is_found_in_the_registration_that_holds_it() {
        let mut table = Table::default();
        let all = [memory(1, 1000, 1000), memory(2, 1100, 50), memory(3, 1100, 50), memory(4, 5000, 8)];
        for (memory, name) in all.iter().zip(["whole", "old", "new", "far"]) {
            table.insert(memory, name);
        }
        let found = |table: &Table<&'static str>, address, len| table.find(Descriptor { address, len }).copied();
        assert_eq!(found(&table, 1100, 50), Some("new"));
        assert_eq!(found(&table, 1100, 51), Some("whole"));
        assert_eq!(found(&table, 1999, 1), Some("whole"));
        assert_eq!((found(&table, 1999, 2), found(&table, 999, 1), found(&table, u64::MAX, 2)), (None, None, None));
        assert_eq!(found(&table, 5000, 8), Some("far"));
        let touching = |address, len| table.touching(Descriptor { address, len }).copied().collect::<Vec<_>>();
        assert_eq!(touching(1100, 50), ["new", "old", "whole"]);
        assert_eq!(touching(1000, 100), ["whole"]);
        assert_eq!((touching(1149, 2), touching(2000, 3000)), (vec!["new", "old", "whole"], vec![]));
        assert_eq!(table.remove(1100, 3), Some("new"));
        assert_eq!(found(&table, 1100, 50), Some("old"));
    }
}
