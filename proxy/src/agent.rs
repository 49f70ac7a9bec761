//! The target agent: applies peers' requests to this PE's memory, and answers them.
//!
//! Peers' AMOs and small put-signals arrive as requests. The agent applies them with the CPU, in sequence per stream.
//! It uses the same atomic instructions as this PE and its same-host peers, so all of them are atomic with one another.
//!
//! The agent applies each request once, however often and over whichever lane it arrives: a source repeats a request
//! until it has the answer. The agent keeps a fetched value until it knows that the source has it, so that a repeated
//! request gets the same answer. It drops a request that arrives before its turn. The source repeats that one, too,
//! since the agent lacks the requests before it.
//!
//! Answers are batched: one per stream and round, for any number of requests. A source that waits gets its answer in
//! the same round. A bare acknowledgement waits until the engine has nothing else to do, so that a local thread that
//! waits for the effect of the request continues first.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use symrail_heap::copy::copy;
use symrail_transport::Pe;
use symrail_transport::amo;
use symrail_transport::endpoint::{Endpoint, TargetAgent};
use symrail_transport::region::Regions;
use symrail_transport::sparse::Slots;
use symrail_transport::wire::{FROM_CONTEXT, MOST_READ, Origin, Outcome, Refusal, Reply, Request, RequestKind, Token};

/// The number of unacknowledged requests at which the agent acknowledges at once: well below the limit of a source.
const ACKNOWLEDGE_AFTER: u32 = 512;

/// Most outcomes that are kept of one stream: more than those for which a source can wait.
const MOST_KEPT: usize = 4096;

/// Bytes of an answer in front of its outcomes.
const HEAD: usize = Token::SIZE + Reply::SIZE;

/// The record of one stream of requests: a source endpoint and one of its lanes.
#[derive(Default)]
struct Inbound {
    /// Sequence number of the last request applied.
    applied: u32,
    /// Sequence number of the last request answered.
    acknowledged: u32,
    /// Outcomes, in sequence, that the source may not have yet.
    outcomes: VecDeque<Kept>,
    /// Outcomes of deferred requests, for the next answer.
    late: Vec<Outcome>,
    /// The newest of those that were sent. They are sent again whenever an answer may have been lost: nobody acknowledges
    /// them.
    sent: VecDeque<Outcome>,
    /// The lane that carries the stream, and how often it has changed.
    lane: u8,
    generation: u32,
    /// The stream is in one of the lists of streams to answer.
    owed: bool,
    /// The source waits for the answer.
    urgent: bool,
}

/// The outcome of a request.
struct Kept {
    sequence: u32,
    outcome: Outcome,
    /// The offset of its bytes, if it has some. They are read whenever the outcome is sent.
    from: u64,
}

/// A request that needs more time. Its outcome is sent later, by [`Agent::report`].
pub(crate) struct DeferredRequest {
    pub request: Request,
    pub payload: Vec<u8>,
}

/// An endpoint that has introduced itself with its address for answers.
pub(crate) struct Introduction {
    pub pe: Pe,
    pub origin: Origin,
    pub address: Vec<u8>,
}

/// The target agent. There is one per proxy endpoint.
pub struct Agent {
    n_pes: u32,
    lanes: usize,
    /// PEs have no endpoints but their proxies'.
    only_proxies: bool,
    /// Endpoints that have sent a request, as numbers `origin * n_pes + pe`.
    sources: Slots,
    /// Streams, by slot and then lane. Those without a PE are unused.
    connections: Vec<Inbound>,
    /// Endpoints to connect before anything is answered.
    introductions: Vec<Introduction>,
    /// Streams to answer in this round, and streams to answer when there is time.
    owed: Vec<u32>,
    later: Vec<u32>,
    regions: Regions,
    message: Vec<u8>,
    /// Requests for staging, if there is any.
    staged: Option<VecDeque<DeferredRequest>>,
    applied: u64,
    refused: u64,
    early: u64,
}

impl Agent {
    /// The agent of one of `n_pes` PEs, whose proxy endpoint has `lanes` lanes.
    #[must_use]
    pub fn new(n_pes: u32, lanes: usize) -> Self {
        Agent {
            n_pes,
            lanes,
            only_proxies: false,
            sources: Slots::default(),
            connections: inbound(lanes).collect(),
            introductions: Vec::new(),
            owed: Vec::with_capacity(64),
            later: Vec::with_capacity(64),
            regions: Regions::new(0),
            message: Vec::with_capacity(4096),
            staged: None,
            applied: 0,
            refused: 0,
            early: 0,
        }
    }

    /// The index of an endpoint's first stream; its other streams follow. `None` for a context's endpoint that has not
    /// introduced itself.
    #[inline]
    fn streams_of(&mut self, pe: Pe, origin: Origin, introduced: bool) -> Option<usize> {
        let source = u32::from(origin) * self.n_pes + pe;
        let mut slot = self.sources.find(source);
        if slot == 0 {
            if origin >= FROM_CONTEXT && !introduced || origin > 0 && self.only_proxies {
                return None;
            }
            slot = self.sources.enter(source);
            if slot * self.lanes == self.connections.len() {
                self.connections.extend(inbound(self.lanes));
            }
        }
        Some(slot * self.lanes)
    }

    /// From now on no PE has endpoints but its proxy's.
    pub(crate) fn know_only_proxies(&mut self) {
        self.only_proxies = true;
    }

    /// Forgets the streams of the proxy endpoint of a PE. Outcomes of its requests that are deferred go nowhere.
    pub(crate) fn forget(&mut self, pe: Pe) {
        let first = self.sources.leave(pe) * self.lanes;
        if first > 0 {
            for (stream, fresh) in self.connections[first..].iter_mut().zip(inbound(self.lanes)) {
                *stream = fresh;
            }
        }
    }

    /// Opens a segment of this PE to requests.
    ///
    /// # Safety
    /// The CPU can access the segment, which stays mapped until [`Agent::remove_segment`] or until the agent is
    /// dropped.
    pub unsafe fn add_segment(&mut self, segment: symrail_core::Segment) {
        self.regions.add(segment, Vec::new());
    }

    /// Closes a segment to requests.
    pub fn remove_segment(&mut self, id: u32) {
        self.regions.remove(id);
    }

    /// Makes the agent keep requests that need more time for [`Agent::next_deferred`].
    pub(crate) fn stage(&mut self) {
        self.staged.get_or_insert_default();
    }

    /// The next deferred request.
    pub(crate) fn next_deferred(&mut self) -> Option<DeferredRequest> {
        self.staged.as_mut().and_then(VecDeque::pop_front)
    }

    /// Adds the outcome of a deferred request to the next answer to its source, unless that was forgotten.
    pub(crate) fn report(&mut self, request: &Request, outcome: Outcome) {
        self.refused += u64::from(outcome.refusal != Refusal::None);
        let slot = self.sources.find(u32::from(request.origin) * self.n_pes + request.source);
        let at = slot * self.lanes + usize::from(request.lane);
        if slot > 0
            && let Some(c) = self.connections.get_mut(at)
        {
            c.late.push(outcome);
            self.owe(at);
        }
    }

    /// Queues an endpoint that introduces itself to be connected.
    fn introduce(&mut self, request: &Request, address: &[u8]) {
        if request.origin < FROM_CONTEXT {
            return; // these were connected when the job began
        }
        self.introductions.push(Introduction { pe: request.source, origin: request.origin, address: address.to_vec() });
    }

    /// The next endpoint to connect to.
    pub(crate) fn next_introduction(&mut self) -> Option<Introduction> {
        self.introductions.pop()
    }

    /// Whether a request concerns memory that is not this agent's, and so is staging's.
    fn is_deferred(&self, request: &Request) -> bool {
        self.staged.is_some()
            && request.fetch
            && !(matches!(request.kind, RequestKind::Amo | RequestKind::Get)
                && self.regions.local(request.offset, 1).is_some())
    }

    /// Requests applied and refused so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.applied, self.refused)
    }

    /// Whether answers wait to be sent.
    #[must_use]
    pub fn has_pending_replies(&self) -> bool {
        !self.owed.is_empty() || !self.later.is_empty()
    }

    /// Sends the answers that are due; with `all` also those that can wait. Answers without room are sent the next
    /// time.
    pub fn answer(&mut self, endpoint: &mut Endpoint, all: bool) {
        if all {
            self.owed.append(&mut self.later);
        }
        let most = endpoint.caps().iter().map(|c| c.max_send).min().unwrap_or(0);
        let mut waiting = std::mem::take(&mut self.owed);
        waiting.retain(|&at| !self.answer_one(at as usize, most, endpoint));
        self.owed = waiting;
    }

    /// Answers one stream, in messages of at most `most` bytes. Returns `false` when there is no room.
    fn answer_one(&mut self, at: usize, most: usize, endpoint: &mut Endpoint) -> bool {
        let stream = at % self.lanes;
        let Some(source) = self.sources.number((at / self.lanes).wrapping_sub(1)) else { return true };
        let (pe, origin) = (source % self.n_pes, source / self.n_pes);
        let Some(c) = self.connections.get_mut(at).filter(|c| c.owed) else { return true };
        loop {
            let acknowledged = c.outcomes.partition_point(|kept| !is_after(kept.sequence, c.acknowledged));
            self.message.clear();
            self.message.resize(HEAD, 0);
            let (mut late, mut count) = (0, 0);
            let fits =
                |message: &[u8], outcome: &Outcome| message.len() == HEAD || message.len() + outcome.size() <= most;
            for outcome in &c.late {
                if !fits(&self.message, outcome) {
                    break;
                }
                self.message.extend_from_slice(&Reply::encode_outcome(outcome));
                (late, count) = (late + 1, count + 1);
            }
            // An answer contains all outcomes of the requests that it acknowledges.
            let mut applied = c.applied;
            for kept in c.outcomes.range(acknowledged..) {
                if !fits(&self.message, &kept.outcome) {
                    applied = kept.sequence.wrapping_sub(1);
                    break;
                }
                append(&mut self.message, kept, &self.regions);
                count += 1;
            }
            let after = c.acknowledged;
            let generation = if applied == c.applied { c.generation } else { 0 };
            let reply = Reply {
                source: endpoint.source_at(pe),
                lane: stream as u8,
                after,
                applied,
                generation,
                outcomes: count,
            };
            self.message[Token::SIZE..HEAD].copy_from_slice(&reply.encode());
            if !endpoint.reply(pe, origin as Origin, c.lane.into(), &mut self.message) {
                return false;
            }
            c.acknowledged = applied;
            c.sent.extend(c.late.drain(..late));
            let old = c.sent.len().saturating_sub(MOST_KEPT);
            c.sent.drain(..old);
            if applied == c.applied && c.late.is_empty() {
                (c.owed, c.urgent) = (false, false);
                return true;
            }
        }
    }

    /// Applies a request to memory that the CPU can access.
    pub(crate) fn apply(&mut self, request: &Request, payload: &[u8]) -> Result<u64, Refusal> {
        match request.kind {
            RequestKind::Flush | RequestKind::Move | RequestKind::Introduce => Ok(0),
            RequestKind::Pull | RequestKind::PullSignal | RequestKind::Push => Err(Refusal::Undefined),
            // The endpoint handles these.
            RequestKind::Broken | RequestKind::Offer | RequestKind::Accept | RequestKind::Ping | RequestKind::Pong => {
                Err(Refusal::Undefined)
            }
            RequestKind::Amo => {
                let word = self.word(request.offset, request.ty.size())?;
                if !request.op.defined_on(request.ty) {
                    return Err(Refusal::Undefined);
                }
                // SAFETY: `word` checked that the word is inside of a mapped segment and aligned.
                Ok(unsafe { amo::apply(word, request.ty, request.op, request.operand, request.second) })
            }
            RequestKind::Get => {
                if request.operand > MOST_READ {
                    return Err(Refusal::Undefined);
                }
                self.range(request.offset, request.operand as usize).map(|_| 0)
            }
            RequestKind::Put => {
                let to = self.range(request.offset, payload.len())?;
                // SAFETY: the destination is inside of mapped segments; the payload is in a receive buffer outside of
                // them.
                unsafe { copy(to, payload.as_ptr(), payload.len()) };
                Ok(0)
            }
            RequestKind::PutSignal => {
                let signal = self.word(request.second, 8)?;
                let to = self.range(request.offset, payload.len())?;
                // SAFETY: the destination is inside of mapped segments, the signal was checked, and the payload is in a
                // receive buffer outside of them.
                unsafe {
                    copy(to, payload.as_ptr(), payload.len());
                    fence(Ordering::Release);
                    amo::apply(signal, amo::AmoType::U64, request.op, request.operand, 0);
                }
                Ok(0)
            }
        }
    }

    /// Makes this round answer a stream.
    fn owe(&mut self, at: usize) {
        let c = &mut self.connections[at];
        if !std::mem::replace(&mut c.urgent, true) {
            // The stream may be in `later` too. Answering twice is harmless, answering late is not.
            c.owed = true;
            self.owed.push(at as u32);
        }
    }

    /// The address of `len` bytes at an offset, if the CPU can access them.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Result<*mut u8, Refusal> {
        if len == 0 {
            return Ok(std::ptr::dangling_mut());
        }
        self.regions.local(offset, len as u64).ok_or(Refusal::OutOfSegment)
    }

    fn word(&self, offset: u64, size: usize) -> Result<*mut u8, Refusal> {
        let word = self.regions.local(offset, size as u64).ok_or(Refusal::OutOfSegment)?;
        if word.addr().is_multiple_of(size) { Ok(word) } else { Err(Refusal::Misaligned) }
    }
}

/// Appends an outcome to an answer, with its bytes.
fn append(message: &mut Vec<u8>, kept: &Kept, regions: &Regions) {
    let (at, len) = (message.len(), kept.outcome.len as usize);
    let from = regions.local(kept.from, len as u64);
    if len > 0 && from.is_none() {
        // The segment was removed after the request.
        let refused = Outcome::of(kept.outcome.id, 0, Refusal::OutOfSegment);
        return message.extend_from_slice(&Reply::encode_outcome(&refused));
    }
    message.extend_from_slice(&Reply::encode_outcome(&kept.outcome));
    message.resize(at + kept.outcome.size(), 0);
    if let Some(from) = from.filter(|_| len > 0) {
        // SAFETY: inside of a mapped segment; the message is elsewhere, and has room for so many bytes behind the
        // outcome.
        unsafe { copy(message[at + Reply::OUTCOME..].as_mut_ptr(), from, len) };
    }
}

impl Inbound {
    /// Keeps the outcome of request `sequence`, which is the next.
    fn keep(&mut self, kept: Kept) {
        if self.outcomes.len() >= MOST_KEPT {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(kept);
    }

    /// Notes that the source has answers only up to request `sequence`: later ones may have been lost.
    fn answer_again(&mut self, sequence: u32) {
        if is_after(self.acknowledged, sequence) {
            self.acknowledged = sequence;
        }
        self.late.extend(self.sent.drain(..));
    }

    /// Forgets outcomes that the source has: those up to the request whose number ends like `acknowledged` and is not
    /// after `sequence`.
    fn forget(&mut self, sequence: u32, acknowledged: u16) {
        let acknowledged = sequence.wrapping_sub(u32::from((sequence as u16).wrapping_sub(acknowledged)));
        while self.outcomes.pop_front_if(|kept| !is_after(kept.sequence, acknowledged)).is_some() {}
    }
}

/// The streams of an endpoint without requests so far. Each begins on its own lane.
fn inbound(lanes: usize) -> impl Iterator<Item = Inbound> {
    (0..lanes).map(|lane| Inbound { lane: lane as u8, ..Inbound::default() })
}

/// Whether a sequence number comes after another.
fn is_after(sequence: u32, other: u32) -> bool {
    sequence.wrapping_sub(other).cast_signed() > 0
}

impl Agent {
    /// Handles a request that is not the next of its stream, did not arrive over the stream's lane, or moves the
    /// stream.
    #[cold]
    fn unexpected(&mut self, at: usize, lane: usize, request: &Request) {
        let c = &mut self.connections[at];
        if request.kind == RequestKind::Move {
            // An older move may arrive late.
            if is_after(request.operand as u32, c.generation) {
                (c.lane, c.generation) = (lane as u8, request.operand as u32);
                if is_after(request.sequence, c.applied) {
                    c.applied = request.sequence; // its source has given up the missing requests
                }
                c.answer_again(request.sequence);
                self.owe(at);
            }
            return;
        }
        let expected = c.applied.wrapping_add(1);
        if lane != usize::from(c.lane) {
            // The request was sent before the stream moved. Its source knows that it will not be applied.
        } else if is_after(request.sequence, expected) {
            self.early += 1;
            if self.early == 1 {
                let (pe, got) = (request.source, request.sequence);
                tracing::info!(pe, lane, got, expected, "a request before its turn; dropped");
            }
        } else {
            // The request was applied; its answer has not arrived, at least not yet.
            c.answer_again(request.sequence.wrapping_sub(1));
            self.owe(at);
        }
    }
}

impl TargetAgent for Agent {
    fn count(&mut self, word: u64) {
        let Ok(at) = self.word(word, 8) else {
            self.refused += 1;
            return tracing::debug!(word, "no word of this PE to count in");
        };
        // SAFETY: inside of a mapped segment, and aligned. The counted bytes were written before.
        unsafe {
            fence(Ordering::Release);
            amo::apply(at, amo::AmoType::U64, amo::AmoOp::Add, 1, 0);
        }
        self.applied += 1;
    }

    fn request(&mut self, lane: usize, request: &Request, payload: &[u8]) {
        let stream = usize::from(request.lane);
        if stream >= self.lanes {
            return;
        }
        let introduced = request.kind == RequestKind::Introduce && request.sequence == 1;
        if introduced {
            self.introduce(request, payload);
        }
        // An endpoint of a context that has not introduced itself cannot be answered.
        let Some(first) = self.streams_of(request.source, request.origin, introduced) else { return };
        let at = first + stream;
        let c = &mut self.connections[at];
        let expected = c.applied.wrapping_add(1);
        if request.sequence != expected || lane != usize::from(c.lane) || request.kind == RequestKind::Move {
            return self.unexpected(at, lane, request);
        }
        if !c.outcomes.is_empty() {
            c.forget(expected, request.acknowledged);
        }
        let staged = if self.is_deferred(request) { self.staged.as_mut() } else { None };
        let result = match staged {
            Some(staged) => {
                staged.push_back(DeferredRequest { request: *request, payload: payload.to_vec() });
                None
            }
            None => Some(self.apply(request, payload)),
        };
        let c = &mut self.connections[at];
        c.applied = expected;
        match result.unwrap_or(Ok(0)) {
            Ok(value) if request.fetch && result.is_some() => {
                let len = if request.kind == RequestKind::Get { request.operand as u32 } else { 0 };
                let outcome = Outcome { len, ..Outcome::of(request.id, value, Refusal::None) };
                c.keep(Kept { sequence: expected, outcome, from: request.offset });
            }
            Ok(_) => {}
            Err(refusal) => {
                self.refused += 1;
                c.keep(Kept { sequence: expected, outcome: Outcome::of(request.id, 0, refusal), from: 0 });
            }
        }
        self.applied += 1;
        if request.urgent || c.applied.wrapping_sub(c.acknowledged) >= ACKNOWLEDGE_AFTER {
            self.owe(at);
        } else if !std::mem::replace(&mut c.owed, true) {
            self.later.push(at as u32);
        }
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
