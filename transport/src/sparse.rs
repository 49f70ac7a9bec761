//! Tables by PE or destination of which most entries are never used: a job may have many more PEs than a PE talks to.
//!
//! A number gets the next free slot when it is first used. An unused entry costs a bit more than one bit: a share of
//! the null pointer to its page of slot numbers.

/// Numbers per page of slots.
const PAGE: usize = 64;

/// The slots of numbers. Slot 0 belongs to no number.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
    /// The number of each slot, from slot 1 on.
    numbers: Vec<u32>,
}

impl Slots {
    /// The slot of a number; 0 if it has none.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, number: u32) -> usize {
        match self.pages.get(number as usize / PAGE) {
            Some(Some(page)) => page[number as usize % PAGE] as usize,
            _ => 0,
        }
    }

    /// The slot of a number, which gets one if it has none. Slots are assigned in order.
    pub fn enter(&mut self, number: u32) -> usize {
        let found = self.find(number);
        if found > 0 {
            return found;
        }
        let (page, at) = (number as usize / PAGE, number as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize(page + 1, None);
        }
        self.numbers.push(number);
        let slot = self.numbers.len();
        self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]))[at] = slot as u32;
        slot
    }

    /// The number that has the slot `at + 1`.
    #[inline]
    #[must_use]
    pub fn number(&self, at: usize) -> Option<u32> {
        self.numbers.get(at).copied()
    }

    /// All numbers that have slots, in slot order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.numbers.iter().copied()
    }
}

/// A table by number. An entry that was never changed has the default value.
#[derive(Debug, Clone)]
pub struct Sparse<T> {
    slots: Slots,
    /// Entries by slot.
    entries: Vec<T>,
}

impl<T: Default> Default for Sparse<T> {
    fn default() -> Self {
        Sparse { slots: Slots::default(), entries: vec![T::default()] }
    }
}

impl<T: Default> Sparse<T> {
    /// The entry of a number.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, number: u32) -> &T {
        &self.entries[self.slots.find(number)]
    }

    /// The entry of a number to be changed, if it was ever changed.
    #[inline]
    pub fn find_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.find(number) {
            0 => None,
            slot => Some(&mut self.entries[slot]),
        }
    }

    /// The entry of a number to be changed.
    pub fn enter(&mut self, number: u32) -> &mut T {
        let slot = self.slots.enter(number);
        if slot == self.entries.len() {
            self.entries.push(T::default());
        }
        &mut self.entries[slot]
    }

    /// The numbers whose entries were changed, in the order of their first change.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sparse_table_is_a_table(writes in proptest::collection::vec((0u32..5000, 1u8..), 0..200)) {
            let (mut sparse, mut full) = (Sparse::default(), vec![0u8; 5000]);
            let mut order = Vec::new();
            for (number, value) in writes {
                if full[number as usize] == 0 {
                    order.push(number);
                }
                (*sparse.enter(number), full[number as usize]) = (value, value);
            }
            prop_assert!((0..5000).all(|number| *sparse.get(number) == full[number as usize]));
            prop_assert!((0..5000).all(|number| sparse.find_mut(number).is_some() == (full[number as usize] > 0)));
            prop_assert_eq!(sparse.slots().numbers().collect::<Vec<_>>(), order);
        }
    }

    #[test]
    fn what_is_not_there_is_the_default() {
        let mut table = Sparse::<u16>::default();
        assert_eq!((*table.get(u32::MAX), table.find_mut(7)), (0, None));
        *table.enter(7) += 1;
        assert_eq!((*table.get(7), *table.get(6), *table.get(7 + 64)), (1, 0, 0));
        assert_eq!((table.slots().number(0), table.slots().number(1)), (Some(7), None));
    }
}
