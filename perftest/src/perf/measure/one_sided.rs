//! PE 0 works on its peer's memory.

use std::time::{Duration, Instant};

use super::Bench;
use crate::perf::backend::{Backend, area};
use crate::perf::catalog::Work;
use crate::perf::error::{Error, Result};
use crate::perf::plan::{STREAM, Spread, Target};
use crate::perf::sample::{Figures, Samples};

/// How long a busy target computes at a time, and when in that time a single operation starts.
const COMPUTING: Duration = Duration::from_millis(20);
const START: Duration = Duration::from_millis(2);
/// The number of such times, unless iterations are given.
const TIMES: u64 = 40;

impl<C: Backend> Bench<'_, C> {
    pub(super) fn one_sided(&mut self, spread: Spread) -> Result<Option<Figures>> {
        self.backend.set_word(area::COUNTER, 0);
        self.backend.barrier()?;
        let figures = if self.is_first() { Some(self.work(spread)?) } else { None };
        // The target waits here meanwhile.
        self.backend.barrier()?;
        self.check_one_sided(spread, figures.map_or(0, |figures| figures.iters.saturating_add(figures.warmup)))?;
        Ok(figures)
    }

    /// Checks that the peer has the result of so many operations of PE 0. Collective.
    pub(super) fn check_one_sided(&mut self, spread: Spread, operations: u64) -> Result<()> {
        if !self.test.work.counts() {
            return self.check_all(spread);
        }
        let added = self.backend.agree(operations)?;
        if self.is_peer() {
            self.check_word(self.backend.word(area::COUNTER), added)?;
        }
        Ok(())
    }

    /// Checks that all data has arrived.
    fn check_all(&mut self, spread: Spread) -> Result<()> {
        let (here, from) = match self.test.work {
            Work::Get | Work::GetWindows(_) | Work::Gets(_) => (self.is_first(), self.peer),
            _ => (self.is_peer(), 0),
        };
        if here {
            (0..spread.slots).try_for_each(|slot| self.check(spread, slot, from, slot))?;
        }
        Ok(())
    }

    /// PE 0's part.
    fn work(&mut self, spread: Spread) -> Result<Figures> {
        let (size, peer) = (spread.size, self.peer);
        let (source, dest) = (spread.source(0), spread.dest(0));
        match self.plan.work(self.test) {
            Work::Put => self.latency(size, |bench| {
                bench.backend.put(peer, dest, source, size)?;
                bench.backend.quiet()
            }),
            Work::Get => self.latency(size, |bench| bench.backend.get(peer, dest, source, size)),
            Work::FetchAdd => {
                let mut count = 0;
                self.latency(size, |bench| {
                    let old = bench.backend.fetch_add(peer, area::COUNTER, 1)?;
                    bench.check_word(old, count)?;
                    count += 1;
                    Ok(())
                })
            }
            Work::FencedPuts => {
                let (second, second_dest) = (spread.source(1), spread.dest(1));
                self.latency(size, |bench| {
                    bench.backend.put(peer, dest, source, size)?;
                    bench.backend.fence()?;
                    bench.backend.put(peer, second_dest, second, size)?;
                    bench.backend.quiet()
                })
            }
            Work::PutWindows(window) => self.windows(spread, window, |bench, i| {
                bench.backend.start_put(peer, spread.dest(i), spread.source(i), size)
            }),
            Work::GetWindows(window) => self.windows(spread, window, |bench, i| {
                bench.backend.start_get(peer, spread.dest(i), spread.source(i), size)
            }),
            Work::AddWindows(window) => {
                self.windows(spread, window, |bench, _| bench.backend.start_add(peer, area::COUNTER, 1))
            }
            Work::SignalWindows(window) => {
                self.windows(spread, window, |bench, _| bench.backend.start_signal(peer, area::COUNTER, 1))
            }
            Work::PutStream => {
                let (samples, warmup) = self.timed(size, |bench| {
                    for i in 0..STREAM {
                        bench.backend.start_put(peer, spread.dest(i), spread.source(i), size)?;
                    }
                    bench.backend.quiet()
                })?;
                Ok(self.rate(&samples, size, STREAM, warmup))
            }
            other => Err(Error::Arguments(format!("{}: {other:?} is not what PE 0 does alone", self.test.name))),
        }
    }

    fn latency(&mut self, size: usize, call: impl FnMut(&mut Self) -> Result<()>) -> Result<Figures> {
        let (samples, warmup) = self.timed(size, call)?;
        Ok(samples.latency(1.0, warmup))
    }

    fn windows(
        &mut self,
        spread: Spread,
        window: usize,
        mut start: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<Figures> {
        let (samples, warmup) = self.timed(spread.size, |bench| {
            for i in 0..window {
                start(bench, i)?;
            }
            bench.backend.quiet()
        })?;
        Ok(self.rate(&samples, spread.size, window, warmup))
    }

    pub(super) fn rate(&self, samples: &Samples, size: usize, operations: usize, warmup: u64) -> Figures {
        let amount = if self.test.unit == "MB/s" { size * operations } else { operations };
        samples.rate(amount as f64, operations as u64, warmup)
    }

    /// One operation at a time, 2 ms after the last, while the target waits or computes as the plan demands.
    pub(super) fn single(&mut self, spread: Spread) -> Result<Option<Figures>> {
        let (size, peer) = (spread.size, self.peer);
        self.backend.set_word(area::COUNTER, 0);
        let times = self.plan.iterations.unwrap_or(TIMES);
        let mut samples = Samples::new()?;
        for time in 0..times {
            self.backend.barrier()?;
            if self.is_first() {
                std::thread::sleep(START);
                let begun = Instant::now();
                match self.test.work {
                    Work::Put => {
                        self.backend.put(peer, spread.dest(0), spread.source(0), size)?;
                        self.backend.quiet()?;
                    }
                    Work::Get => self.backend.get(peer, spread.dest(0), spread.source(0), size)?,
                    _ => {
                        let old = self.backend.fetch_add(peer, area::COUNTER, 1)?;
                        self.check_word(old, time)?;
                    }
                }
                samples.add(1, begun);
            } else if self.is_peer() && self.plan.target == Some(Target::Computes) {
                compute(COMPUTING);
            }
        }
        self.backend.barrier()?;
        if self.test.work == Work::FetchAdd {
            if self.is_peer() {
                self.check_word(self.backend.word(area::COUNTER), times)?;
            }
        } else {
            self.check_all(spread)?;
        }
        Ok(self.is_first().then(|| samples.latency(1.0, 0)))
    }
}

/// Keeps a core busy.
fn compute(time: Duration) {
    let begun = Instant::now();
    let mut number = 1_u64;
    while begun.elapsed() < time {
        for _ in 0..1000 {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}
