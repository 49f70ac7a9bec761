//! The target agent: applies what peers ask for to this PE's memory, and answers.
//!
//! Peers' AMOs and small put-signals arrive as requests. The agent applies them with the CPU, in sequence per
//! connection, with the same atomic instructions that this PE and its same-host peers use; so all of them are
//! atomic with one another.
//!
//! Answers are batched: one per connection and round, however many requests came. Who waits is answered in the same
//! round; a bare acknowledgement waits until nothing else is to do, so that whoever waits here for what the request has
//! changed goes first.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use symrail_heap::copy::copy;
use symrail_transport::Pe;
use symrail_transport::amo;
use symrail_transport::endpoint::{Endpoint, TargetAgent};
use symrail_transport::region::Regions;
use symrail_transport::wire::{FROM_CONTEXT, Origin, Outcome, Refusal, Reply, Request, RequestKind};

/// Requests that are acknowledged at once when so many have gathered: well below what a source may have under way.
const ACKNOWLEDGE_AFTER: u32 = 256;

/// What is remembered of one connection: a source endpoint and a lane.
#[derive(Default)]
struct Inbound {
    /// Sequence number of the last request applied.
    applied: u32,
    /// Sequence number of the last request acknowledged.
    acknowledged: u32,
    /// Outcomes to tell with the next answer.
    outcomes: Vec<Outcome>,
    /// It is in one of the lists of connections to answer.
    owed: bool,
    /// The source waits for the answer.
    urgent: bool,
}

/// A request that takes longer: its outcome is told later, by [`Agent::tell`].
pub(crate) struct Long {
    /// The connection that it came over.
    pub connection: u32,
    pub request: Request,
    pub payload: Vec<u8>,
}

/// An endpoint that has told where to answer it.
pub(crate) struct Introduction {
    pub pe: Pe,
    pub origin: Origin,
    pub address: Vec<u8>,
}

/// Applies requests. One per proxy endpoint.
pub struct Agent {
    me: Pe,
    n_pes: u32,
    lanes: usize,
    /// At `(origin * n_pes + pe) * lanes + lane`; grows when endpoints of contexts introduce themselves.
    connections: Vec<Inbound>,
    /// To be connected before anything is answered.
    introductions: Vec<Introduction>,
    /// Connections to answer in this round, and when there is time.
    owed: Vec<u32>,
    later: Vec<u32>,
    regions: Regions,
    message: Vec<u8>,
    /// Requests for staging, if there is any.
    staged: Option<VecDeque<Long>>,
    applied: u64,
    refused: u64,
}

impl Agent {
    /// The agent of PE `me`, whose proxy endpoint has `lanes` lanes.
    #[must_use]
    pub fn new(me: Pe, n_pes: u32, lanes: usize) -> Self {
        let connections = (0..2 * n_pes as usize * lanes).map(|_| Inbound::default()).collect();
        Agent {
            me,
            n_pes,
            lanes,
            connections,
            introductions: Vec::new(),
            owed: Vec::with_capacity(64),
            later: Vec::with_capacity(64),
            regions: Regions::new(0),
            message: Vec::with_capacity(4096),
            staged: None,
            applied: 0,
            refused: 0,
        }
    }

    /// Makes a segment of this PE reachable for requests.
    pub fn add_segment(&mut self, segment: symrail_transport::region::Segment) {
        self.regions.add(segment, Vec::new());
    }

    /// Closes a segment to requests.
    pub fn remove_segment(&mut self, id: u32) {
        self.regions.remove(id);
    }

    /// From now on requests that take longer are kept for [`Agent::next_long`].
    pub(crate) fn stage(&mut self) {
        self.staged.get_or_insert_default();
    }

    /// The next request that takes longer.
    pub(crate) fn next_long(&mut self) -> Option<Long> {
        self.staged.as_mut().and_then(VecDeque::pop_front)
    }

    /// Tells what has become of such a request, with the next answer.
    pub(crate) fn tell(&mut self, connection: u32, outcome: Outcome) {
        self.refused += u64::from(outcome.refusal != Refusal::None);
        let Some(c) = self.connections.get_mut(connection as usize) else { return };
        c.outcomes.push(outcome);
        if !c.urgent {
            (c.owed, c.urgent) = (true, true);
            self.owed.push(connection);
        }
    }

    /// Makes room for an endpoint that introduces itself.
    fn meet(&mut self, request: &Request, address: &[u8]) {
        if request.origin < FROM_CONTEXT {
            return; // these were connected when the job began
        }
        let known = (usize::from(request.origin) + 1) * self.n_pes as usize * self.lanes;
        if self.connections.len() < known {
            self.connections.resize_with(known, Inbound::default);
        }
        self.introductions.push(Introduction { pe: request.source, origin: request.origin, address: address.to_vec() });
    }

    /// The next endpoint to connect to.
    pub(crate) fn next_introduction(&mut self) -> Option<Introduction> {
        self.introductions.pop()
    }

    /// Whether a request is about memory that is not this agent's: then it is staging's.
    fn takes_longer(&self, request: &Request) -> bool {
        self.staged.is_some()
            && request.fetch
            && (request.kind != RequestKind::Amo || self.regions.local(request.offset, 1).is_none())
    }

    /// Requests applied and refused so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.applied, self.refused)
    }

    /// Whether answers wait to be sent.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.owed.is_empty() || !self.later.is_empty()
    }

    /// Sends the answers that are due, with `all` also those that can wait; what finds no room is sent the next time.
    pub fn answer(&mut self, endpoint: &mut Endpoint, all: bool) {
        if all {
            self.owed.append(&mut self.later);
        }
        let most = endpoint.caps().iter().map(|c| c.max_send).min().unwrap_or(0);
        let per_message = (most.saturating_sub(Reply::SIZE) / Reply::OUTCOME).clamp(1, usize::from(u16::MAX));
        let mut waiting = std::mem::take(&mut self.owed);
        waiting.retain(|&at| !self.answer_one(at as usize, per_message, endpoint));
        self.owed = waiting;
    }

    fn answer_one(&mut self, at: usize, per_message: usize, endpoint: &mut Endpoint) -> bool {
        let (lane, source) = (at % self.lanes, at / self.lanes);
        let (pe, origin) = (source % self.n_pes as usize, source / self.n_pes as usize);
        let Some(c) = self.connections.get_mut(at).filter(|c| c.owed) else { return true };
        loop {
            let (now, last) = (c.outcomes.len().min(per_message), c.outcomes.len() <= per_message);
            // Operations end with their acknowledgement, so it goes with the last of their outcomes.
            let applied = if last { c.applied } else { c.acknowledged };
            let reply = Reply { source: self.me, applied, outcomes: now as u16 };
            self.message.clear();
            self.message.extend_from_slice(&reply.encode());
            for outcome in c.outcomes.iter().take(now) {
                self.message.extend_from_slice(&Reply::encode_outcome(outcome));
            }
            if !endpoint.reply(pe as Pe, origin as Origin, lane, &self.message) {
                return false;
            }
            c.outcomes.drain(..now);
            if last {
                c.acknowledged = applied;
                (c.owed, c.urgent) = (false, false);
                return true;
            }
        }
    }

    /// Applies a request to memory that the CPU reaches.
    pub(crate) fn apply(&mut self, request: &Request, payload: &[u8]) -> Result<u64, Refusal> {
        match request.kind {
            RequestKind::Flush | RequestKind::Introduce => Ok(0),
            RequestKind::Pull | RequestKind::PullSignal | RequestKind::Push => Err(Refusal::Undefined),
            RequestKind::Amo => {
                let word = self.word(request.offset, request.ty.size())?;
                if !request.op.defined_on(request.ty) {
                    return Err(Refusal::Undefined);
                }
                // SAFETY: `word` checked that the word is inside of a mapped segment and aligned.
                Ok(unsafe { amo::apply(word, request.ty, request.op, request.operand, request.second) })
            }
            RequestKind::Put => {
                let to = self.range(request.offset, payload.len())?;
                // SAFETY: the destination is inside of mapped segments; the payload lies in a receive buffer outside of them.
                unsafe { copy(to, payload.as_ptr(), payload.len()) };
                Ok(0)
            }
            RequestKind::PutSignal => {
                let signal = self.word(request.second, 8)?;
                let to = self.range(request.offset, payload.len())?;
                // SAFETY: the destination is inside of mapped segments, the signal was checked, and the payload lies in
                // a receive buffer outside of them.
                unsafe {
                    copy(to, payload.as_ptr(), payload.len());
                    fence(Ordering::Release);
                    amo::apply(signal, amo::AmoType::U64, request.op, request.operand, 0);
                }
                Ok(0)
            }
        }
    }

    /// Where `len` bytes at an offset are, if the CPU reaches them.
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

impl TargetAgent for Agent {
    fn request(&mut self, lane: usize, request: &Request, payload: &[u8]) {
        let source = usize::from(request.origin) * self.n_pes as usize + request.source as usize;
        let at = source * self.lanes + lane;
        if request.kind == RequestKind::Introduce && request.sequence == 1 {
            self.meet(request, payload);
        }
        let Some(expected) = self.connections.get(at).map(|c| c.applied.wrapping_add(1)) else { return };
        if request.sequence != expected {
            // The fabric keeps messages of a connection in order, so this is not one of our peers speaking.
            self.refused += 1;
            if self.refused == 1 {
                tracing::warn!(
                    pe = request.source,
                    lane,
                    got = request.sequence,
                    expected,
                    "a request out of sequence; dropped"
                );
            }
            return;
        }
        let staged = if self.takes_longer(request) { self.staged.as_mut() } else { None };
        let result = match staged {
            Some(staged) => {
                staged.push_back(Long { connection: at as u32, request: *request, payload: payload.to_vec() });
                None
            }
            None => Some(self.apply(request, payload)),
        };
        let c = &mut self.connections[at];
        c.applied = expected;
        match result.unwrap_or(Ok(0)) {
            Ok(value) if request.fetch && result.is_some() => {
                c.outcomes.push(Outcome { id: request.id, value, refusal: Refusal::None });
            }
            Ok(_) => {}
            Err(refusal) => {
                self.refused += 1;
                c.outcomes.push(Outcome { id: request.id, value: 0, refusal });
            }
        }
        self.applied += 1;
        let urgent = request.urgent || c.applied.wrapping_sub(c.acknowledged) >= ACKNOWLEDGE_AFTER;
        if urgent && !c.urgent {
            // It may stand in `later` too; answering twice is harmless, answering late is not.
            (c.owed, c.urgent) = (true, true);
            self.owed.push(at as u32);
        } else if !std::mem::replace(&mut c.owed, true) {
            self.later.push(at as u32);
        }
    }
}
