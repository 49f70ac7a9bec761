//! What the sending and the receiving end of a connection have in common: the session, the other end's state, operations
//! that nobody waits for, and the first failure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::{Link, State};
use symrail_proxy::session::{Place, Registered, Request};

use crate::network::Network;
use crate::report::{Failure, Result};
use crate::ring::SLOTS;

/// Calls between two looks at the other end's state, each of which is a system call.
const CALLS_PER_LOOK: u32 = 64;

/// One end of a connection.
pub struct Channel {
    pub network: Arc<Network>,
    /// The other end's ring.
    ring: Registered,
    link: Link,
    failed: Option<Failure>,
    calls: u32,
    /// When the other end last gave a sign of life, and the question for the next one.
    heard: Instant,
    probe: Option<Request>,
    /// The last operations that nobody waits for: the other end acknowledges them at leisure.
    unawaited: VecDeque<Request>,
}

/// A question for a sign of life: what is this word of the other end's ring? The answer goes to the address.
#[derive(Clone, Copy)]
pub struct Question {
    pub word: usize,
    pub answer: *mut u8,
    /// The answer is needed. Else any sign of life will do, unless the link cannot tell of an end that closes. Where
    /// agents do not answer reads, a sign of life is all: nothing is lost there that no end reports.
    pub is_needed: bool,
}

impl Channel {
    pub fn new(network: Arc<Network>, link: Link, ring: Memory) -> Channel {
        let ring = Registered::of_peer(&network.session, ring);
        Channel {
            network,
            ring,
            link,
            failed: None,
            calls: 0,
            heard: Instant::now(),
            probe: None,
            unawaited: VecDeque::new(),
        }
    }

    /// The peer's number.
    pub fn pe(&self) -> u32 {
        self.link.pe()
    }

    /// A word of the other end's ring.
    pub fn place(&self, word: usize) -> Place<'_> {
        self.ring.place(8 * word as u64)
    }

    /// The first failure, which all later calls return.
    pub fn usable(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Keeps a failure, unless there is an earlier one. Returns the one that is kept.
    pub fn fail(&mut self, failure: impl Into<Failure>) -> Failure {
        if let Some(earlier) = &self.failed {
            return earlier.clone();
        }
        let failure = failure.into();
        self.failed = Some(failure.told());
        failure
    }

    /// Notes a sign of life.
    pub fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Keeps an operation that nobody waits for, so that its failure is noticed.
    pub fn keep(&mut self, operation: Option<Request>) {
        if self.unawaited.len() >= SLOTS {
            self.unawaited.pop_front();
        }
        self.unawaited.extend(operation);
    }

    /// Looks after the other end, from time to time. `arrived` tells whether what the caller waits for is there after
    /// all: an end that closes has sent everything before. Returns whether the other end has answered the question.
    ///
    /// # Errors
    /// The other end has closed, its process has ended, or it does not answer. An operation that nobody waits for has
    /// failed.
    pub fn look(&mut self, arrived: impl Fn() -> bool, question: Question) -> Result<bool> {
        self.usable()?;
        if !self.is_time_to_look() {
            return Ok(false);
        }
        while let Some(outcome) = self.unawaited.front().and_then(Request::outcome) {
            self.unawaited.pop_front();
            if let (Err(error), State::Open) = (outcome, self.link.state()) {
                return Err(self.fail(error));
            }
        }
        let why = match self.link.poll(&self.network.session) {
            State::Open => return self.ask(question),
            State::Closed => "the other end has closed the connection".into(),
            State::Left | State::Lost(_) | State::Failed(_) => self.remove_peer(),
        };
        if arrived() { Ok(false) } else { Err(self.fail(Failure::remote(why))) }
    }

    /// Whether the other end has closed, or its process has ended. Only some of the calls look.
    pub fn has_closed(&mut self) -> bool {
        self.is_time_to_look() && *self.link.poll(&self.network.session) != State::Open
            || *self.link.state() != State::Open
    }

    /// Whether the other end has closed in order, with nothing under way, as far as the last look has shown.
    pub fn has_said_goodbye(&self) -> bool {
        matches!(self.link.state(), State::Closed | State::Left)
    }

    /// Whether the peer answers a question over each rail in time.
    pub fn answers_over_all_rails(&mut self, limit: Duration) -> bool {
        let (pe, session, begun) = (self.link.pe(), &self.network.session, Instant::now());
        if pe == session.me() {
            return true;
        }
        let (mut rails, mut asked) = (0..session.rails().len(), None);
        while *self.link.poll(session) == State::Open && begun.elapsed() < limit {
            let question = match asked.take() {
                Some(question) => question,
                None => match rails.next() {
                    Some(rail) => (rail, None),
                    None => return true,
                },
            };
            let (rail, request) = question;
            match request.map_or_else(|| session.start_probe_over(rail, pe), |it| Ok(Some(it))) {
                Ok(Some(request)) => match session.test(&request) {
                    Ok(true) => {}
                    Ok(false) => asked = Some((rail, Some(request))),
                    Err(_) => return false,
                },
                Ok(None) => asked = Some((rail, None)),
                Err(_) => return false,
            }
            std::thread::yield_now();
        }
        false
    }

    /// Ends the connections to the peer. Returns whether there was one.
    pub fn end_connections(&self) -> bool {
        self.network.session.end_connections(self.pe())
    }

    /// Counts a call. Returns whether it is one that looks at the other end.
    fn is_time_to_look(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.calls.is_multiple_of(CALLS_PER_LOOK)
    }

    /// Removes the peer if its session or its process has ended, so that operations do not wait for it. Returns why.
    fn remove_peer(&mut self) -> String {
        let pe = self.link.pe();
        let why = match self.link.poll(&self.network.session) {
            State::Open | State::Closed => return String::new(),
            State::Left => format!("peer {pe} has closed the connection and has ended"),
            State::Lost(why) | State::Failed(why) => format!("peer {pe} is lost: {why}"),
        };
        self.network.session.remove_peer(pe, &why);
        why
    }

    /// Asks a peer for a sign of life that has given none for a while. A host that has failed closes no connection.
    /// Returns whether it has answered.
    fn ask(&mut self, question: Question) -> Result<bool> {
        if let Some(probe) = &self.probe {
            match probe.outcome() {
                None => return Ok(false),
                Some(Err(error)) => return Err(self.fail(error)),
                Some(Ok(())) => (self.probe, self.heard) = (None, Instant::now()),
            }
            return Ok(true);
        }
        let here = self.pe() == self.network.session.me();
        if !here && self.heard.elapsed() > self.network.timeout / 2 {
            let session = &self.network.session;
            let Question { word, answer, is_needed } = question;
            let asked = match session.agent_reads_words() && (is_needed || self.link.is_broken()) {
                // SAFETY: a word of this end's ring, which outlives the channel's operations.
                true => unsafe { session.start_get_by_agent(self.place(word), answer) },
                false => session.start_probe(self.pe()),
            };
            self.probe = asked.map_err(|error| self.fail(error))?;
        }
        Ok(false)
    }

    /// Waits until everything that this end has started has arrived, before the end closes. `counted`: also what was
    /// counted.
    pub fn finish(&mut self, counted: bool) {
        let unawaited: Vec<Request> = self.unawaited.drain(..).chain(self.probe.take()).collect();
        let (pe, session) = (self.pe(), &self.network.session);
        let mut probe = Ok(None);
        if counted && self.failed.is_none() && *self.link.poll(session) == State::Open && pe != session.me() {
            // The acknowledgement of a probe is behind all writes on its way.
            let begun = Instant::now();
            probe = session.start_probe(pe);
            while matches!(probe, Ok(None)) && begun.elapsed() < self.network.timeout {
                session.progress();
                std::thread::yield_now();
                probe = session.start_probe(pe);
            }
        }
        let probe = probe.ok().flatten();
        self.settle(unawaited.iter().chain(&probe));
        // The peer's other connections need not wait as long.
        if let Some(Err(error)) = probe.as_ref().and_then(Request::outcome) {
            self.network.session.remove_peer(pe, &error.to_string());
        }
    }

    /// Waits until these operations have ended: their memory is about to be freed. It is bounded, because operations
    /// end by themselves.
    pub fn settle<'a>(&mut self, requests: impl Iterator<Item = &'a Request>) {
        let begun = Instant::now();
        for request in requests {
            while self.network.session.test(request).is_ok_and(|ended| !ended)
                && begun.elapsed() < 2 * self.network.timeout
            {
                if self.is_time_to_look() {
                    self.remove_peer();
                }
                std::thread::yield_now();
            }
        }
    }
}
