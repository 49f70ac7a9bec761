//! The measured speed of lanes, and when they should complete an operation.
//!
//! Bandwidth and latency are exponential averages over completed writes and reads. Completions behind one another on a
//! lane show its bandwidth if they are further apart than their posts, because the lane was what kept them apart.
//! Otherwise the posts may have, and the bandwidth is at least so much. A completion of work that found the lane idle
//! shows the latency: the rest of its time, once its bytes are accounted for. What is smaller than a piece of a
//! segmented operation shows no bandwidth: its number limits it, not its bytes.
//!
//! The same is measured of each rail, over its lanes to all peers. Which of the two limits an operation is not known, so
//! the one counts that makes it end later.

use super::Lanes;
use crate::endpoint::segmentation::PIECE;
use crate::pe::Pe;

/// The time, in microseconds, for which an operation may be bound to a lane at whatever speed: those that take less are
/// whole. Each piece costs a work request and an acknowledgement.
const WHOLE_US: f32 = 500.0;
/// The same of a piece of an operation that is not bulk.
const PIECE_US: f32 = 2_000.0;
/// The time over which the bandwidth is averaged, in microseconds of work.
const AVERAGED_US: f32 = 100_000.0;
/// The part of a new latency in the average, in which a time counts at most as so many times the expected one.
const NEW_LATENCY: f32 = 0.25;
const MOST_LATE: f32 = 4.0;
/// The growth of the least time of single work with each that takes longer.
const FORGOTTEN_ALONE: f32 = 1.02;
/// An idle lane counts as twice as fast after each such time, in microseconds, so that one that was slow is used again.
const FORGOTTEN_US: f32 = 1_000_000.0;
/// The same, as a multiple of the time that the operation should take: a costly trial is rare.
const FORGOTTEN_TIMES: f32 = 8.0;

/// The speed of one lane to one peer. Times are in microseconds of the endpoint's clock, which wrap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Speed {
    /// Bytes, and the time that they took: the bandwidth is their ratio.
    bytes: f32,
    time: f32,
    latency: f32,
    /// The least time of work that found the lane idle, which includes a round trip; 0 while there was none.
    alone: f32,
    /// The last completion, and when that work was posted.
    last: u32,
    last_posted: u32,
    /// The bandwidth is that of work behind other work.
    pipelined: bool,
    /// The last completion is in the bandwidth.
    sampled: bool,
}

/// The mean speed of a rail's lanes, as far as measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LaneSpeed {
    /// Bytes in a second.
    pub bandwidth: u64,
    /// Nanoseconds.
    pub latency: u64,
}

impl Speed {
    /// Notes that `len` bytes that were posted at `posted` have completed.
    fn done(&mut self, now: u32, posted: u32, len: u64) {
        let (took, gap) = (now.wrapping_sub(posted) as f32, now.wrapping_sub(self.last) as f32);
        let between_posts = posted.wrapping_sub(self.last_posted).cast_signed().max(0) as f32;
        let behind_another = self.time > 0.0 && gap < took;
        (self.last, self.last_posted) = (now, posted);
        let (small, len) = (len < PIECE, len as f32);
        if small && (behind_another || self.bandwidth().is_none()) {
            return;
        }
        if behind_another && gap == 0.0 {
            // Both were found in one poll: the time before it was that of both.
            if self.sampled {
                self.bytes += len;
            }
            return;
        }
        self.sampled = false;
        if behind_another {
            if !std::mem::replace(&mut self.pipelined, true) {
                (self.bytes, self.time) = (0.0, 0.0);
            }
            let lane_limits = gap > between_posts;
            if lane_limits || self.bandwidth().is_none_or(|known| len > known * gap) {
                self.average(len, gap);
            }
            return;
        }
        let alone = took.max(1.0);
        // An old time counts less and less.
        self.alone = if self.alone > 0.0 { alone.min(self.alone * FORGOTTEN_ALONE) } else { alone };
        match self.bandwidth() {
            Some(bandwidth) if small || (self.pipelined && len / bandwidth <= alone) => {
                let moved = len / bandwidth;
                let late = alone.min(MOST_LATE * (self.latency + moved)) - moved;
                self.latency += NEW_LATENCY * (late.max(0.0) - self.latency);
            }
            // The lane is faster than it was.
            _ if self.pipelined => (self.bytes, self.time, self.sampled) = (len, alone, true),
            _ => self.average(len, alone),
        }
    }

    fn average(&mut self, len: f32, time: f32) {
        self.sampled = true;
        let kept = AVERAGED_US / (AVERAGED_US + time);
        (self.bytes, self.time) = (self.bytes * kept + len, self.time * kept + time.max(0.01));
    }

    /// Bytes in a microsecond; `None` while nothing has completed.
    fn bandwidth(&self) -> Option<f32> {
        (self.time > 0.0).then(|| self.bytes / self.time)
    }

    /// Bytes that the lane should move in so many microseconds, and no more than a quarter of those by which that is
    /// known: what a network buffers at first seems faster than it is.
    fn moves_in(&self, us: f32) -> u64 {
        self.bandwidth().map_or(0.0, |bandwidth| (bandwidth * us).min(self.bytes / 4.0)) as u64
    }

    /// The time, in microseconds, after which `len` bytes should be complete behind `under_way` bytes. A lane that is not
    /// known counts as having bandwidth `unknown`.
    fn expected(&self, now: u32, under_way: u64, len: u64, unknown: f32) -> f32 {
        let all = self.latency + (under_way + len) as f32 / self.bandwidth().unwrap_or(unknown);
        if under_way > 0 {
            return all;
        }
        let half = FORGOTTEN_US.max(FORGOTTEN_TIMES * all);
        all * (-(now.wrapping_sub(self.last) as f32) / half).exp2()
    }
}

impl Lanes {
    /// Whether the speed of lanes is measured.
    #[inline]
    pub fn measures(&self) -> bool {
        !self.speeds.is_empty()
    }

    /// Notes that `len` bytes have completed on a lane, that were posted at `posted`.
    pub fn note_speed(&mut self, pe: Pe, lane: usize, (now, posted): (u32, u32), len: u64) {
        self.now = now;
        let at = self.slots.find(pe) * self.rails + lane;
        // The entries of no peer are those of the rails.
        if at >= self.rails && at < self.speeds.len() {
            self.speeds[at].done(now, posted, len);
            self.speeds[lane].done(now, posted, len);
        }
    }

    /// The bandwidth of a peer's fastest lane, in bytes in a microsecond; 1 if none is known.
    pub fn fastest(&self, pe: Pe) -> f32 {
        let speeds = self.speeds.iter().skip(self.slots.find(pe) * self.rails).take(self.rails);
        let known = speeds.filter_map(Speed::bandwidth).fold(0.0, f32::max);
        if known > 0.0 { known } else { 1.0 }
    }

    /// Bytes in a microsecond on a lane, as far as known, else as on the fastest.
    pub fn bandwidth(&self, pe: Pe, lane: usize) -> f32 {
        let known = self.speeds.get(self.slots.find(pe) * self.rails + lane).and_then(Speed::bandwidth);
        known.unwrap_or_else(|| self.fastest(pe))
    }

    /// The most bytes of an operation that is not segmented, if no less than `least` are.
    pub fn whole_max(&self, pe: Pe, least: u64) -> u64 {
        let speeds = self.speeds.iter().skip(self.slots.find(pe) * self.rails).take(self.rails);
        let up = speeds.enumerate().filter(|&(lane, _)| self.is_up(pe, lane));
        up.map(|(_, speed)| speed.moves_in(WHOLE_US)).fold(least, u64::max)
    }

    /// Whether pieces deliver a put-signal of so many bytes sooner than the fastest lane. Behind pieces the signal waits for
    /// the acknowledgement of all, which takes a round trip more than a signal behind the data on one lane.
    pub fn pieces_hasten_signal(&self, pe: Pe, bytes: u64) -> bool {
        let speeds = self.speeds.iter().skip(self.slots.find(pe) * self.rails).take(self.rails);
        let up = speeds.enumerate().filter(|&(lane, _)| self.is_up(pe, lane));
        let (mut fastest, mut all, mut round_trip) = (0.0f32, 0.0f32, 0.0f32);
        for (_, speed) in up {
            let Some(bandwidth) = speed.bandwidth() else { continue };
            (fastest, all) = (fastest.max(bandwidth), all + bandwidth);
            // Where work was never behind other work, latency and bandwidth are not told apart.
            round_trip = round_trip.max(if speed.pipelined { speed.latency } else { speed.alone });
        }
        fastest > 0.0 && bytes as f32 / fastest - bytes as f32 / all > round_trip
    }

    /// The most bytes of a piece on a lane.
    pub fn piece_max(&self, pe: Pe, lane: usize) -> u64 {
        let speed = self.speeds.get(self.slots.find(pe) * self.rails + lane);
        PIECE.max(speed.map_or(0, |speed| speed.moves_in(PIECE_US)))
    }

    /// The time, in microseconds, after which an operation of `len` bytes should be complete on a lane. A lane that is
    /// not known counts as having bandwidth `unknown`.
    pub fn expected(&self, pe: Pe, lane: usize, len: u64, unknown: f32) -> f32 {
        let of_lane = self.speeds[self.slots.find(pe) * self.rails + lane];
        let (here, all) = (self.under_way(pe, lane), self.loads[lane]);
        let by_lane = of_lane.expected(self.now, here, len, unknown);
        if all <= here {
            return by_lane;
        }
        by_lane.max(self.speeds[lane].expected(self.now, all, len, unknown))
    }

    /// The mean speed of a rail's lanes, if any is known.
    pub fn speed(&self, lane: usize) -> Option<LaneSpeed> {
        let speeds = self.speeds.iter().skip(self.rails + lane).step_by(self.rails.max(1));
        let known: Vec<(f32, f32)> = speeds.filter_map(|speed| Some((speed.bandwidth()?, speed.latency))).collect();
        let mean = |of: fn(&(f32, f32)) -> f32| known.iter().map(of).sum::<f32>() / known.len() as f32;
        (!known.is_empty()).then(|| LaneSpeed {
            bandwidth: (mean(|(bandwidth, _)| *bandwidth) * 1e6) as u64,
            latency: (mean(|(_, latency)| *latency) * 1e3) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A lane that moves so many bytes in a microsecond and adds a latency, with `depth` operations under way.
    struct Link {
        bandwidth: f32,
        latency: u32,
        /// The time until which the link is busy.
        busy: f32,
    }

    impl Link {
        /// Posts `len` bytes; the time of the completion.
        fn post(&mut self, now: u32, len: u64) -> u32 {
            self.busy = self.busy.max(now as f32) + len as f32 / self.bandwidth;
            self.busy as u32 + self.latency
        }
    }

    /// Measures `bursts` bursts of `depth` operations at a time.
    fn measured(link: &mut Link, depth: usize, bursts: usize, len: u64) -> Speed {
        let (mut speed, mut now) = (Speed::default(), 1);
        for _ in 0..bursts {
            let ends: Vec<u32> = (0..depth).map(|_| link.post(now, len)).collect();
            ends.iter().for_each(|&end| speed.done(end, now, len));
            now = ends.last().unwrap() + 100;
        }
        speed
    }

    fn near(value: f32, wanted: f32) -> bool {
        (0.9 * wanted..=1.1 * wanted).contains(&value)
    }

    #[test]
    fn bursts_tell_bandwidth_and_latency_apart() {
        for (bandwidth, latency) in [(25.0, 0), (25.0, 20_000), (6.0, 20_000), (5000.0, 10)] {
            let speed = measured(&mut Link { bandwidth, latency, busy: 0.0 }, 8, 30, 1 << 20);
            assert!(near(speed.bandwidth().unwrap(), bandwidth), "{bandwidth} {latency}: {speed:?}");
            let off = (speed.latency - latency as f32).abs();
            assert!(
                off <= 0.1 * latency as f32 + 0.1 * (1 << 20) as f32 / bandwidth,
                "{bandwidth} {latency}: {speed:?}"
            );
        }
    }

    #[test]
    fn small_operations_and_posts_that_are_far_apart_tell_no_bandwidth() {
        let mut link = Link { bandwidth: 25.0, latency: 20_000, busy: 0.0 };
        let mut speed = measured(&mut link, 8, 30, 1 << 20);
        let mut now = speed.last + 1_000_000;
        for _ in 0..1000 {
            let ends = [link.post(now, 8), link.post(now, 8)];
            ends.iter().for_each(|&end| speed.done(end, now, 8));
            now = ends[1];
        }
        assert!(near(speed.bandwidth().unwrap(), 25.0) && near(speed.latency, 20_000.0), "{speed:?}");
        // A put of 4 ms every 10 ms.
        let posts: Vec<(u32, u32)> =
            (0..200).map(|at| now + 10_000 * at).map(|at| (at, link.post(at, 100_000))).collect();
        posts.iter().for_each(|&(posted, end)| speed.done(end, posted, 100_000));
        assert!(near(speed.bandwidth().unwrap(), 25.0), "{speed:?}");
    }

    #[test]
    fn completions_of_one_poll_show_no_unlimited_bandwidth() {
        let (mut link, mut speed, mut now) = (Link { bandwidth: 25.0, latency: 0, busy: 0.0 }, Speed::default(), 1);
        for _ in 0..200 {
            let ends = [link.post(now, 1 << 20), link.post(now, 1 << 20)];
            (0..2).for_each(|_| speed.done(ends[1], now, 1 << 20));
            now = ends[1] + 100;
        }
        let found = speed.bandwidth().unwrap();
        assert!((12.0..=26.0).contains(&found), "{speed:?}");
    }

    #[test]
    fn single_operations_tell_the_time_of_one() {
        let speed = measured(&mut Link { bandwidth: 25.0, latency: 20_000, busy: 0.0 }, 1, 30, 1 << 20);
        let time = 20_000.0 + (1 << 20) as f32 / 25.0;
        assert!(near(speed.expected(speed.last, 0, 1 << 20, 1.0), time), "{speed:?}");
    }

    #[test]
    fn a_change_of_speed_is_found_within_a_few_operations() {
        let mut link = Link { bandwidth: 100.0, latency: 0, busy: 0.0 };
        let (mut speed, len) = (Speed::default(), 4u64 << 20);
        let mut now = 1;
        for bandwidth in [100.0, 25.0, 100.0] {
            link.bandwidth = bandwidth;
            for _ in 0..4 {
                let ends = [link.post(now, len), link.post(now, len)];
                ends.iter().for_each(|&end| speed.done(end, now, len));
                now = ends[1];
            }
            let found = speed.bandwidth().unwrap();
            assert!((0.7 * bandwidth..1.4 * bandwidth).contains(&found), "{found} of {bandwidth}");
        }
    }

    #[test]
    fn work_alone_on_a_lane_tells_the_longest_possible_round_trip() {
        let mut link = Link { bandwidth: 25.0, latency: 20_000, busy: 0.0 };
        let mut speed = measured(&mut link, 1, 5, 256 << 10);
        let first = speed.alone;
        assert!(near(first, 20_000.0 + (256 << 10) as f32 / 25.0), "{speed:?}");
        let mut now = speed.last + 100;
        for _ in 0..100 {
            let end = link.post(now, 1 << 20);
            speed.done(end, now, 1 << 20);
            now = end + 100;
        }
        assert!(near(speed.alone, 20_000.0 + (1 << 20) as f32 / 25.0), "an old time is forgotten: {speed:?}");
    }

    #[test]
    fn an_idle_lane_that_was_slow_is_tried_again() {
        let speed = measured(&mut Link { bandwidth: 1.0, latency: 0, busy: 0.0 }, 4, 10, 100_000);
        let expected = |seconds: u32| speed.expected(speed.last.wrapping_add(seconds * 1_000_000), 0, 100_000, 1.0);
        assert!(near(expected(0), 100_000.0) && expected(8) < 1000.0);
        let busy = speed.expected(speed.last.wrapping_add(8_000_000), 1, 100_000, 1.0);
        assert!(near(busy, 100_000.0), "what is under way has not ended: {busy}");
    }
}
