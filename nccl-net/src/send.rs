//! The sending end of a connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use slab::Slab;
use symrail_proxy::session::memory::{HANDLE_SIZE, Memory};
use symrail_proxy::session::{Registered, Request, Words};
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::channel::Channel;
use crate::network::Network;
use crate::receive::EAGER_AT;
use crate::report::{Failure, Result};
use crate::ring::{
    EAGER_BYTES, EAGER_HEAD, EAGER_SLOTS, EAGER_WORDS, HEAD_WORDS, REFUSED, SLOT_WORDS, SLOTS, size_word,
};

/// The first word of the copies of messages for eager slots.
const COPIES_AT: usize = SLOTS * SLOT_WORDS;

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
    /// The number of the next descriptor.
    next: u64,
    /// The buffers of each tag, in the order in which they were posted.
    posted: HashMap<i32, VecDeque<Posted>>,
    /// The receiver's memory that the session knows by operations of this end, by offset.
    known: HashMap<u64, Registered>,
    /// At most [`SLOTS`]: the operation, none for a message that was copied, and the size.
    requests: Slab<(Option<Request>, u64)>,
    counts: HashMap<i32, Count>,
    /// Messages to eager slots, those that the receiver has taken as far as this end knows, and the last puts.
    eager: u64,
    taken: u64,
    /// Those whose descriptors have not arrived: tag, number among those of the tag, size.
    undescribed: VecDeque<(i32, u32, u64)>,
    puts: [Option<Request>; EAGER_SLOTS],
}

impl Sender {
    /// The ring of a sending end, whose handle goes to the receiver.
    pub fn ring(network: &Arc<Network>) -> Result<Words> {
        Ok(Words::new(&network.session, COPIES_AT + EAGER_SLOTS * EAGER_WORDS)?)
    }

    pub fn new(channel: Channel, ring: Words) -> Sender {
        let (posted, known, requests) = (HashMap::new(), HashMap::new(), Slab::with_capacity(SLOTS));
        let (counts, puts) = (HashMap::new(), [const { None }; EAGER_SLOTS]);
        let undescribed = VecDeque::new();
        Sender { channel, ring, next: 0, posted, known, requests, counts, eager: 0, taken: 0, undescribed, puts }
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
            // SAFETY: the caller's promise.
            if self.requests.len() < SLOTS && unsafe { self.send_eagerly(data, size, tag) }? {
                return Ok(Some(self.requests.insert((None, size))));
            }
            self.channel.network.session.progress();
            self.channel.look(|| false)?;
            return Ok(None);
        };
        let word = self.channel.place(number as usize % SLOTS);
        let fits = size <= room;
        // Nothing is written where there is nothing to write, or no room for it.
        let to = if size > 0 && fits { memory.place(offset) } else { word };
        let len = if fits { size } else { 0 };
        let value = size_word(number, if fits { size } else { REFUSED });
        let session = &self.channel.network.session;
        // SAFETY: the caller's promise.
        let started = unsafe { session.start_put_signal(to, (Source::Stable(data), len), word, (AmoOp::Set, value)) };
        let request = match started {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.channel.fail(error)),
        };
        let index = self.requests.insert((Some(request), size));
        let count = self.counts.entry(tag).or_default();
        count.sent = count.sent.wrapping_add(1);
        if let Some(posted) = self.take_first(tag) {
            self.remember(posted.memory);
        }
        if !fits {
            return Err(self.channel.fail(too_large(size, tag, room)));
        }
        Ok(Some(index))
    }

    /// Copies a message and puts the copy into an eager slot, if it is small and a slot is free.
    ///
    /// # Safety
    /// The data is valid.
    unsafe fn send_eagerly(&mut self, data: *const u8, size: u64, tag: i32) -> Result<bool> {
        let slot = self.eager as usize % EAGER_SLOTS;
        // The receiver keeps messages whose receives are not posted: those are among the undescribed ones.
        let kept = self.undescribed.len() >= EAGER_SLOTS;
        if size > EAGER_BYTES as u64 || self.eager - self.taken >= EAGER_SLOTS as u64 || kept {
            return Ok(false);
        }
        if let Some(put) = &self.puts[slot] {
            match self.channel.network.session.test(put) {
                Ok(true) => self.puts[slot] = None,
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.channel.fail(error)),
            }
        }
        let count = self.counts.entry(tag).or_default();
        let copy = COPIES_AT + slot * EAGER_WORDS;
        self.ring.store(copy + 1, u64::from(count.sent) << 32 | u64::from(tag as u32));
        self.ring.store(copy + 2, size);
        // SAFETY: the caller's promise; no put from this slot is under way.
        unsafe { self.ring.write_bytes(copy + 1 + EAGER_HEAD, data, size as usize) };
        let there = EAGER_AT + slot * EAGER_WORDS;
        let (word, to) = (self.channel.place(there), self.channel.place(there + 1));
        let source = (Source::Stable(self.ring.address(copy + 1)), 8 * EAGER_HEAD as u64 + size);
        let session = &self.channel.network.session;
        // SAFETY: the slot is not changed before the put has ended.
        match unsafe { session.start_put_signal(to, source, word, (AmoOp::Set, self.eager + 1)) } {
            Ok(None) => return Ok(false),
            Ok(put) => self.puts[slot] = put,
            Err(error) => return Err(self.channel.fail(error)),
        }
        self.undescribed.push_back((tag, count.sent, size));
        count.sent = count.sent.wrapping_add(1);
        self.eager += 1;
        Ok(true)
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
            let count = self.counts.entry(tag).or_default();
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
            Ok(false) => self.channel.look(|| true).map(|()| None),
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

fn too_large(size: u64, tag: i32, room: u64) -> Failure {
    Failure::usage(format!("a message of {size} bytes with tag {tag} for a buffer of {room}"))
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.settle();
    }
}
