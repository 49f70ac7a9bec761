//! Calls that kernels make: a launch is a batch of calls, and the kernel reports the time that it took.

use super::Bench;
use crate::perf::backend::{Backend, Batch, area};
use crate::perf::catalog::Work;
use crate::perf::error::Result;
use crate::perf::plan::{STREAM, Spread};
use crate::perf::sample::{Figures, Samples};

/// The number of launches that a size's calls are divided into, enough for quantiles to be meaningful.
const LAUNCHES: f64 = 20.0;
/// The most calls of one launch, which must end before the wait for its PE times out.
const MOST_CALLS: u64 = 100_000;
/// The longest warm-up, in microseconds.
const WARMUP: f64 = 250_000.0;

impl<C: Backend> Bench<'_, C> {
    /// Measures one size. Collective.
    pub(super) fn launched(&mut self, spread: Spread) -> Result<Option<Figures>> {
        self.backend.set_word(area::COUNTER, 0);
        let work = self.plan.work(self.test);
        let turns = matches!(work, Work::SignalPingPong | Work::PutPingPong | Work::PutSignalPingPong);
        let before = self.ping;
        let first = if turns { before } else { 0 };
        let batch = Batch { work, spread, peer: if self.is_peer() { 0 } else { self.peer }, first, calls: 2 };
        let (samples, warmup, done) = self.timed_launches(spread.size, |bench, done, calls| {
            bench.some_launched(&Batch { first: first + done, calls, ..batch })
        })?;
        let figures = match work {
            _ if turns => {
                self.ping += done;
                self.check_ping_pong(spread, before)?;
                samples.latency(2.0, warmup)
            }
            Work::Barrier => samples.latency(1.0, warmup),
            Work::AllToAll => {
                self.check_everybody(spread)?;
                self.sent_by_one(&samples, spread, warmup)
            }
            Work::PutWindows(window)
            | Work::GetWindows(window)
            | Work::AddWindows(window)
            | Work::SignalWindows(window)
            | Work::Gets(window)
            | Work::FetchAdds(window) => {
                self.check_one_sided(spread, done * window as u64)?;
                self.rate(&samples, spread.size, window, warmup)
            }
            Work::PutStream => {
                self.check_one_sided(spread, 0)?;
                self.rate(&samples, spread.size, STREAM, warmup)
            }
            _ => {
                self.check_one_sided(spread, done)?;
                samples.latency(1.0, warmup)
            }
        };
        Ok(self.is_first().then_some(figures))
    }

    /// Warms up, then times launches of several calls each, as the plan demands. `launch` gets the number of earlier
    /// calls, and returns the microseconds of a call. Also returns the number of calls before the timed ones, and the
    /// number of all calls. Collective.
    pub(super) fn timed_launches(
        &mut self,
        size: usize,
        mut launch: impl FnMut(&mut Self, u64, u64) -> Result<f64>,
    ) -> Result<(Samples, u64, u64)> {
        let mut done = 0;
        let mut launch = |bench: &mut Self, calls: u64| -> Result<f64> {
            bench.backend.barrier()?;
            let micros = launch(bench, done, calls)?;
            done += calls;
            bench.backend.barrier()?;
            Ok(micros)
        };
        // The first calls may be slow on some provider: two calls show it.
        let mut micros = launch(self, 2)?;
        let affordable = (WARMUP / micros.max(1e-3)) as u64;
        let wanted = self.plan.warmup.unwrap_or(self.plan.warmup(size).min(affordable)).clamp(1, MOST_CALLS);
        let warmup = self.backend.agree(wanted)?;
        micros = launch(self, warmup)?;
        let (mut left, budget) = self.plan.limits(size, micros);
        let (share, budget) = ((left as f64 / LAUNCHES).ceil(), budget.as_micros() as f64);
        let mut samples = Samples::new()?;
        loop {
            let part = (budget / LAUNCHES / micros.max(1e-3)).min(share).clamp(1.0, MOST_CALLS as f64) as u64;
            let over = samples.micros() >= budget;
            let calls = self.backend.agree(if over { 0 } else { left.min(part) })?;
            if calls == 0 {
                break;
            }
            micros = launch(self, calls)?;
            samples.add_batch(calls, micros * calls as f64);
            left = left.saturating_sub(calls);
        }
        Ok((samples, warmup + 2, done))
    }

    /// Microseconds of a call in one launch by the PEs that take part.
    fn some_launched(&mut self, batch: &Batch) -> Result<f64> {
        let takes_part = match batch.work {
            Work::AllToAll | Work::Barrier => true,
            Work::SignalPingPong | Work::PutPingPong | Work::PutSignalPingPong => self.is_first() || self.is_peer(),
            _ => self.is_first(),
        };
        let mut micros = 0.0;
        if takes_part {
            micros = self.backend.launch(batch)?.as_nanos() as f64 / 1e3 / batch.calls.max(1) as f64;
        }
        Ok(micros)
    }
}
