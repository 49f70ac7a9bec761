//! A table of live entries with ids that are never mistaken for one another.
//!
//! An id is an index and a generation. Ids travel to peers and come back from them, so a stale or invented one
//! must not reach an entry that it does not name: [`Slab::get`] checks the generation.

/// Identifies an entry: generation in the high half, index in the low half.
pub type Id = u64;

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// The table. Entries keep their index, freed ones are re-used last in, first out.
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Slab<T> {
    /// An empty table that has room for `limit` entries, and allocates again only beyond them.
    pub fn with_limit(limit: usize) -> Self {
        Slab { entries: Vec::with_capacity(limit), free: Vec::with_capacity(limit), limit }
    }

    /// Whether there is room for another entry. It is for callers to ask: one more is taken all the same.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.entries.len() - self.free.len() < self.limit
    }

    /// Whether no entry is live.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Adds an entry.
    #[inline]
    pub fn insert(&mut self, value: T) -> Id {
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            entry.value = Some(value);
            return id(index, entry.generation);
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 1, value: Some(value) });
        id(index, 1)
    }

    /// The entry that `id` names, if it is still there.
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let entry = self.entries.get_mut(id as u32 as usize)?;
        if u64::from(entry.generation) != id >> 32 {
            return None;
        }
        entry.value.as_mut()
    }

    /// The entry that `id` names, if it is still there.
    #[inline]
    pub fn get(&self, id: Id) -> Option<&T> {
        let entry = self.entries.get(id as u32 as usize)?;
        if u64::from(entry.generation) != id >> 32 {
            return None;
        }
        entry.value.as_ref()
    }

    /// Takes the entry out; its id names nothing from now on.
    #[inline]
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let index = id as u32;
        let entry = self.entries.get_mut(index as usize)?;
        if u64::from(entry.generation) != id >> 32 {
            return None;
        }
        let value = entry.value.take()?;
        // Generation 0 is skipped so that no id is ever 0.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.free.push(index);
        Some(value)
    }

    /// Ids of all live entries.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        self.entries.iter().enumerate().filter(|(_, e)| e.value.is_some()).map(|(i, e)| id(i as u32, e.generation))
    }
}

fn id(index: u32, generation: u32) -> Id {
    u64::from(generation) << 32 | u64::from(index)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn stale_and_invented_ids_name_nothing() {
        let mut slab = Slab::with_limit(2);
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_eq!(a as u32, b as u32, "the index is used again");
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get_mut(b), Some(&mut 'b'));
        assert_eq!(slab.get_mut(u64::MAX), None);
        assert_eq!(slab.get_mut(0), None);
        assert_eq!(slab.ids().collect::<Vec<_>>(), [b]);
    }

    #[test]
    fn there_is_room_up_to_the_limit() {
        let mut slab = Slab::with_limit(2);
        assert!(slab.is_empty() && slab.has_room());
        let first = slab.insert('a');
        assert!(!slab.is_empty() && slab.has_room());
        slab.insert('b');
        assert!(!slab.has_room());
        let beyond = slab.insert('c');
        assert_eq!(slab.get(beyond), Some(&'c'), "the limit is for who asks");
        slab.remove(first);
        assert!(!slab.has_room());
        slab.remove(beyond);
        assert!(slab.has_room() && !slab.is_empty());
    }
}
