//! The tests: the work, its timing and its check. Each is written once for all backends.
//!
//! | file | tests |
//! |---|---|
//! | `one_sided` | PE 0 works on its peer's memory; the peer waits in a barrier, or computes |
//! | `ping_pong` | the two PEs alternate |
//! | `everybody` | all PEs do the same |
//! | `launched` | all of these, made by kernels in batches |
//! | `collectives` | collectives of devices |
//! | `on_stream` | calls that the host puts on a GPU's stream, and times there |
//! | `experts`, `gpu_experts` | expert-parallel dispatch and combine, by the host's threads and by a GPU's kernels |
//! | `pencils` | transposes and halos of arrays in pencils |
//! | `products`, `gpu_products` | products of layers that are spread over PEs, and how much of their moves they hide |
//! | `footprint` | figures of a PE: memory, processor time while idle |
//!
//! PE 0's peer is the last PE, which is on another host if there are several. Before each size, every PE fills its
//! sources with a new pattern and wipes its destinations; after it, every PE checks the data that has arrived. Wrong
//! data is an error.

pub mod collectives;
mod everybody;
pub mod experts;
pub mod footprint;
pub mod gpu_experts;
mod gpu_products;
mod launched;
mod on_stream;
mod one_sided;
pub mod pencils;
mod ping_pong;
pub mod products;

use std::time::{Duration, Instant};

use super::backend::{Backend, area};
use super::catalog::{Test, Work};
use super::error::{Error, Result};
use super::pattern;
use super::plan::{Plan, Spread};
use super::sample::{Figures, Samples};

/// Calls of at least so many microseconds are timed one by one. Shorter calls are timed in batches that take as long as
/// the second figure, since reading the clock takes some 30 ns.
const WORTH_A_CLOCK: f64 = 2.0;
const BATCH: f64 = 10.0;
/// How long PEs that alternate continue before they agree whether there is time for more.
const PART: Duration = Duration::from_millis(100);

/// A backend, and the state of a test on it.
pub struct Bench<'a, C> {
    pub backend: &'a mut C,
    pub plan: &'a Plan,
    pub test: &'static Test,
    /// The PE that works with PE 0.
    peer: u32,
    /// The number of sizes measured so far, so that each has other data.
    round: u64,
    /// The value of the next ping.
    ping: u64,
}

impl<'a, C: Backend> Bench<'a, C> {
    /// Prepares a test. Collective.
    pub fn new(backend: &'a mut C, plan: &'a Plan, test: &'static Test) -> Bench<'a, C> {
        let peer = backend.n_pes() - 1;
        for word in [area::PING, area::COUNTER] {
            backend.set_word(word, 0);
        }
        Bench { backend, plan, test, peer, round: 0, ping: 0 }
    }

    /// Measures one size. PE 0 returns the figures. Collective.
    pub fn measure(&mut self, size: usize) -> Result<Option<Figures>> {
        self.round += 1;
        let spread = Spread::of(self.plan.work(self.test), size, self.backend.n_pes());
        let mine = pattern::seed(self.round, self.backend.pe());
        pattern::fill(self.backend, spread.source(0), spread.span(), mine);
        pattern::wipe(self.backend, spread.dest(0), spread.span());
        self.backend.barrier()?;
        let figures = match self.test.work {
            _ if self.plan.target.is_some() => self.single(spread)?,
            work if C::LAUNCHES || work.is_by_threads() => self.launched(spread)?,
            Work::SignalPingPong | Work::PutPingPong | Work::PutSignalPingPong => self.ping_pong(spread)?,
            Work::AllToAll | Work::Barrier => self.everybody(spread)?,
            Work::Put | Work::Get | Work::FetchAdd | Work::FencedPuts => self.one_sided(spread)?,
            Work::PutWindows(_) | Work::GetWindows(_) | Work::PutStream => self.one_sided(spread)?,
            Work::AddWindows(_) | Work::SignalWindows(_) | Work::Gets(_) | Work::FetchAdds(_) => {
                self.one_sided(spread)?
            }
            Work::Init | Work::Memory | Work::Idle => self.one_sided(spread)?,
            Work::Experts(_) | Work::Collective(_) | Work::Pencils(_) | Work::Product(_) => self.one_sided(spread)?,
        };
        // No PE continues, and no figure is reported, before all PEs have checked their data.
        self.backend.barrier()?;
        Ok(figures)
    }

    fn is_first(&self) -> bool {
        self.backend.pe() == 0
    }

    fn is_peer(&self) -> bool {
        self.backend.pe() == self.peer
    }

    /// Checks that slot `slot` holds the data that `from` sent from its slot `sent`.
    fn check(&self, spread: Spread, slot: usize, from: u32, sent: usize) -> Result<()> {
        let seed = pattern::seed(self.round, from);
        match pattern::check(self.backend, spread.dest(slot), spread.size, seed, sent * spread.stride) {
            None => Ok(()),
            Some(wrong) => Err(Error::WrongData {
                test: self.test.name,
                size: spread.size,
                pe: self.backend.pe(),
                at: wrong.at,
                found: wrong.found,
                expected: wrong.expected,
            }),
        }
    }

    /// Checks that a word has the expected value.
    fn check_word(&self, found: u64, expected: u64) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Error::WrongWord { test: self.test.name, pe: self.backend.pe(), found, expected })
    }

    /// Warms up, then times `call` as the plan demands. Also returns the number of calls before.
    fn timed(&mut self, size: usize, mut call: impl FnMut(&mut Self) -> Result<()>) -> Result<(Samples, u64)> {
        let started = Instant::now();
        let (mut warmup, wanted) = (0, self.plan.warmup(size).max(1));
        // The last half of the warm-up shows how long a call takes.
        let (mut half_at, mut half) = (started, 0);
        while warmup < wanted && (self.plan.warmup.is_some() || started.elapsed() < Duration::from_millis(250)) {
            if warmup == wanted / 2 {
                (half_at, half) = (Instant::now(), warmup);
            }
            call(self)?;
            warmup += 1;
        }
        self.backend.quiet()?;
        let micros = super::sample::micros_since(half_at) / (warmup - half).max(1) as f64;
        let schedule = Schedule::new(self.plan, size, micros);
        let mut samples = Samples::new()?;
        let mut left = schedule.calls;
        while left > 0 && samples.micros() < schedule.budget.as_micros() as f64 {
            let batch = schedule.batch.min(left);
            let begun = Instant::now();
            for _ in 0..batch {
                call(self)?;
            }
            samples.add(batch, begun);
            left -= batch;
        }
        self.backend.quiet()?;
        Ok((samples, warmup))
    }

    /// As [`Bench::timed`], for calls of several PEs, which must agree on their number. Collective.
    fn timed_together(&mut self, size: usize, mut call: impl FnMut(&mut Self) -> Result<()>) -> Result<(Samples, u64)> {
        // The first calls may take 40 ms on some provider: two calls show it.
        let mut micros = self.some(2, &mut call)?;
        let affordable = (250_000.0 / micros.max(1e-3)) as u64;
        let wanted = self.plan.warmup.unwrap_or(self.plan.warmup(size).min(affordable)).max(1);
        let warmup = self.backend.agree(wanted)?;
        micros = self.some(warmup, &mut call)?;
        let schedule = Schedule::new(self.plan, size, micros);
        let mut samples = Samples::new()?;
        let mut left = schedule.calls;
        loop {
            // In parts; after each, PE 0 decides whether there is time for another.
            let part = (PART.as_micros() as f64 / micros.max(1e-3)).max(1.0) as u64;
            let over = samples.micros() >= schedule.budget.as_micros() as f64;
            let mut calls = self.backend.agree(if over { 0 } else { left.min(part) })?;
            if calls == 0 {
                break;
            }
            left = left.saturating_sub(calls);
            while calls > 0 {
                let batch = schedule.batch.min(calls);
                let begun = Instant::now();
                for _ in 0..batch {
                    call(self)?;
                }
                samples.add(batch, begun);
                calls -= batch;
            }
            micros = samples.micros_per_call();
        }
        self.backend.quiet()?;
        Ok((samples, warmup.saturating_add(2)))
    }

    /// Makes so many calls, and returns the microseconds of one.
    fn some(&mut self, calls: u64, call: &mut impl FnMut(&mut Self) -> Result<()>) -> Result<f64> {
        self.backend.barrier()?;
        let begun = Instant::now();
        for _ in 0..calls {
            call(self)?;
        }
        Ok(super::sample::micros_since(begun) / calls.max(1) as f64)
    }
}

/// The number of calls, the size of their batches, and the time limit.
struct Schedule {
    calls: u64,
    batch: u64,
    budget: Duration,
}

impl Schedule {
    fn new(plan: &Plan, size: usize, micros: f64) -> Schedule {
        let (calls, budget) = plan.limits(size, micros);
        let batch = if micros >= WORTH_A_CLOCK { 1 } else { (BATCH / micros.max(1e-3)).ceil() as u64 };
        Schedule { calls, batch: batch.min(calls), budget }
    }
}

#[cfg(test)]
mod tests;
