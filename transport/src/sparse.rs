//! Tables by PE or destination of which most entries are never used: a job may have many more PEs than a PE talks to.
//!
//! A number gets a free slot when it is first used, and returns it when it is forgotten. An unused entry costs a bit more
//! than one bit: a share of the null pointer to its page of slot numbers.

/// Numbers per page of slots.
const PAGE: usize = 64;

/// In the place of the number of a slot that is free. Tables have no entry with this number.
const FREE: u32 = u32::MAX;

/// The slots of numbers below [`u32::MAX`]. Slot 0 belongs to no number.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
    /// The number of each slot, from slot 1 on.
    numbers: Vec<u32>,
    /// Slots whose numbers were forgotten.
    free: Vec<u32>,
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

    /// The slot of a number, which gets one if it has none: the one that became free last, or else the next in order.
    pub fn enter(&mut self, number: u32) -> usize {
        let found = self.find(number);
        if found > 0 {
            return found;
        }
        let (page, at) = (number as usize / PAGE, number as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize(page + 1, None);
        }
        let slot = self.free.pop().map_or(self.numbers.len() + 1, |slot| slot as usize);
        if slot > self.numbers.len() {
            self.numbers.push(number);
        } else {
            self.numbers[slot - 1] = number;
        }
        self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]))[at] = slot as u32;
        slot
    }

    /// Takes the slot of a number away, and returns it; 0 if it has none.
    pub fn leave(&mut self, number: u32) -> usize {
        let Some(entry) = self.pages.get_mut(number as usize / PAGE) else { return 0 };
        let Some(page) = entry else { return 0 };
        let slot = std::mem::take(&mut page[number as usize % PAGE]);
        if slot > 0 {
            self.numbers[slot as usize - 1] = FREE;
            self.free.push(slot);
            if page.iter().all(|&slot| slot == 0) {
                *entry = None;
            }
        }
        slot as usize
    }

    /// How many slots there are beside slot 0, free ones included.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// The number that has the slot `at + 1`, if it is not free.
    #[inline]
    #[must_use]
    pub fn number(&self, at: usize) -> Option<u32> {
        self.numbers.get(at).copied().filter(|&number| number != FREE)
    }

    /// All numbers that have slots, in slot order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.numbers.iter().copied().filter(|&number| number != FREE)
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

    /// Gives an entry the default value again, and its memory to the next number that is entered.
    pub fn forget(&mut self, number: u32) {
        let slot = self.slots.leave(number);
        if slot > 0 {
            self.entries[slot] = T::default();
        }
    }

    /// The numbers whose entries were changed. While none is forgotten, they have the order of their first change.
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

    proptest! {
        #[test]
        fn forgotten_entries_are_the_default_and_their_slots_are_used_again(
            steps in proptest::collection::vec((0u32..500, 0u8..4), 0..300),
        ) {
            let (mut sparse, mut full) = (Sparse::default(), vec![0u8; 500]);
            let mut most = 0;
            for (number, value) in steps {
                full[number as usize] = value;
                if value == 0 { sparse.forget(number) } else { *sparse.enter(number) = value }
                most = most.max(full.iter().filter(|&&value| value > 0).count());
            }
            prop_assert!((0..500).all(|number| *sparse.get(number) == full[number as usize]));
            let mut numbers: Vec<u32> = sparse.slots().numbers().collect();
            numbers.sort_unstable();
            prop_assert_eq!(&numbers, &(0..500).filter(|&n| full[n as usize] > 0).collect::<Vec<_>>());
            prop_assert_eq!(sparse.slots().count(), most);
            prop_assert_eq!(sparse.slots().pages.iter().flatten().count(), {
                numbers.iter_mut().for_each(|number| *number /= PAGE as u32);
                numbers.dedup();
                numbers.len()
            });
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
