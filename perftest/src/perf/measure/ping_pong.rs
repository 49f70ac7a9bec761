//! PE 0 and its peer alternate; the test reports half of a round trip.

use super::Bench;
use crate::perf::backend::{Backend, area};
use crate::perf::catalog::Work;
use crate::perf::error::Result;
use crate::perf::plan::Spread;
use crate::perf::sample::Figures;

impl<C: Backend> Bench<'_, C> {
    pub(super) fn ping_pong(&mut self, spread: Spread) -> Result<Option<Figures>> {
        let before = self.ping;
        let (samples, warmup) = self.timed_together(spread.size, |bench| bench.round_trip(spread))?;
        self.check_ping_pong(spread, before)?;
        Ok(self.is_first().then(|| samples.latency(2.0, warmup)))
    }

    /// Checks that the last round has arrived. Collective.
    pub(super) fn check_ping_pong(&mut self, spread: Spread, before: u64) -> Result<()> {
        self.backend.barrier()?;
        if self.is_first() || self.is_peer() {
            self.check_word(self.backend.word(area::PING), self.ping)?;
            if self.test.work == Work::PutSignalPingPong && self.ping > before {
                let other = if self.is_first() { self.peer } else { 0 };
                self.check(spread, 0, other, 0)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn round_trip(&mut self, spread: Spread) -> Result<()> {
        self.ping += 1;
        if self.is_first() {
            self.send(spread, self.peer)?;
            self.backend.wait(area::PING, self.ping)
        } else if self.is_peer() {
            self.backend.wait(area::PING, self.ping)?;
            // In the first round, the data must have arrived when the signal has.
            if self.ping == 1 && self.test.work == Work::PutSignalPingPong {
                self.check(spread, 0, 0, 0)?;
            }
            self.send(spread, 0)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn send(&mut self, spread: Spread, to: u32) -> Result<()> {
        match self.test.work {
            Work::SignalPingPong => self.backend.signal(to, area::PING, self.ping),
            Work::PutPingPong => self.backend.put_word(to, area::PING, self.ping),
            _ => {
                let put = (spread.dest(0), spread.source(0), spread.size);
                self.backend.put_signal(to, put, area::PING, self.ping)
            }
        }
    }
}
