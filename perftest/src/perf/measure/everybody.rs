//! Tests in which all PEs do the same.

use super::Bench;
use crate::perf::backend::Backend;
use crate::perf::catalog::Work;
use crate::perf::error::Result;
use crate::perf::plan::Spread;
use crate::perf::sample::{Figures, Samples};

impl<C: Backend> Bench<'_, C> {
    pub(super) fn everybody(&mut self, spread: Spread) -> Result<Option<Figures>> {
        if self.test.work == Work::Barrier {
            let (samples, warmup) = self.timed_together(spread.size, |bench| bench.backend.barrier())?;
            return Ok(self.is_first().then(|| samples.latency(1.0, warmup)));
        }
        let (me, n) = (self.backend.pe(), self.backend.n_pes());
        let (samples, warmup) = self.timed_together(spread.size, |bench| {
            // Each PE starts with its neighbour, so that not all send to the same PE at once.
            for to in (1..n).map(|step| (me + step) % n) {
                bench.backend.start_put(to, spread.dest(me as usize), spread.source(to as usize), spread.size)?;
            }
            bench.backend.barrier()
        })?;
        self.check_everybody(spread)?;
        Ok(self.is_first().then(|| self.sent_by_one(&samples, spread, warmup)))
    }

    /// Checks that the data of all PEs has arrived here. Collective.
    pub(super) fn check_everybody(&mut self, spread: Spread) -> Result<()> {
        self.backend.barrier()?;
        let me = self.backend.pe();
        (0..self.backend.n_pes())
            .filter(|from| *from != me)
            .try_for_each(|from| self.check(spread, from as usize, from, me as usize))
    }

    /// The figures of the data that one PE sends to all others.
    pub(super) fn sent_by_one(&self, samples: &Samples, spread: Spread, warmup: u64) -> Figures {
        let others = u64::from(self.backend.n_pes() - 1);
        samples.rate(others as f64 * spread.size as f64, others, warmup)
    }
}
