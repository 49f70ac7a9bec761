//! Times, and what is told of them.

use std::time::Instant;

/// The figures of one test at one size, in the test's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Everything over all the time it took: the mean latency, or the rate.
    pub value: f64,
    /// The best.
    pub best: f64,
    /// The median.
    pub p50: f64,
    /// What 99 of 100 kept: a latency that they did not exceed, or a rate that they reached.
    pub p99: f64,
    /// Operations that were timed.
    pub iters: u64,
    /// Operations before that.
    pub warmup: u64,
}

/// Times of batches of calls. A batch is as long as it must be for reading the clock not to matter.
#[derive(Debug, Default)]
pub struct Samples {
    /// Microseconds of one call, by batch.
    per_call: Vec<f64>,
    calls: u64,
    micros: f64,
}

impl Samples {
    /// Makes room, so that nothing is allocated while the clock runs.
    #[must_use]
    pub fn with_capacity(batches: usize) -> Samples {
        Samples { per_call: Vec::with_capacity(batches), ..Samples::default() }
    }

    /// A batch of so many calls.
    pub fn add(&mut self, calls: u64, since: Instant) {
        self.add_batch(calls, micros_since(since));
    }

    /// A batch of so many calls that took so many microseconds.
    pub fn add_batch(&mut self, calls: u64, micros: f64) {
        self.per_call.push(micros / calls as f64);
        self.calls += calls;
        self.micros += micros;
    }

    /// Time that belongs to all calls together.
    pub fn add_time(&mut self, since: Instant) {
        self.micros += micros_since(since);
    }

    /// What has been timed, in microseconds.
    #[must_use]
    pub fn micros(&self) -> f64 {
        self.micros
    }

    /// Microseconds of a call so far.
    #[must_use]
    pub fn micros_per_call(&self) -> f64 {
        self.micros / self.calls.max(1) as f64
    }

    /// The figures of latencies, a call being `parts` of them (2 for a round trip of which half is told).
    #[must_use]
    pub fn latency(mut self, parts: f64, warmup: u64) -> Figures {
        self.per_call.sort_by(f64::total_cmp);
        let of = |quantile| self.quantile(quantile) / parts;
        Figures {
            value: self.micros_per_call() / parts,
            best: of(0.0),
            p50: of(0.5),
            p99: of(0.99),
            iters: self.calls,
            warmup,
        }
    }

    /// The figures of rates, a call being `amount` (bytes for MB/s, operations for Mop/s) in `operations`.
    #[must_use]
    pub fn rate(mut self, amount: f64, operations: u64, warmup: u64) -> Figures {
        self.per_call.sort_by(f64::total_cmp);
        let of = |quantile| amount / self.quantile(quantile).max(f64::MIN_POSITIVE);
        Figures {
            value: amount * self.calls as f64 / self.micros.max(f64::MIN_POSITIVE),
            best: of(0.0),
            p50: of(0.5),
            p99: of(0.99),
            iters: self.calls * operations,
            warmup: warmup * operations,
        }
    }

    /// Of sorted times.
    fn quantile(&self, quantile: f64) -> f64 {
        let last = self.per_call.len().saturating_sub(1);
        self.per_call.get((last as f64 * quantile).round() as usize).copied().unwrap_or(0.0)
    }
}

/// Microseconds since then.
#[must_use]
pub fn micros_since(then: Instant) -> f64 {
    then.elapsed().as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        // One to a hundred, not in order.
        let per_call: Vec<f64> = (0..100).map(|i| f64::from((i * 37) % 100 + 1)).collect();
        Samples { micros: per_call.iter().sum(), calls: 100, per_call }
    }

    #[test]
    fn latencies_are_told_by_their_quantiles() {
        let figures = samples().latency(2.0, 7);
        assert_eq!((figures.best, figures.p50, figures.p99), (0.5, 25.5, 49.5));
        assert_eq!((figures.value, figures.iters, figures.warmup), (25.25, 100, 7));
    }

    #[test]
    fn of_rates_the_worst_are_the_low_ones() {
        let figures = samples().rate(990.0, 10, 1);
        assert_eq!((figures.best, figures.p99), (990.0, 10.0));
        assert!((figures.value - 990.0 * 100.0 / 5050.0).abs() < 1e-9);
        assert_eq!((figures.iters, figures.warmup), (1000, 10));
    }

    #[test]
    fn nothing_timed_is_nothing_told() {
        assert_eq!(Samples::default().latency(1.0, 0).p50, 0.0);
        assert!(Samples::default().rate(1.0, 1, 0).value.is_finite());
    }
}
