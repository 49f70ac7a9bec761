//! The sending end of a connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use slab::Slab;
use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};
use symrail_proxy::session::{Part, Registered, Request, Words};
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::channel::{Channel, Question};
use crate::network::Network;
use crate::report::{Failure, Result};
use crate::ring::sender::{ANSWER, COPIES, SENT, SIZES, WORDS};
use crate::ring::{
    EAGER_BYTES, EAGER_HEAD, EAGER_SLOTS, HEAD_WORDS, REFUSED, SLOT_WORDS, SLOTS, eager_slot, receiver, size_word,
};

/// The messages and descriptors of a tag so far.
#[derive(Default, Clone, Copy)]
struct Count {
    sent: u32,
    described: u32,
}

/// Registrations of the receiver that are kept, before the others are forgotten.
const MAX_HANDLES: usize = 64;

/// A buffer that the receiver has posted.
struct Posted {
    number: u64,
    size: u64,
    offset: u64,
    memory: Memory,
}

/// The sending end.
pub struct Sender {
    channel: Channel,
    ring: Words,
    /// Arrivals at the other end are counted.
    counts: bool,
    /// The number of the next descriptor.
    next: u64,
    /// The buffers of each tag, in the order in which they were posted.
    posted: HashMap<i32, VecDeque<Posted>>,
    /// The receiver's memory that the session knows by operations of this end, by offset.
    known: HashMap<u64, Registered>,
    /// At most [`SLOTS`]: the operation, none for a message that was copied, and the size.
    requests: Slab<(Option<Request>, u64)>,
    /// All messages so far, and those of each tag.
    sent: u64,
    by_tag: HashMap<i32, Count>,
    /// Messages to eager slots, those that the receiver has taken as far as this end knows, and the last puts of their
    /// copies.
    eager: u64,
    taken: u64,
    /// Those whose descriptors have not arrived: tag, number among those of the tag, size.
    undescribed: VecDeque<(i32, u32, u64)>,
    puts: [Option<Request>; EAGER_SLOTS],
}

impl Sender {
    /// The ring of a sending end, whose handle goes to the receiver.
    pub fn ring(network: &Arc<Network>) -> Result<Words> {
        Ok(Words::new(&network.session, WORDS)?)
    }

    pub fn new(channel: Channel, ring: Words) -> Sender {
        let counts = channel.network.session.counts_in(channel.place(receiver::WORDS - 1));
        Sender {
            channel,
            ring,
            counts,
            next: 0,
            posted: HashMap::new(),
            known: HashMap::new(),
            requests: Slab::with_capacity(SLOTS),
            sent: 0,
            by_tag: HashMap::new(),
            eager: 0,
            taken: 0,
            undescribed: VecDeque::new(),
            puts: [const { None }; EAGER_SLOTS],
        }
    }

    /// Starts to send. Returns the index of the request; `None` while the receiver has posted no buffer with the tag.
    ///
    /// # Safety
    /// The data stays valid and unchanged until the request is done or this end is closed.
    pub unsafe fn start(&mut self, data: *const u8, size: u64, tag: i32) -> Result<Option<usize>> {
        self.channel.usable()?;
        self.take_posted()?;
        let first = self.posted.get(&tag).and_then(VecDeque::front).filter(|_| self.requests.len() < SLOTS);
        let Some(&Posted { number, size: room, offset, ref memory }) = first else {
            if self.requests.len() < SLOTS {
                // SAFETY: the caller's promise.
                let sent = unsafe { self.send_eagerly(data, size, tag) }?;
                if let Some(request) = sent {
                    return Ok(Some(self.requests.insert((request, size))));
                }
            }
            self.channel.network.session.progress();
            self.channel.look(|| false, question(&self.ring))?;
            return Ok(None);
        };
        let slot = number as usize % SLOTS;
        let word = self.channel.place(receiver::SIGNALS + slot);
        let fits = size <= room;
        // Nothing is written where there is nothing to write, or no room for it.
        let to = if size > 0 && fits { memory.place(offset) } else { word };
        let len = if fits { size } else { 0 };
        let value = size_word(number, if fits { size } else { REFUSED });
        let session = &self.channel.network.session;
        let signal = (AmoOp::Set, value);
        let travels_with_signal = len <= session.message_limit();
        let started = if travels_with_signal {
            // SAFETY: the source is copied now.
            unsafe { session.start_put_signal_at_leisure(to, (Source::Copied(data), len), word, signal) }
        } else if self.counts {
            self.ring.store(SIZES + slot, value);
            let size = Part {
                place: self.channel.place(receiver::SIZES + slot),
                local: self.ring.address(SIZES + slot).cast_mut(),
                len: 8,
            };
            let data = Part { place: to, local: data.cast_mut(), len };
            // SAFETY: the caller's promise. The slot is used again when the receiver has got this message.
            unsafe { session.start_counted([size, data], self.channel.place(receiver::COUNTS + slot)) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { session.start_put_signal(to, (Source::Stable(data), len), word, signal) }
        };
        let request = match started {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.channel.fail(error)),
        };
        let request = if travels_with_signal {
            self.channel.keep(Some(request));
            self.channel.network.session.send_gathered();
            None
        } else {
            Some(request)
        };
        let index = self.requests.insert((request, size));
        self.count(tag);
        if let Some(posted) = self.take_first(tag) {
            self.remember(posted.memory);
        }
        if !fits {
            return Err(self.channel.fail(too_large(size, tag, room)));
        }
        Ok(Some(index))
    }

    /// Counts a message. Returns its number among those of its tag.
    fn count(&mut self, tag: i32) -> u32 {
        self.sent += 1;
        self.ring.store(SENT, self.sent);
        let count = self.by_tag.entry(tag).or_default();
        let next = count.sent.wrapping_add(1);
        std::mem::replace(&mut count.sent, next)
    }

    /// Puts a message into an eager slot, if it is small and a slot is free. Returns the operation, none for a message
    /// that was copied.
    ///
    /// # Safety
    /// As for [`Sender::start`].
    unsafe fn send_eagerly(&mut self, data: *const u8, size: u64, tag: i32) -> Result<Option<Option<Request>>> {
        let slot = self.eager as usize % EAGER_SLOTS;
        // The receiver keeps messages whose receives are not posted: those are among the undescribed ones.
        let kept = self.undescribed.len() >= EAGER_SLOTS;
        if size > EAGER_BYTES as u64 || self.eager - self.taken >= EAGER_SLOTS as u64 || kept {
            return Ok(None);
        }
        if let Some(put) = &self.puts[slot] {
            match self.channel.network.session.test(put) {
                Ok(true) => self.puts[slot] = None,
                Ok(false) => return Ok(None),
                Err(error) => return Err(self.channel.fail(error)),
            }
        }
        let session = &self.channel.network.session;
        let ordinal = self.by_tag.get(&tag).map_or(0, |count| count.sent);
        let (at, _) = eager_slot(self.eager);
        let (here, there) = (COPIES + at + 1, receiver::EAGER + at);
        self.ring.store(here, u64::from(ordinal) << 32 | u64::from(tag as u32));
        self.ring.store(here + 1, size_word(self.eager, size));
        let (word, to, head) = (self.channel.place(there), self.channel.place(there + 1), 8 * EAGER_HEAD as u64);
        let (bytes, limit) = (head + size, session.message_limit());
        let counted = self.counts && bytes > limit;
        let started = if counted {
            let head = Part { place: to, local: self.ring.address(here).cast_mut(), len: head };
            let data = Part { place: self.channel.place(there + 1 + EAGER_HEAD), local: data.cast_mut(), len: size };
            // SAFETY: the caller's promise; the slot is used again when the receiver has taken this message.
            unsafe { session.start_counted([head, data], word) }
        } else {
            // SAFETY: the caller's promise; no put from this slot is under way.
            unsafe { self.ring.write_bytes(here + EAGER_HEAD, data, size as usize) };
            let copy = self.ring.address(here);
            let source = if bytes <= limit { Source::Copied(copy) } else { Source::Stable(copy) };
            // SAFETY: what is not copied now is not changed before the put has ended.
            unsafe { session.start_put_signal_at_leisure(to, (source, bytes), word, (AmoOp::Add, 1)) }
        };
        let request = match started {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.channel.fail(error)),
        };
        let request = if counted {
            Some(request)
        } else if bytes <= limit {
            self.channel.keep(Some(request));
            self.channel.network.session.send_gathered();
            None
        } else {
            self.puts[slot] = Some(request);
            self.channel.network.session.send_gathered();
            None
        };
        self.count(tag);
        self.undescribed.push_back((tag, ordinal, size));
        self.eager += 1;
        Ok(Some(request))
    }

    /// Takes the descriptors that have arrived, in the order in which they were posted.
    fn take_posted(&mut self) -> Result<()> {
        loop {
            let first = self.next as usize % SLOTS * SLOT_WORDS;
            if self.ring.load(first) != self.next + 1 {
                return Ok(());
            }
            let word = |at: usize| self.ring.load(first + 1 + at);
            let (size, offset, tag, bytes) = (word(0), word(1), word(2) as u32 as i32, (word(2) >> 32) as usize);
            let handle: Vec<u8> =
                (0..bytes.min(HANDLE_SIZE).div_ceil(8)).flat_map(|at| word(HEAD_WORDS + at).to_le_bytes()).collect();
            let memory = Memory::of_peer(self.channel.pe(), &handle).map_err(|error| self.channel.fail(error))?;
            let taken = word(3);
            if taken > self.eager || taken < self.taken {
                let why = format!("a descriptor that counts {taken} messages of {}", self.eager);
                return Err(self.channel.fail(Failure::remote(why)));
            }
            self.taken = taken;
            let count = self.by_tag.entry(tag).or_default();
            let ordinal = count.described;
            count.described = ordinal.wrapping_add(1);
            match self.undescribed.iter().position(|message| (message.0, message.1) == (tag, ordinal)) {
                // Its message has gone to an eager slot.
                Some(at) => match self.undescribed.remove(at) {
                    Some((.., sent)) if sent > size => return Err(self.channel.fail(too_large(sent, tag, size))),
                    _ => {}
                },
                None => {
                    self.posted.entry(tag).or_default().push_back(Posted { number: self.next, size, offset, memory });
                }
            }
            self.next += 1;
            self.channel.heard();
        }
    }

    /// Takes the buffer with the tag that was posted first.
    fn take_first(&mut self, tag: i32) -> Option<Posted> {
        let of_tag = self.posted.get_mut(&tag)?;
        let first = of_tag.pop_front();
        // The receiver may use any number of tags, one after the other.
        if of_tag.is_empty() && self.posted.len() > SLOTS {
            self.posted.remove(&tag);
        }
        first
    }

    /// Keeps the memory of a buffer to which an operation was started, and lets the session forget the others when
    /// there are many.
    fn remember(&mut self, memory: Memory) {
        // Memory may be in use by an operation that has not been posted to a rail.
        if self.known.len() >= MAX_HANDLES && self.requests.len() <= 1 && !self.known.contains_key(&memory.offset()) {
            self.known.clear();
        }
        let session = &self.channel.network.session;
        self.known.entry(memory.offset()).or_insert_with(|| Registered::of_peer(session, memory));
    }

    /// Whether a request is done, and its size. It is free again when it is done or has failed.
    pub fn test(&mut self, index: usize) -> Result<Option<u64>> {
        let Some((request, size)) = self.requests.get(index) else {
            return Err(Failure::argument("a request that is not under way"));
        };
        let ended = request.as_ref().map_or(Ok(true), |request| self.channel.network.session.test(request));
        match ended {
            Ok(true) => {
                let size = *size;
                drop(self.requests.remove(index));
                Ok(Some(size))
            }
            // A receiver that has closed may have received everything; then the acknowledgement is on its way.
            Ok(false) => self.channel.look(|| true, question(&self.ring)).map(|_| None),
            Err(error) => {
                drop(self.requests.remove(index));
                Err(self.channel.fail(error))
            }
        }
    }

    /// Waits for operations that still use the caller's memory.
    pub fn settle(&mut self) {
        let requests = self.requests.iter().filter_map(|(_, (request, _))| request.as_ref());
        self.channel.settle(requests.chain(self.puts.iter().flatten()));
    }

    pub fn network(&self) -> &Arc<Network> {
        &self.channel.network
    }
}

/// The question for a sign of life of the receiver: a word of its ring, which is there until it closes.
fn question(ring: &Words) -> Question {
    Question { word: receiver::ANSWER, answer: ring.address(ANSWER).cast_mut(), is_needed: false }
}

fn too_large(size: u64, tag: i32, room: u64) -> Failure {
    Failure::usage(format!("a message of {size} bytes with tag {tag} for a buffer of {room}"))
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.settle();
        if self.sent > 0 {
            self.channel.finish(self.counts);
        }
    }
}
