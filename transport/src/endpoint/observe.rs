//! Observation of an endpoint's lanes: counters, latencies and, on request, a record of each work request.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symrail_core::clock;

use super::queue::{Work, WorkRequest};
use crate::pe::Pe;
use crate::wire::{Request, Token};

/// One work request in this many is timed; reading the clock for each would cost as much as posting it.
const TIMED: u32 = 16;
/// The most work requests that are recorded, to bound the memory of a long run.
const MOST_RECORDS: usize = 1 << 20;

/// Counters of one lane since opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Bytes of writes, reads and messages.
    pub bytes: u64,
    /// Posts that had to wait because a queue was full.
    pub delayed: u64,
    /// Work requests that failed.
    pub failed: u64,
    /// How often the endpoint has given up the lane to a PE.
    pub given_up: u64,
    /// Messages and immediates that were dropped because they did not have the endpoint's token.
    pub unauthenticated: u64,
    /// The time from posting to completion of a sample of work requests.
    pub latency: Latency,
    /// The sum of these times, in nanoseconds.
    pub latency_ns: u64,
}

/// A histogram of times: bucket `i` counts those from 2^i to 2^(i+1) nanoseconds; the last one also counts all longer
/// times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency(pub [u64; Latency::BUCKETS]);

impl LaneCounters {
    /// Combines each counter of this lane and another one's by `of`.
    #[must_use]
    pub fn with(&self, other: &LaneCounters, of: fn(u64, u64) -> u64) -> LaneCounters {
        let (a, b) = (self, other);
        LaneCounters {
            writes: of(a.writes, b.writes),
            reads: of(a.reads, b.reads),
            messages: of(a.messages, b.messages),
            requests: of(a.requests, b.requests),
            acknowledgements: of(a.acknowledgements, b.acknowledgements),
            bytes: of(a.bytes, b.bytes),
            delayed: of(a.delayed, b.delayed),
            failed: of(a.failed, b.failed),
            given_up: of(a.given_up, b.given_up),
            unauthenticated: of(a.unauthenticated, b.unauthenticated),
            latency: Latency(std::array::from_fn(|i| of(a.latency.0[i], b.latency.0[i]))),
            latency_ns: of(a.latency_ns, b.latency_ns),
        }
    }
}

impl Latency {
    /// Up to 2^32 ns, 4.3 s.
    pub const BUCKETS: usize = 32;

    /// The upper bound, in nanoseconds, of the bucket that holds this quantile (0 to 1); `None` for an empty histogram.
    #[must_use]
    pub fn bound_ns(&self, part: f64) -> Option<u64> {
        // Counts that another process tells may be anything.
        let all = self.0.iter().fold(0u64, |all, n| all.saturating_add(*n));
        let wanted = (part * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.0.iter().position(|&n| {
            seen = u64::saturating_add(seen, n);
            seen >= wanted
        })?;
        Some(1 << (bucket + 1))
    }

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
    /// Requests in it, if it is a message to a target agent.
    pub requests: u32,
    /// When it was posted.
    pub posted: Instant,
    /// The time from posting to completion.
    pub took: Duration,
}

/// Times work requests of one lane, one at a time.
#[derive(Debug, Clone, Copy, Default)]
struct Sampler {
    posts: u32,
    /// The work request that is being timed; 0 for none.
    id: u64,
    posted: Option<Instant>,
}

impl Sampler {
    /// Notes that a work request was posted.
    #[inline]
    fn posted(&mut self, id: u64) {
        self.posts = self.posts.wrapping_add(1);
        if self.posts.is_multiple_of(TIMED) {
            (self.id, self.posted) = (id, Some(clock::now()));
        }
    }

    /// Notes that a work request has completed.
    #[inline]
    fn done(&mut self, id: u64, counters: &mut LaneCounters) {
        if self.id == id
            && let Some(posted) = self.posted.take()
        {
            let took = clock::since(posted);
            counters.latency.add(took);
            counters.latency_ns =
                counters.latency_ns.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }
}

/// Records every work request.
#[derive(Debug, Default)]
struct Recorder {
    under_way: HashMap<u64, Instant>,
    records: Vec<Record>,
}

impl Recorder {
    fn posted(&mut self, id: u64) {
        if self.records.len() + self.under_way.len() < MOST_RECORDS {
            self.under_way.insert(id, clock::now());
        }
    }

    fn done(&mut self, id: u64, request: &WorkRequest, n_pes: u32) {
        let Some(posted) = self.under_way.remove(&id) else { return };
        let what = match request.work {
            Work::Write { .. } | Work::TransmittedWrite { .. } => "write",
            Work::Read { .. } => "read",
            Work::Send | Work::Probe { .. } => "send",
            Work::Amo { .. } => "atomic",
        };
        // Answers go to host endpoints, whose destinations follow those of the proxy endpoints.
        let pe = request.dest % n_pes.max(1);
        let (lane, bytes) = (request.lane, request.len as u64);
        let requests = match request.work {
            // SAFETY: the message is in its slot, which is freed only later.
            Work::Send if request.slot.is_some() => unsafe { requests_in(request.ptr, request.len) },
            _ => 0,
        };
        self.records.push(Record { what, pe, lane, bytes, requests, posted, took: clock::since(posted) });
    }

    fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }
}

/// All observations of an endpoint's lanes.
pub(super) struct Observer {
    counters: Vec<LaneCounters>,
    samplers: Vec<Sampler>,
    recorder: Option<Box<Recorder>>,
    complained: bool,
}

impl Observer {
    pub fn new(lanes: usize) -> Observer {
        let (counters, samplers) = (vec![LaneCounters::default(); lanes], vec![Sampler::default(); lanes]);
        Observer { counters, samplers, recorder: None, complained: false }
    }

    pub fn counters(&self) -> &[LaneCounters] {
        &self.counters
    }

    /// Records every work request from now on.
    pub fn record(&mut self) {
        self.recorder.get_or_insert_default();
    }

    #[inline]
    pub fn records(&self) -> bool {
        self.recorder.is_some()
    }

    pub fn take_records(&mut self) -> Vec<Record> {
        self.recorder.as_mut().map(|recorder| recorder.take()).unwrap_or_default()
    }

    /// Notes that a rail has accepted a work request.
    #[inline(always)]
    pub fn posted(&mut self, id: u64, request: &WorkRequest) {
        let lane = usize::from(request.lane);
        let counters = &mut self.counters[lane];
        counters.bytes += request.len as u64;
        match request.work {
            Work::Write { .. } | Work::TransmittedWrite { .. } => counters.writes += 1,
            Work::Read { .. } => counters.reads += 1,
            Work::Send | Work::Probe { .. } | Work::Amo { .. } => counters.messages += 1,
        }
        self.samplers[lane].posted(id);
        if let Some(recorder) = &mut self.recorder {
            recorder.posted(id);
        }
    }

    /// Notes that a work request has completed.
    #[inline(always)]
    pub fn done(&mut self, id: u64, request: &WorkRequest, n_pes: u32) {
        let lane = usize::from(request.lane);
        if let Some(recorder) = &mut self.recorder {
            recorder.done(id, request, n_pes);
        }
        self.samplers[lane].done(id, &mut self.counters[lane]);
    }

    /// Counts a message that a rail has accepted without a work request.
    #[inline]
    pub fn sent(&mut self, lane: usize, len: usize) {
        self.counters[lane].messages += 1;
        self.counters[lane].bytes += len as u64;
    }

    /// Counts a write that a rail has accepted without a work request.
    #[inline]
    pub fn written(&mut self, lane: usize, len: u64) {
        self.counters[lane].writes += 1;
        self.counters[lane].bytes += len;
    }

    #[inline]
    pub fn requested(&mut self, lane: usize) {
        self.counters[lane].requests += 1;
    }

    #[inline]
    pub fn acknowledged(&mut self, lane: usize) {
        self.counters[lane].acknowledgements += 1;
    }

    #[inline]
    pub fn delayed(&mut self, lane: usize) {
        self.counters[lane].delayed += 1;
    }

    pub fn failed(&mut self, lane: usize) {
        self.counters[lane].failed += 1;
    }

    pub fn given_up(&mut self, lane: usize) {
        self.counters[lane].given_up += 1;
    }

    /// Whether this is the first malformed message, the only one that is logged.
    pub fn complains(&mut self) -> bool {
        !std::mem::replace(&mut self.complained, true)
    }

    /// Counts a dropped message or immediate without the endpoint's token. The first is logged at once, the total at
    /// the end.
    #[cold]
    pub fn count_unauthenticated(&mut self, lane: usize, rail: &str) {
        self.counters[lane].unauthenticated += 1;
        if self.unauthenticated() == 1 {
            tracing::warn!(
                rail,
                "dropped a message that is not of this job; further ones are counted, and dropped in silence"
            );
        }
    }

    fn unauthenticated(&self) -> u64 {
        self.counters.iter().map(|counters| counters.unauthenticated).sum()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let messages = self.unauthenticated();
        if messages > 1 {
            tracing::warn!(messages, "dropped in all: messages that were not of this job");
        }
    }
}

/// The number of requests in a message.
///
/// # Safety
/// `message` is a message of `len` bytes, which no thread or NIC writes now.
unsafe fn requests_in(message: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's promise.
    let mut rest = unsafe { std::slice::from_raw_parts(message, len) }.get(Token::SIZE..).unwrap_or_default();
    let mut count = 0;
    while let Ok((_, _, next)) = Request::decode(rest) {
        (rest, count) = (next, count + 1);
    }
    count
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
        assert_eq!([0.2, 0.5, 0.8, 1.0].map(|part| latency.bound_ns(part)), [2, 4, 2048, 1 << 32].map(Some));
        assert_eq!(Latency::default().bound_ns(0.5), None);
    }

    #[test]
    fn counts_of_long_jobs_add_up() {
        let mut counters = LaneCounters::default();
        counters.latency.0[7] = u64::from(u32::MAX);
        let both = counters.with(&counters, |a, b| a + b);
        assert_eq!(both.latency.0[7], 2 * u64::from(u32::MAX));
    }

    #[test]
    fn one_in_sixteen_is_timed_and_only_its_own_end_counts() {
        let (mut sampler, mut counters) = (Sampler::default(), LaneCounters::default());
        for id in 1..=160 {
            sampler.posted(id);
            sampler.done(id + 1000, &mut counters);
            sampler.done(id, &mut counters);
            sampler.done(id, &mut counters);
        }
        assert_eq!(counters.latency.0.iter().sum::<u64>(), 10);
        assert!(counters.latency_ns > 0);
    }
}
