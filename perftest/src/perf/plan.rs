//! The amount of work: sizes, iterations, and offsets in the area.

use std::time::Duration;

use symrail_transport::env::kinds::{Kind, Size};

use super::backend::area;
use super::catalog::{Sizes, TESTS, Test, Work};
use super::error::{Error, Result};
use super::heap;

/// Sizes up to this count as small.
const SMALL: usize = 8 << 10;
/// The longest that one size is timed, unless iterations are given.
const BUDGET: Duration = Duration::from_secs(1);
/// The most bytes in the window of a bandwidth test, so that large sizes do not need more memory than the machine has.
const WINDOW_BYTES: usize = 16 << 20;
/// The most threads of tests by many threads: all of them run at the same time, also on a GPU.
pub const MOST_THREADS: usize = 1024;
/// The most operations of a window.
pub const LARGEST_WINDOW: usize = 1024;
/// Puts before the quiet of a stream.
pub const STREAM: usize = 8192;
/// The largest size unless one is given.
pub const DEFAULT_MAX: usize = 4 << 20;

/// Sources and destinations begin on pages of their own.
const PAGE: usize = 4096;
/// The size of tests of one word.
const WORD: usize = 8;
/// Bytes of a token of 7168 elements of bfloat16.
const TOKEN: usize = 14336;
/// Elements along the edges of cubes.
const CUBES: [usize; 3] = [32, 64, 128];
/// Bytes of rows.
const ROWS: [usize; 3] = [256 << 10, 1 << 20, 4 << 20];

/// An option that some tests do not use.
struct Usage {
    option: &'static str,
    given: fn(&Plan) -> bool,
    used: fn(&Plan, &Test) -> bool,
    /// Why the other tests do not use it.
    why: &'static str,
}

const USAGES: [Usage; 5] = [
    Usage {
        option: "-b and -e are",
        given: |plan| plan.min.is_some() || plan.max.is_some(),
        used: |plan, test| match test.sizes {
            Sizes::Range | Sizes::Token | Sizes::Cube | Sizes::Rows => true,
            Sizes::Word => (plan.range().0..=plan.range().1).contains(&WORD),
            Sizes::None => false,
        },
        why: "sizes other than that of a word, 8 bytes, are for other tests",
    },
    Usage {
        option: "-i is",
        given: |plan| plan.iterations.is_some(),
        used: |_, test| test.is_repeated(),
        why: "what they tell is measured once",
    },
    Usage {
        option: "-w is",
        given: |plan| plan.warmup.is_some(),
        used: |plan, test| test.is_repeated() && plan.target.is_none(),
        why: "what they do, they do without a warm-up",
    },
    Usage {
        option: "-W is",
        given: |plan| plan.window.is_some(),
        used: |plan, test| !test.work.is_by_threads() && test.work != Work::PutStream && plan.window_of(test).is_some(),
        why: "they have no windows",
    },
    Usage {
        option: "--threads is",
        given: |plan| plan.threads.is_some(),
        used: |_, test| test.work.is_by_threads(),
        why: "one thread starts their operations",
    },
];

/// The user's options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// Threads of tests by many threads.
    pub threads: Option<usize>,
    /// Kernels of GPUs start the operations.
    pub on_gpu: bool,
    /// Single operations, each some milliseconds after the last, with this behaviour of the target.
    pub target: Option<Target>,
}

/// The behaviour of the target of single operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Waits in the library.
    Waits,
    /// Computes, and does not call the library.
    Computes,
}

impl Plan {
    /// Refuses options that make no sense.
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
        if let Some(threads) = self.threads
            && !(1..=MOST_THREADS).contains(&threads)
        {
            return Err(Error::Arguments(format!("--threads {threads}: use 1 to {MOST_THREADS}")));
        }
        if self.iterations == Some(0) {
            return Err(Error::Arguments("-i 0: there must be an iteration to measure".into()));
        }
        if self.warmup == Some(0) {
            return Err(Error::Arguments("-w 0: the first calls say how long one takes; use 1 or more".into()));
        }
        Ok(())
    }

    /// Refuses options that none of the tests uses, and returns notes on those that some tests do not use.
    pub fn unused(&self, tests: &[&Test]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for usage in USAGES.iter().filter(|usage| (usage.given)(self)) {
            let without: Vec<&str> =
                tests.iter().filter(|test| !(usage.used)(self, test)).map(|test| test.name).collect();
            let said = format!("{} not used by {}: {}", usage.option, without.join(" "), usage.why);
            match without.len() {
                0 => {}
                all if all == tests.len() => return Err(Error::Arguments(said)),
                _ => notes.push(said),
            }
        }
        Ok(notes)
    }

    /// A test's work, with the window that the user chose.
    #[must_use]
    pub fn work(&self, test: &Test) -> Work {
        match (test.work, self.window, self.threads) {
            (Work::PutWindows(_), Some(window), _) => Work::PutWindows(window),
            (Work::GetWindows(_), Some(window), _) => Work::GetWindows(window),
            (Work::AddWindows(_), Some(window), _) => Work::AddWindows(window),
            (Work::SignalWindows(_), Some(window), _) => Work::SignalWindows(window),
            (Work::Gets(_), _, Some(threads)) => Work::Gets(threads),
            (Work::FetchAdds(_), _, Some(threads)) => Work::FetchAdds(threads),
            (work, ..) => work,
        }
    }

    /// The number of operations that a test starts before it awaits them, if it does not await each.
    #[must_use]
    pub fn window_of(&self, test: &Test) -> Option<usize> {
        match self.work(test) {
            Work::PutWindows(n) | Work::GetWindows(n) | Work::AddWindows(n) | Work::SignalWindows(n) => Some(n),
            Work::PutStream => Some(STREAM),
            Work::Gets(threads) | Work::FetchAdds(threads) => Some(threads),
            _ => None,
        }
    }

    fn range(&self) -> (usize, usize) {
        let min = self.min.unwrap_or(1);
        (min, self.max.unwrap_or(DEFAULT_MAX.max(min)))
    }

    /// The sizes of a test: powers of two from the smallest to the largest, and these two themselves.
    #[must_use]
    pub fn sizes(&self, test: &Test) -> Vec<usize> {
        match test.sizes {
            Sizes::Word => vec![WORD],
            Sizes::None => vec![0],
            Sizes::Token if self.min.is_none() && self.max.is_none() => vec![TOKEN],
            Sizes::Rows if self.min.is_none() && self.max.is_none() => ROWS.to_vec(),
            Sizes::Cube if self.min.is_none() && self.max.is_none() => CUBES.map(heap::of_cube).to_vec(),
            Sizes::Cube => {
                let (min, max) = self.range();
                let edges = std::iter::successors(Some(heap::edge(min)), |edge| Some(2 * edge));
                let mut sizes: Vec<usize> = edges.map(heap::of_cube).take_while(|size| *size <= max).collect();
                if sizes.is_empty() {
                    sizes.push(heap::of_cube(heap::edge(min)));
                }
                sizes
            }
            Sizes::Range | Sizes::Token | Sizes::Rows => {
                let (min, max) = self.range();
                let powers = (0..usize::BITS - 1).map(|bit| 1 << bit).filter(|size| *size > min && *size < max);
                let mut sizes: Vec<usize> = std::iter::once(min).chain(powers).chain([max]).collect();
                sizes.dedup();
                sizes
            }
        }
    }

    /// The most calls of a test that are timed, and the time limit.
    #[must_use]
    pub fn limits(&self, size: usize, micros_per_call: f64) -> (u64, Duration) {
        match self.iterations {
            Some(iterations) => (iterations, Duration::MAX),
            None => {
                let usual = if size <= SMALL { 10_000 } else { 1_000 };
                // Calls of nanoseconds need more samples, in batches, for quantiles to be meaningful.
                let many = 20_000.0 / micros_per_call.max(1e-3);
                (usual.max(many as u64), BUDGET)
            }
        }
    }

    /// Calls before the timed ones.
    #[must_use]
    pub fn warmup(&self, size: usize) -> u64 {
        self.warmup.unwrap_or(if size <= SMALL { 100 } else { 10 })
    }

    /// Bytes of each PE's heap that `tests` take with `n_pes` PEs.
    #[must_use]
    pub fn heap(&self, tests: &[&Test], n_pes: u32) -> usize {
        let own = |test: &&Test| match test.work {
            Work::Experts(phase) => {
                let of = if self.on_gpu { heap::of_experts_on_gpu } else { heap::of_experts };
                self.sizes(test).into_iter().map(|size| of(phase, size, n_pes)).max()
            }
            Work::Collective(_) => self.sizes(test).into_iter().map(|size| heap::of_collective(size, n_pes)).max(),
            Work::Pencils(_) => self.sizes(test).into_iter().map(|size| heap::of_pencils(size, n_pes)).max(),
            Work::Product(what) => {
                let of = if self.on_gpu { heap::of_product_on_gpu } else { heap::of_product };
                self.sizes(test).into_iter().map(|size| of(what, size, n_pes)).max()
            }
            _ => None,
        };
        let largest = tests.iter().filter_map(own).max().unwrap_or(0);
        self.area(tests, n_pes).saturating_add(largest)
    }

    /// Bytes of the area that `tests` need with `n_pes` PEs.
    #[must_use]
    pub fn area(&self, tests: &[&Test], n_pes: u32) -> usize {
        let span = |test: &&Test| {
            self.sizes(test).into_iter().map(|size| Spread::of(self.work(test), size, n_pes).span()).max()
        };
        let largest = tests.iter().filter_map(span).max().unwrap_or(0);
        largest.saturating_add(4096).saturating_mul(2).saturating_add(area::SOURCE)
    }
}

/// The layout of the messages of one call: side by side, sharing as few cache lines as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The number of messages.
    pub slots: usize,
    /// The distance between messages, in bytes.
    pub stride: usize,
    /// Bytes of each message.
    pub size: usize,
    /// The offset of the first destination.
    dests: usize,
}

impl Spread {
    /// The layout for a work on messages of `size` bytes.
    #[must_use]
    pub fn of(work: Work, size: usize, n_pes: u32) -> Spread {
        let stride = size.next_multiple_of(8);
        let slots = match work {
            Work::PutWindows(n) | Work::GetWindows(n) | Work::Gets(n) => n.min(WINDOW_BYTES / stride.max(1)).max(1),
            Work::PutStream => 64,
            Work::FencedPuts => 2,
            Work::AllToAll => n_pes as usize,
            Work::Put | Work::Get | Work::PutPingPong | Work::PutSignalPingPong => 1,
            Work::FetchAdd | Work::FetchAdds(_) | Work::AddWindows(_) => 1,
            Work::SignalWindows(_) | Work::SignalPingPong => 1,
            Work::Barrier | Work::Init | Work::Memory | Work::Idle => 1,
            Work::Experts(_) | Work::Collective(_) | Work::Pencils(_) | Work::Product(_) => 0,
        };
        let span = slots.saturating_mul(stride);
        Spread { slots, stride, size, dests: area::SOURCE.saturating_add(span.div_ceil(PAGE).saturating_mul(PAGE)) }
    }

    /// Bytes of all messages.
    #[must_use]
    pub fn span(&self) -> usize {
        self.slots.saturating_mul(self.stride)
    }

    /// The source of the message of operation `i`.
    #[inline]
    #[must_use]
    pub fn source(&self, i: usize) -> usize {
        area::SOURCE + i % self.slots * self.stride
    }

    /// Its destination.
    #[inline]
    #[must_use]
    pub fn dest(&self, i: usize) -> usize {
        self.dests + i % self.slots * self.stride
    }
}

/// Reads a size, written as in the environment.
///
/// # Errors
/// A description of accepted sizes.
pub fn size(text: &str) -> Result<usize, String> {
    type Accepted = Size<1, { 1 << 40 }>;
    Accepted::parse(text.trim()).ok_or_else(|| format!("{text:?} is no size; use {}", Accepted::accepted()))
}

/// The accepted names of tests.
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
        assert!(Plan { warmup: Some(0), ..Plan::default() }.check().is_err());
        assert!(Plan { min: Some(64 << 20), ..Plan::default() }.check().is_ok());
    }

    #[test]
    fn options_that_no_test_uses_are_refused_and_others_are_told() {
        let none = Plan::default();
        let sizes = |min, max| Plan { min: Some(min), max, ..none.clone() };
        let said = |plan: Plan, names: &[&str]| {
            let tests: Vec<&Test> = names.iter().filter_map(|name| find(name)).collect();
            plan.unused(&tests).map_err(|error| error.to_string())
        };
        let windows = Plan { window: Some(16), ..none.clone() };
        for (plan, names, word) in [
            (sizes(128, None), &["put-rate", "barrier-lat"][..], "put-rate barrier-lat"),
            (sizes(8, Some(8)), &["barrier-lat"], "-b and -e"),
            (
                Plan { iterations: Some(5), ..none.clone() },
                &["init-time", "memory"],
                "-i is not used by init-time memory",
            ),
            (Plan { warmup: Some(5), target: Some(Target::Waits), ..none.clone() }, &["get-lat"], "-w is"),
            (windows.clone(), &["put-lat", "put-rate"], "-W is not used by put-lat put-rate"),
        ] {
            assert!(said(plan, names).is_err_and(|why| why.contains(word)), "{names:?}");
        }
        assert_eq!(said(sizes(8, Some(8)), &["put-rate", "p-rate", "amo-lat"]), Ok(Vec::new()));
        assert!(
            said(windows, &["put-lat", "p-rate"])
                .is_ok_and(|warnings| warnings.len() == 1 && warnings[0].contains("put-lat:"))
        );
        let all = said(sizes(128, None), &["put-lat", "put-rate"]);
        assert!(all.is_ok_and(|warnings| warnings.len() == 1 && warnings[0].contains("not used by put-rate")));
    }

    #[test]
    fn areas_of_any_size_are_computed() {
        for test in TESTS {
            for window in [None, Some(LARGEST_WINDOW)] {
                let plan = Plan { min: Some(1), max: Some(1 << 40), window, ..Plan::default() };
                assert!(plan.area(&[test], u32::MAX) > area::SOURCE);
            }
        }
    }

    #[test]
    fn messages_do_not_overlap_and_fit_the_area() {
        for test in TESTS {
            let plan = Plan { min: Some(3), max: Some(40 << 20), ..Plan::default() };
            for size in plan.sizes(test) {
                let spread = Spread::of(test.work, size, 5);
                assert!(spread.stride >= size && spread.stride.is_multiple_of(8));
                // Collectives and expert parallelism have separate memory.
                let Some(last) = spread.slots.checked_sub(1) else { continue };
                assert!(spread.source(last) + size <= spread.dest(0));
                assert!(spread.dest(last) + size <= plan.area(&[test], 5), "{} {size}", test.name);
            }
        }
    }
}
