//! How much is done: sizes, iterations, and where in the area things are.

use std::time::Duration;

use symrail_transport::env::kinds::{Kind, Size};

use super::carrier::area;
use super::catalog::{Sizes, TESTS, Test, Work};
use super::error::{Error, Result};

/// Up to here a size counts as small.
const SMALL: usize = 8 << 10;
/// The longest that one size is timed, unless iterations are given.
const BUDGET: Duration = Duration::from_secs(1);
/// What the window of a bandwidth test may take, so that large sizes do not need more memory than the machine has.
const WINDOW_BYTES: usize = 16 << 20;
/// The most operations of a window.
const LARGEST_WINDOW: usize = 1024;
/// The largest size unless one is given.
pub const DEFAULT_MAX: usize = 4 << 20;

/// What the user wants.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The smallest size in bytes.
    pub min: Option<usize>,
    /// The largest size in bytes.
    pub max: Option<usize>,
    /// Iterations: operations of latency tests, windows of others.
    pub iterations: Option<u64>,
    /// Iterations before those.
    pub warmup: Option<u64>,
    /// Operations in a window.
    pub window: Option<usize>,
    /// Single operations, each some milliseconds after the last, to a target that does this meanwhile.
    pub target: Option<Target>,
}

/// What the target of single operations does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Waits in the library.
    Waits,
    /// Computes, and does not call the library.
    Computes,
}

impl Plan {
    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<()> {
        let (min, max) = self.range();
        if min == 0 || min > max {
            return Err(Error::Arguments(format!(
                "there are no sizes from {min} to {max} bytes; -b is at least 1 and at most -e"
            )));
        }
        if let Some(window) = self.window
            && !(1..=LARGEST_WINDOW).contains(&window)
        {
            return Err(Error::Arguments(format!("-W {window}: a window has 1 to {LARGEST_WINDOW} operations")));
        }
        if self.iterations == Some(0) {
            return Err(Error::Arguments("-i 0: there must be an iteration to measure".into()));
        }
        Ok(())
    }

    /// What a test does, with the window that was asked for.
    #[must_use]
    pub fn work(&self, test: &Test) -> Work {
        match (test.work, self.window) {
            (Work::PutWindows(_), Some(window)) => Work::PutWindows(window),
            (Work::GetWindows(_), Some(window)) => Work::GetWindows(window),
            (Work::AddWindows(_), Some(window)) => Work::AddWindows(window),
            (work, _) => work,
        }
    }

    fn range(&self) -> (usize, usize) {
        let min = self.min.unwrap_or(1);
        (min, self.max.unwrap_or(DEFAULT_MAX.max(min)))
    }

    /// The sizes of a test: powers of two from the smallest to the largest, and both of these.
    #[must_use]
    pub fn sizes(&self, test: &Test) -> Vec<usize> {
        match test.sizes {
            Sizes::Word => vec![8],
            Sizes::None => vec![0],
            Sizes::Range => {
                let (min, max) = self.range();
                let powers = (0..usize::BITS - 1).map(|bit| 1 << bit).filter(|size| *size > min && *size < max);
                let mut sizes: Vec<usize> = std::iter::once(min).chain(powers).chain([max]).collect();
                sizes.dedup();
                sizes
            }
        }
    }

    /// How often a test's call is timed at most, and for how long.
    #[must_use]
    pub fn limits(&self, size: usize, micros_per_call: f64) -> (u64, Duration) {
        match self.iterations {
            Some(iterations) => (iterations, Duration::MAX),
            None => {
                let usual = if size <= SMALL { 10_000 } else { 1_000 };
                // What takes nanoseconds needs more, in batches, for quantiles to mean something.
                let many = 20_000.0 / micros_per_call.max(1e-3);
                (usual.max(many as u64), BUDGET)
            }
        }
    }

    /// Calls before the clock runs.
    #[must_use]
    pub fn warmup(&self, size: usize) -> u64 {
        self.warmup.unwrap_or(if size <= SMALL { 100 } else { 10 })
    }

    /// Bytes of the area that `tests` need with `n_pes` PEs.
    #[must_use]
    pub fn area(&self, tests: &[&Test], n_pes: u32) -> usize {
        let span = |test: &&Test| {
            self.sizes(test).into_iter().map(|size| Spread::of(self.work(test), size, n_pes).span()).max()
        };
        let largest = tests.iter().filter_map(span).max().unwrap_or(0);
        area::SOURCE + 2 * largest.next_multiple_of(4096)
    }
}

/// Where the messages of one call lie: side by side, so that they do not share cache lines more than they must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// How many there are.
    pub slots: usize,
    /// From one to the next, in bytes.
    pub stride: usize,
    /// Bytes of each.
    pub size: usize,
}

impl Spread {
    /// For work on messages of `size` bytes.
    #[must_use]
    pub fn of(work: Work, size: usize, n_pes: u32) -> Spread {
        let stride = size.next_multiple_of(8);
        let slots = match work {
            Work::PutWindows(window) | Work::GetWindows(window) => window.min(WINDOW_BYTES / stride.max(1)).max(1),
            Work::PutStream => 64,
            Work::FencedPuts => 2,
            Work::AllToAll => n_pes as usize,
            _ => 1,
        };
        Spread { slots, stride, size }
    }

    /// Bytes of all.
    #[must_use]
    pub fn span(&self) -> usize {
        self.slots * self.stride
    }

    /// Where the message of operation `i` is sent from.
    #[inline]
    #[must_use]
    pub fn source(&self, i: usize) -> usize {
        area::SOURCE + i % self.slots * self.stride
    }

    /// Where it goes to.
    #[inline]
    #[must_use]
    pub fn dest(&self, i: usize) -> usize {
        area::SOURCE + self.span().next_multiple_of(4096) + i % self.slots * self.stride
    }
}

/// Reads a size, written as in the environment.
///
/// # Errors
/// What would be accepted.
pub fn size(text: &str) -> Result<usize, String> {
    type Accepted = Size<1, { 1 << 40 }>;
    Accepted::parse(text.trim()).ok_or_else(|| format!("{text:?} is no size; use {}", Accepted::accepted()))
}

/// The names that are accepted for tests.
#[must_use]
pub fn test_names() -> Vec<&'static str> {
    TESTS.iter().map(|test| test.name).chain(["all"]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::catalog::find;
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_and_both_ends() {
        let test = find("put-lat").into_iter().next();
        let sizes = |min, max| test.map(|test| Plan { min, max, ..Plan::default() }.sizes(test)).unwrap_or_default();
        assert_eq!(sizes(Some(8), Some(8)), [8]);
        assert_eq!(sizes(Some(3), Some(20)), [3, 4, 8, 16, 20]);
        assert_eq!(sizes(None, None).len(), 23);
        assert_eq!(sizes(Some(8 << 20), None), [8 << 20]);
    }

    #[test]
    fn sizes_are_read_or_refused_in_words() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1M"), Ok(1 << 20));
        assert_eq!((size("4KiB"), size("1T")), (Ok(4096), Ok(1 << 40)));
        for wrong in ["", "x", "-1", "0", "K", "2T", "99999999999999999999", "9999999999G"] {
            assert!(size(wrong).is_err_and(|why| why.contains("number of bytes from 1 to 1T")), "{wrong}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let plan = |min, max| Plan { min: Some(min), max: Some(max), ..Plan::default() };
        assert!(plan(8, 8).check().is_ok());
        assert!(plan(0, 8).check().is_err());
        assert!(plan(16, 8).check().is_err());
        assert!(Plan { iterations: Some(0), ..Plan::default() }.check().is_err());
        assert!(Plan { min: Some(64 << 20), ..Plan::default() }.check().is_ok());
    }

    #[test]
    fn messages_do_not_overlap_and_fit_the_area() {
        for test in TESTS {
            let plan = Plan { min: Some(3), max: Some(40 << 20), ..Plan::default() };
            for size in plan.sizes(test) {
                let spread = Spread::of(test.work, size, 5);
                assert!(spread.stride >= size && spread.stride.is_multiple_of(8));
                assert!(spread.source(spread.slots - 1) + size <= spread.dest(0));
                assert!(spread.dest(spread.slots - 1) + size <= plan.area(&[test], 5), "{} {size}", test.name);
            }
        }
    }
}
