//! Messages of one stream to one peer: those that wait for room in its ring, and those whose writes have not ended.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use symrail_core::encoding;
use symrail_proxy::session::{Registered, Request, Session};
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::error::{Error, Result};
use crate::ring::{FRAGMENT, Fragment, Ring, SLOTS, Stream, stamp};
use crate::sharing;

/// The most bytes of a notification.
pub const MOST_BYTES: usize = 16 << 20;
/// The most notifications to one peer that wait.
const MOST_WAITING: usize = 1 << 16;

/// How a notification has ended; unset until it is in the peer's memory.
pub type Delivery = OnceLock<Result<()>>;

struct Message {
    bytes: Vec<u8>,
    /// The first byte that was not sent.
    at: usize,
    delivery: Arc<Delivery>,
}

pub struct Outbox {
    stream: Stream,
    /// The number of the next fragment.
    next: u64,
    waiting: VecDeque<Message>,
    /// Writes of fragments; those of the last fragment of a message with its delivery.
    under_way: VecDeque<(Request, Option<Arc<Delivery>>)>,
    /// Since when the peer has had no room, and whether that was said.
    blocked: Option<(Instant, bool)>,
}

impl Outbox {
    pub fn new(stream: Stream) -> Outbox {
        Outbox { stream, next: 0, waiting: VecDeque::new(), under_way: VecDeque::new(), blocked: None }
    }

    /// Whether a message is not too large.
    pub fn check(message: &[u8]) -> Result<()> {
        if message.len() > MOST_BYTES {
            let why = format!("it has {} bytes; use at most {MOST_BYTES}", message.len());
            return Err(Error::Argument { what: "notification", why });
        }
        Ok(())
    }

    /// Adds a message.
    ///
    /// # Errors
    /// It is too large, or too many wait.
    pub fn add(&mut self, message: &[u8]) -> Result<Arc<Delivery>> {
        Outbox::check(message)?;
        if self.is_full() {
            let why = format!("{MOST_WAITING} wait for this agent, which takes none: send it fewer");
            return Err(Error::Argument { what: "notification", why });
        }
        Ok(self.push(message.to_vec()))
    }

    /// Adds a message to the agent itself.
    pub fn tell(&mut self, message: &sharing::Message) {
        self.push(encoding::encode(message));
    }

    fn push(&mut self, bytes: Vec<u8>) -> Arc<Delivery> {
        let delivery = Arc::new(Delivery::new());
        self.waiting.push_back(Message { bytes, at: 0, delivery: Arc::clone(&delivery) });
        delivery
    }

    /// Whether so many wait that no other is added.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MOST_WAITING
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// Notes writes that have ended, and starts others as far as the peer has room. `ours` is the ring of the same
    /// connection in this process.
    ///
    /// # Errors
    /// The first write that has failed: nothing behind it can arrive.
    pub fn advance(
        &mut self,
        session: &Session,
        (ours, theirs): (&Ring, &Registered),
    ) -> symrail_transport::Result<()> {
        while let Some(ended) = self.under_way.front().and_then(|(request, _)| request.outcome()) {
            ended?;
            if let Some((_, Some(delivery))) = self.under_way.pop_front() {
                // It is set once, since its entry is gone.
                let _ = delivery.set(Ok(()));
            }
        }
        let most = FRAGMENT.min(session.copy_limit());
        while let Some(message) = self.waiting.front_mut() {
            if self.next.saturating_sub(ours.taken_by_peer(self.stream)) >= SLOTS {
                self.blocked.get_or_insert_with(|| (Instant::now(), false));
                return Ok(());
            }
            self.blocked = None;
            let rest = &message.bytes[message.at..];
            let (len, more) = (rest.len().min(most), rest.len() > most);
            let at = |offset| theirs.place(self.stream.slot(self.next) + offset);
            let value = (AmoOp::Set, stamp(self.next, len, more));
            // SAFETY: the source is copied during the call.
            let started =
                unsafe { session.start_put_signal(at(8), (Source::Copied(rest.as_ptr()), len as u64), at(0), value) };
            let Some(request) = started? else { return Ok(()) };
            self.next += 1;
            message.at += len;
            let ends = if more { None } else { self.waiting.pop_front().map(|message| message.delivery) };
            self.under_way.push_back((request, ends));
        }
        Ok(())
    }

    /// The number of messages for which the peer has had no room for so long; once in each such time.
    pub fn overdue(&mut self, limit: Duration) -> Option<usize> {
        let (_, told) = self.blocked.as_mut().filter(|(since, told)| !told && since.elapsed() >= limit)?;
        *told = true;
        Some(self.waiting.len())
    }

    /// Fails the messages that are not under way. The peer is lost; its acknowledgements of the others may be on their
    /// way, or received and not yet noted.
    pub fn fail_waiting(&mut self, error: &Error) {
        for message in self.waiting.drain(..) {
            let _ = message.delivery.set(Err(error.clone()));
        }
    }

    /// Notes the writes to a lost peer that have ended.
    pub fn settle(&mut self, error: &Error) {
        while let Some(ended) = self.under_way.front().and_then(|(request, _)| request.outcome()) {
            if let Some((_, Some(delivery))) = self.under_way.pop_front() {
                let _ = delivery.set(ended.map_err(|_| error.clone()));
            }
        }
    }

    /// Fails everything that has not ended.
    pub fn fail(&mut self, error: &Error) {
        self.fail_waiting(error);
        for delivery in self.under_way.drain(..).filter_map(|(_, delivery)| delivery) {
            let _ = delivery.set(Err(error.clone()));
        }
    }
}

/// Tells a peer how many fragments of a stream were taken out of the ring that it fills. Returns `false` if there is no
/// room now.
fn confirm(session: &Session, theirs: &Registered, stream: Stream, taken: u64) -> symrail_transport::Result<bool> {
    let word = theirs.place(stream.taken());
    let nothing = (Source::Stable(std::ptr::null()), 0);
    // SAFETY: no byte is read from the source.
    let started = unsafe { session.start_put_signal(word, nothing, word, (AmoOp::Set, taken)) };
    Ok(started?.is_some())
}

/// A message of a stream that arrives in fragments.
pub struct Incoming {
    stream: Stream,
    /// The number of the next fragment.
    next: u64,
    confirmed: u64,
    bytes: Vec<u8>,
}

impl Incoming {
    pub fn new(stream: Stream) -> Incoming {
        Incoming { stream, next: 0, confirmed: 0, bytes: Vec::new() }
    }

    /// The next whole message in `ring`, if it has arrived. `last` says that the peer has left: it writes no more.
    ///
    /// # Errors
    /// A message that is too large.
    pub fn next(&mut self, ring: &Ring, last: bool) -> Result<Option<Vec<u8>>, String> {
        // A ring holds so many. A peer that has not really left would go on for ever.
        while self.next - self.confirmed < 2 * SLOTS
            && let Some(Fragment { bytes, more }) = ring.fragment(self.stream, self.next)
        {
            self.next += 1;
            self.bytes.extend_from_slice(&bytes);
            if self.bytes.len() > MOST_BYTES {
                return Err(format!("it has sent a notification of more than {MOST_BYTES} bytes"));
            }
            if !more {
                return Ok(Some(std::mem::take(&mut self.bytes)));
            }
            // A long message needs room behind its first fragments.
            if !last && self.next - self.confirmed >= SLOTS / 2 {
                break;
            }
        }
        Ok(None)
    }

    /// Confirms fragments to the peer, not each one alone.
    pub fn confirm(&mut self, session: &Session, theirs: &Registered) -> symrail_transport::Result<()> {
        if self.next - self.confirmed >= SLOTS / 4 && confirm(session, theirs, self.stream, self.next)? {
            self.confirmed = self.next;
        }
        Ok(())
    }
}
