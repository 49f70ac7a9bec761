//! Completions that come out of order: which positions are done, and the prefix that is.

/// A window over the positions from the first one that is not complete.
#[derive(Debug)]
pub struct Window {
    /// Bit `position % capacity` is set while the position is done but something before it is not.
    bits: Box<[u64]>,
    completed: u64,
}

impl Window {
    /// A window of at least `positions` positions that starts at 0.
    #[must_use]
    pub fn new(positions: usize) -> Self {
        Self { bits: vec![0; positions.max(64).next_power_of_two() / 64].into(), completed: 0 }
    }

    /// The largest distance of a position from [`completed`](Self::completed).
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.bits.len() as u64 * 64
    }

    /// Every position before this one is done.
    #[must_use]
    #[inline]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Marks so many positions from `first` on as done. `false` when one of them lies outside of the window, or the first
    /// is so already; then nothing changes.
    #[inline]
    pub fn complete(&mut self, first: u64, count: u64) -> bool {
        let Some(distance) = first.checked_sub(self.completed) else { return false };
        if distance.saturating_add(count) > self.capacity() || self.is_done(first) {
            return false;
        }
        if distance > 0 {
            (first..first + count).for_each(|position| {
                let (word, bit) = self.place(position);
                self.bits[word] |= bit;
            });
            return true;
        }
        self.completed += count;
        self.advance();
        true
    }

    #[inline]
    fn is_done(&self, position: u64) -> bool {
        let (word, bit) = self.place(position);
        self.bits[word] & bit != 0
    }

    #[inline]
    fn place(&self, position: u64) -> (usize, u64) {
        let index = position & (self.capacity() - 1);
        ((index / 64) as usize, 1 << (index % 64))
    }

    /// Moves the prefix over everything that was done early.
    #[inline]
    fn advance(&mut self) {
        loop {
            let (word, bit) = self.place(self.completed);
            let shift = bit.trailing_zeros();
            let done = (self.bits[word] >> shift).trailing_ones();
            if done == 0 {
                return;
            }
            self.bits[word] &= !((u64::MAX >> (64 - done)) << shift);
            self.completed += u64::from(done);
            if shift + done < 64 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_window_advances_at_once() {
        let mut window = Window::new(128);
        for lap in 0..3 {
            let first = lap * 128;
            for position in first + 1..first + 128 {
                assert!(window.complete(position, 1));
                assert_eq!(window.completed(), first);
            }
            assert!(!window.complete(first + 128, 1), "outside of the window");
            assert!(!window.complete(first + 5, 1), "done already");
            assert!(window.complete(first, 1));
            assert_eq!(window.completed(), first + 128);
        }
        assert!(!window.complete(3, 1), "long past");
    }

    proptest! {
        #[test]
        fn the_prefix_is_what_a_set_says(runs in proptest::collection::vec((0u64..80, 1u64..20), 1..600)) {
            let mut window = Window::new(64);
            let mut done = BTreeSet::new();
            let mut prefix = 0;
            for (distance, count) in runs {
                // A run is as long as it can be without what is done already.
                let first = prefix + distance;
                let count = (1..=count).take_while(|n| *n == 1 || !done.contains(&(first + n - 1))).count() as u64;
                let fits = distance + count <= 64 && !done.contains(&first);
                prop_assert_eq!(window.complete(first, count), fits);
                if fits {
                    done.extend(first..first + count);
                }
                while done.contains(&prefix) {
                    prefix += 1;
                }
                prop_assert_eq!(window.completed(), prefix);
            }
        }
    }
}
