//! Times, and their figures.

use std::time::Instant;

use hdrhistogram::Histogram;

use super::error::{Error, Result};

/// The figures of one test at one size, in the test's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Mean latency or rate: everything over the whole time.
    pub value: f64,
    /// The best sample.
    pub best: f64,
    /// The median of the samples.
    pub p50: f64,
    /// The value that 99 of 100 samples met: a latency that they did not exceed, or a rate that they reached.
    pub p99: f64,
    /// The worst sample.
    pub worst: f64,
    /// Operations that were timed.
    pub iters: u64,
    /// Operations before the timed ones.
    pub warmup: u64,
    /// The operations in a sample. If there are several, the quantiles are those of means.
    pub batch: u64,
}

impl Figures {
    /// The figures of a single value.
    #[must_use]
    pub fn one(value: f64) -> Figures {
        Figures { value, best: value, p50: value, p99: value, worst: value, iters: 1, warmup: 0, batch: 1 }
    }
}

/// The longest call that is distinguished from longer ones, in picoseconds: some hours.
const LONGEST: u64 = 20_000_000_000_000_000;
const PICOSECONDS: f64 = 1e6;

/// Times of batches of calls. Their memory does not depend on their number.
pub struct Samples {
    /// Picoseconds of one call, by batch.
    per_call: Histogram<u64>,
    calls: u64,
    micros: f64,
    /// The most calls of a batch.
    batch: u64,
}

impl Samples {
    pub fn new() -> Result<Samples> {
        // Three digits; all memory is allocated before the clock runs.
        let per_call = Histogram::new_with_bounds(1, LONGEST, 3)
            .map_err(|reason| Error::System { what: "a histogram".into(), reason: reason.to_string() })?;
        Ok(Samples { per_call, calls: 0, micros: 0.0, batch: 0 })
    }

    /// Adds a batch of `calls` calls.
    pub fn add(&mut self, calls: u64, since: Instant) {
        self.add_batch(calls, micros_since(since));
    }

    /// Adds a batch of `calls` calls that took `micros` microseconds.
    pub fn add_batch(&mut self, calls: u64, micros: f64) {
        self.per_call.saturating_record((micros / calls as f64 * PICOSECONDS) as u64);
        self.calls += calls;
        self.micros += micros;
        self.batch = self.batch.max(calls);
    }

    /// The timed total, in microseconds.
    #[must_use]
    pub fn micros(&self) -> f64 {
        self.micros
    }

    /// The mean microseconds of a call so far.
    #[must_use]
    pub fn micros_per_call(&self) -> f64 {
        self.micros / self.calls.max(1) as f64
    }

    /// The figures of latencies; a call consists of `parts` of them (2 for a round trip of which half is reported).
    #[must_use]
    pub fn latency(&self, parts: f64, warmup: u64) -> Figures {
        self.figures(warmup, self.micros_per_call() / parts, |micros| micros / parts)
    }

    /// The figures of rates; a call moves `amount` (bytes for MB/s, operations for Mop/s) in `operations`.
    #[must_use]
    pub fn rate(&self, amount: f64, operations: u64, warmup: u64) -> Figures {
        let rate = |micros: f64| amount / micros.max(f64::MIN_POSITIVE);
        let figures = self.figures(warmup, amount * self.calls as f64 / self.micros.max(f64::MIN_POSITIVE), rate);
        let in_operations = |calls: u64| calls.saturating_mul(operations);
        Figures {
            iters: in_operations(figures.iters),
            warmup: in_operations(warmup),
            batch: in_operations(figures.batch),
            ..figures
        }
    }

    fn figures(&self, warmup: u64, value: f64, convert: impl Fn(f64) -> f64) -> Figures {
        let quantile = |quantile| {
            let found = self.per_call.value_at_quantile(quantile);
            // The middle of the values that the histogram does not distinguish.
            convert(self.per_call.median_equivalent(found) as f64 / PICOSECONDS)
        };
        let (best, p50, p99, worst) = (quantile(0.0), quantile(0.5), quantile(0.99), quantile(1.0));
        Figures { value, best, p50, p99, worst, iters: self.calls, warmup, batch: self.batch }
    }
}

/// Microseconds that reading the clock adds to a sample.
#[must_use]
pub fn clock_cost() -> f64 {
    const TIMES: u32 = 1000;
    let begun = Instant::now();
    for _ in 0..TIMES {
        std::hint::black_box(Instant::now());
    }
    micros_since(begun) / f64::from(TIMES)
}

/// Microseconds since that time.
#[must_use]
pub fn micros_since(then: Instant) -> f64 {
    then.elapsed().as_nanos() as f64 / 1e3
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// One to a hundred microseconds, not in order.
    fn samples() -> Samples {
        let mut samples = Samples::new().unwrap();
        (0..100).for_each(|i| samples.add_batch(1, f64::from((i * 37) % 100 + 1)));
        samples
    }

    /// Equal within the three digits that histograms keep.
    fn near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 2e-3
    }

    #[test]
    fn latencies_are_told_by_their_quantiles() {
        let figures = samples().latency(2.0, 7);
        let Figures { best, p50, p99, worst, .. } = figures;
        assert!(near(best, 0.5) && near(p50, 25.0) && near(p99, 49.5) && near(worst, 50.0), "{figures:?}");
        assert_eq!((figures.value, figures.iters, figures.warmup, figures.batch), (25.25, 100, 7, 1));
    }

    #[test]
    fn of_rates_the_worst_are_the_low_ones() {
        let figures = samples().rate(990.0, 10, 1);
        assert!(near(figures.best, 990.0) && near(figures.p99, 10.0) && near(figures.worst, 9.9), "{figures:?}");
        assert!((figures.value - 990.0 * 100.0 / 5050.0).abs() < 1e-9);
        assert_eq!((figures.iters, figures.warmup, figures.batch), (1000, 10, 10));
    }

    #[test]
    fn a_sample_of_many_calls_says_of_how_many() {
        let mut samples = Samples::new().unwrap();
        samples.add_batch(1000, 8.828);
        samples.add_batch(10, 0.1);
        let figures = samples.latency(1.0, 0);
        assert!(near(figures.best, 0.008828), "{figures:?}");
        assert_eq!((figures.batch, figures.iters), (1000, 1010));
    }

    #[test]
    fn nothing_timed_is_nothing_told_and_nothing_is_too_long() {
        let mut samples = Samples::new().unwrap();
        assert_eq!(samples.latency(1.0, 0).p50, 0.0);
        assert!(samples.rate(1.0, 1, 0).value.is_finite());
        samples.add_batch(1, 1e300);
        assert!(samples.latency(1.0, u64::MAX).worst > 1e9);
        assert_eq!(samples.rate(1.0, u64::MAX, u64::MAX).warmup, u64::MAX);
    }
}
