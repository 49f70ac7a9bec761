//! What the lanes of an endpoint have done: counters, how long it took, and, if asked for, each work request by itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::post::{Work, WorkRequest};
use crate::pe::Pe;

/// One work request in this many is timed; reading the clock for each would cost as much as posting it.
const TIMED: u32 = 16;
/// The most work requests that are recorded, so that a run that goes on forever does not fill the memory.
const MOST_RECORDS: usize = 1 << 20;

/// Counters of one lane since opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Writes posted.
    pub writes: u64,
    /// Reads posted.
    pub reads: u64,
    /// Messages posted.
    pub messages: u64,
    /// Requests that were put into messages.
    pub requests: u64,
    /// Answers that acknowledged requests.
    pub acknowledgements: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Posts that had to wait because a queue was full.
    pub delayed: u64,
    /// Work requests that failed.
    pub failed: u64,
    /// How often the lane to a PE was given up.
    pub given_up: u64,
    /// Messages and immediates that were dropped because they did not have the endpoint's token.
    pub strangers: u64,
    /// How long some of the work requests took, from posting to completion.
    pub latency: Latency,
}

/// How many things took how long: bucket `i` counts those of 2^i to 2^(i+1) nanoseconds, the last all longer ones too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency(pub [u32; Latency::BUCKETS]);

impl Latency {
    /// Up to 2^32 ns, 4.3 s.
    pub const BUCKETS: usize = 32;

    fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let bucket = (nanos.ilog2() as usize).min(Self::BUCKETS - 1);
        self.0[bucket] = self.0[bucket].saturating_add(1);
    }
}

/// A work request from posting to completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// `write`, `read`, `send` or `atomic`.
    pub what: &'static str,
    /// The PE at the other end.
    pub pe: Pe,
    /// The lane.
    pub lane: u8,
    /// Its bytes.
    pub bytes: u64,
    /// When it was posted.
    pub posted: Instant,
    /// How long it took.
    pub took: Duration,
}

/// Times work requests of one lane, one at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sampler {
    posts: u32,
    /// The one that is being timed; 0 for none.
    id: u64,
    posted: Option<Instant>,
}

impl Sampler {
    /// A work request was posted.
    #[inline]
    pub fn posted(&mut self, id: u64) {
        self.posts = self.posts.wrapping_add(1);
        if self.posts.is_multiple_of(TIMED) {
            (self.id, self.posted) = (id, Some(Instant::now()));
        }
    }

    /// A work request came back.
    #[inline]
    pub fn done(&mut self, id: u64, latency: &mut Latency) {
        if self.id == id
            && let Some(posted) = self.posted.take()
        {
            latency.add(posted.elapsed());
        }
    }
}

/// Records every work request.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    under_way: HashMap<u64, Instant>,
    records: Vec<Record>,
}

impl Recorder {
    pub fn posted(&mut self, id: u64) {
        if self.records.len() + self.under_way.len() < MOST_RECORDS {
            self.under_way.insert(id, Instant::now());
        }
    }

    pub fn done(&mut self, id: u64, request: &WorkRequest, n_pes: u32) {
        let Some(posted) = self.under_way.remove(&id) else { return };
        let what = match request.work {
            Work::Write { .. } | Work::Flag { .. } => "write",
            Work::Read { .. } => "read",
            Work::Send | Work::Probe { .. } => "send",
            Work::Amo { .. } => "atomic",
        };
        // Answers go to host endpoints, which are numbered behind the proxy endpoints.
        let pe = request.dest % n_pes.max(1);
        let (lane, bytes) = (request.lane, request.len as u64);
        self.records.push(Record { what, pe, lane, bytes, posted, took: posted.elapsed() });
    }

    pub fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets_of_powers_of_two() {
        let mut latency = Latency::default();
        for nanos in [0, 1, 2, 3, 1024, 2047, u64::MAX] {
            latency.add(Duration::from_nanos(nanos));
        }
        assert_eq!((latency.0[0], latency.0[1], latency.0[10], latency.0[31]), (2, 2, 2, 1));
    }

    #[test]
    fn one_in_sixteen_is_timed_and_only_its_own_end_counts() {
        let (mut sampler, mut latency) = (Sampler::default(), Latency::default());
        for id in 1..=160 {
            sampler.posted(id);
            sampler.done(id + 1000, &mut latency);
            sampler.done(id, &mut latency);
            sampler.done(id, &mut latency);
        }
        assert_eq!(latency.0.iter().sum::<u32>(), 10);
    }
}
