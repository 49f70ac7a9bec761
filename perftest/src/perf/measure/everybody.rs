//! All PEs do the same.

use super::Bench;
use crate::perf::carrier::Carrier;
use crate::perf::catalog::Work;
use crate::perf::error::Result;
use crate::perf::plan::Spread;
use crate::perf::sample::Figures;

impl<C: Carrier> Bench<'_, C> {
    pub(super) fn everybody(&mut self, spread: Spread) -> Result<Option<Figures>> {
        if self.test.work == Work::Barrier {
            let (samples, warmup) = self.timed_together(spread.size, |bench| bench.carrier.barrier())?;
            return Ok(self.is_first().then(|| samples.latency(1.0, warmup)));
        }
        let (me, n) = (self.carrier.pe(), self.carrier.n_pes());
        let (samples, warmup) = self.timed_together(spread.size, |bench| {
            // Each starts with its neighbour, so that not all send to the same one at once.
            for to in (1..n).map(|step| (me + step) % n) {
                bench.carrier.start_put(to, spread.dest(me as usize), spread.source(to as usize), spread.size)?;
            }
            bench.carrier.barrier()
        })?;
        self.carrier.barrier()?;
        for from in (0..n).filter(|from| *from != me) {
            self.check(spread, from as usize, from, me as usize)?;
        }
        let others = u64::from(n - 1);
        let sent = others as f64 * spread.size as f64;
        Ok(self.is_first().then(|| samples.rate(sent, others, warmup)))
    }
}
