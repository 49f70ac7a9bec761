//! Values by ranges of addresses, which may overlap. A search takes a few steps however many ranges there are, and one
//! more for each that holds, or nearly holds, the address.

use std::collections::BTreeMap;

/// Up to so many ranges are scanned, which takes less time than a search.
const FEW: usize = 8;

/// An address or an offset as a key. Tests count the comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At(pub u64);

impl Ord for At {
    #[inline]
    fn cmp(&self, other: &At) -> std::cmp::Ordering {
        #[cfg(test)]
        tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for At {
    #[inline]
    fn partial_cmp(&self, other: &At) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The bits of a range's length, its first address, and its id. Of the ranges whose lengths have as many bits, those
/// that reach an address begin near it: a long range that holds many short ones is searched apart from them.
type Key = (u32, At, u64);

/// Values by ranges and ids. A range and an id have one value.
#[derive(Debug)]
pub struct Ranges<T> {
    /// Lengths and values.
    entries: BTreeMap<Key, (u64, T)>,
    /// The bits of lengths that occur, as a set.
    bits: u128,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { entries: BTreeMap::new(), bits: 0 }
    }
}

impl<T> Ranges<T> {
    /// Enters the value of `len` bytes at `start`.
    pub fn insert(&mut self, start: u64, len: u64, id: u64, value: T) {
        self.bits |= 1 << bits(len);
        self.entries.insert((bits(len), At(start), id), (len, value));
    }

    /// Removes a value, if it is there.
    pub fn remove(&mut self, start: u64, len: u64, id: u64) -> Option<T> {
        let bits = bits(len);
        let (_, value) = self.entries.remove(&(bits, At(start), id))?;
        if self.entries.range((bits, At(0), 0)..=(bits, At(u64::MAX), u64::MAX)).next().is_none() {
            self.bits &= !(1 << bits);
        }
        Some(value)
    }

    /// The first addresses and lengths of all ranges.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.entries.iter().map(|((_, start, _), (len, _))| (start.0, *len))
    }

    /// What `find` returns for a range that holds an address (of several first for the shortest, by the bits of their
    /// lengths), given the number of bytes from there to the range's end;
    /// it is called until it returns something.
    #[inline]
    pub fn find_at<R>(&self, address: u64, mut find: impl FnMut(u64, &T) -> Option<R>) -> Option<R> {
        let of = |(&(_, start, _), (len, value)): (&Key, &(u64, T))| {
            let within = address.checked_sub(start.0).filter(|within| within < len)?;
            find(len - within, value)
        };
        if self.entries.len() <= FEW {
            self.entries.iter().find_map(of)
        } else {
            self.near(address, address).find_map(of)
        }
    }

    /// As [`Ranges::find_at`], but of several ranges for which `find` returns something that with the smallest id.
    pub fn first_at<R>(&self, address: u64, find: impl Fn(u64, &T) -> Option<R>) -> Option<R> {
        let of = |(&(_, start, id), (len, value)): (&Key, &(u64, T))| {
            let within = address.checked_sub(start.0).filter(|within| within < len)?;
            Some((id, find(len - within, value)?))
        };
        let first = if self.entries.len() <= FEW {
            self.entries.iter().filter_map(of).min_by_key(|(id, _)| *id)
        } else {
            self.near(address, address).filter_map(of).min_by_key(|(id, _)| *id)
        };
        first.map(|(_, found)| found)
    }

    /// The value of the range that holds `len` bytes at `start`: of several that with the last first address, and of
    /// those that with the largest id.
    pub fn holding(&self, start: u64, len: u64) -> Option<&T> {
        let end = start.checked_add(len)?;
        let holds = self.near(start, start).filter(|((_, first, _), (len, _))| first.0.saturating_add(*len) >= end);
        holds.max_by_key(|((_, first, id), _)| (first.0, *id)).map(|(_, (_, value))| value)
    }

    /// The values of all ranges that have one of `len` bytes at `start`.
    pub fn touching(&self, start: u64, len: u64) -> impl Iterator<Item = &T> {
        let last = start.saturating_add(len).checked_sub(1).filter(|_| len > 0);
        let near = last.into_iter().flat_map(move |last| self.near(start, last));
        near.filter_map(move |((_, first, _), (len, value))| (first.0.saturating_add(*len) > start).then_some(value))
    }

    /// The ranges that begin at `last` or before, except some that end before `first`.
    fn near(&self, first: u64, last: u64) -> impl Iterator<Item = (&Key, &(u64, T))> {
        let occurs = (0..=u64::BITS).filter(|bits| self.bits >> bits & 1 != 0);
        occurs.flat_map(move |bits| {
            let begins = first.saturating_sub(u64::MAX >> (u64::BITS - bits.max(1)));
            self.entries.range((bits, At(begins), 0)..=(bits, At(last), u64::MAX))
        })
    }
}

/// The bits of a length.
fn bits(len: u64) -> u32 {
    u64::BITS - len.leading_zeros()
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        pub static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// The comparisons of addresses that a call takes.
    pub fn comparisons(call: impl FnOnce()) -> u64 {
        let before = COMPARISONS.get();
        call();
        COMPARISONS.get() - before
    }

    proptest! {
        #[test]
        fn ranges_are_found_like_in_a_list(
            all in proptest::collection::vec((0u64..300, 0u64..90), 0..40),
            removed in proptest::collection::vec(0u64..40, 0..10),
            queries in proptest::collection::vec((0u64..400, 1u64..40), 20)
        ) {
            let mut list: Vec<(u64, u64, u64)> = all.into_iter().zip(0..).map(|((start, len), id)| (start, len, id)).collect();
            let mut ranges = Ranges::default();
            list.iter().for_each(|one| ranges.insert(one.0, one.1, one.2, *one));
            for id in removed {
                let found = list.iter().position(|one| one.2 == id).map(|at| list.remove(at));
                let (start, len, _) = found.unwrap_or((7, 7, 0));
                prop_assert_eq!(ranges.remove(start, len, id), found);
            }
            for (start, len) in queries {
                let (mut at, mut touching) = (Vec::new(), Vec::new());
                ranges.find_at(start, |left, one| -> Option<()> {
                    at.push((left, *one));
                    None
                });
                touching.extend(ranges.touching(start, len).copied());
                let first = ranges.first_at(start, |left, one| Some((left, *one)));
                at.sort_unstable_by_key(|(_, one)| one.2);
                prop_assert_eq!(first, at.first().copied());
                touching.sort_unstable_by_key(|one| one.2);
                let end = |one: &(u64, u64, u64)| one.0 + one.1;
                let of = list.iter().filter(|one| one.0 <= start && start < end(one));
                prop_assert_eq!(at, of.map(|one| (end(one) - start, *one)).collect::<Vec<_>>());
                let touches = |one: &&(u64, u64, u64)| one.0 < start + len && start < end(one);
                prop_assert_eq!(touching, list.iter().filter(touches).copied().collect::<Vec<_>>());
                let holding = list.iter().filter(|one| one.0 <= start && start + len <= end(one));
                prop_assert_eq!(ranges.holding(start, len), holding.max_by_key(|one| (one.0, one.2)));
            }
        }
    }

    #[test]
    fn a_long_range_around_many_short_ones_costs_no_scan() {
        let mut ranges = Ranges::default();
        ranges.insert(1 << 40, 1 << 36, 0, 0);
        for at in 0..10_000 {
            ranges.insert((1 << 40) + at * 8192, 4096, at + 1, at + 1);
        }
        let last = (1 << 40) + 9_999 * 8192;
        let steps = comparisons(|| {
            assert_eq!(ranges.holding(last + 4096, 8), Some(&0), "between two of them");
            assert_eq!(ranges.holding(last, 8), Some(&10_000));
            assert_eq!(ranges.touching(last, 8).count(), 2);
            assert_eq!(ranges.find_at(1 << 50, |_, _| Some(())), None);
        });
        assert!(steps < 4 * 2 * 2 * 3 * 14, "{steps} comparisons");
    }
}
