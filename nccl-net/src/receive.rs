//! The receiving end of a connection.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_proxy::session::Words;
use symrail_proxy::session::memory::Memory;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::channel::{Channel, Question};
use crate::network::Network;
use crate::report::{Failure, Result};
use crate::ring::receiver::{ANSWER, COUNTS, EAGER, SIGNALS, SIZES, WORDS};
use crate::ring::{
    DESCRIPTOR_WORDS, EAGER_BYTES, EAGER_HEAD, EAGER_SLOTS, HEAD_WORDS, REFUSED, SLOT_WORDS, SLOTS, eager_slot, sender,
    size_in,
};

/// For so long a sender that puts nothing is waited for before memory that it may use is deregistered.
const QUIET: Duration = Duration::from_secs(2);

/// A receive that is under way.
struct Waiting {
    number: u64,
    /// The count of its slot when it was posted.
    count: u64,
    tag: i32,
    /// Its number among those of its tag.
    ordinal: u32,
    data: *mut u8,
    room: u64,
    /// The size of its message, once copied from an eager slot.
    copied: Option<u64>,
}

// SAFETY: the pointer is the buffer of a receive under way, which its caller keeps valid whichever thread fills it.
unsafe impl Send for Waiting {}

/// A message whose receive has not been posted: tag, ordinal, bytes.
type Early = (i32, u32, Vec<u8>);

/// The receiving end.
pub struct Receiver {
    channel: Channel,
    ring: Words,
    /// The number of the next message.
    next: u64,
    /// The receive of each slot.
    waiting: [Option<Waiting>; SLOTS],
    /// The receives of each tag so far.
    ordinals: HashMap<i32, u32>,
    /// The messages taken from eager slots, and those of them that are early: at most [`EAGER_SLOTS`].
    taken: u64,
    early: VecDeque<Early>,
    /// The messages that were put into their buffers and found there.
    direct: u64,
    /// A number of messages that the sender has sent and that have not all come, and since when it is known.
    missing: Option<(u64, Instant)>,
    /// Whether memory was deregistered that the sender may still use.
    abandoned: bool,
    /// Whether the sender's connections were ended because of that.
    ended: bool,
}

impl Receiver {
    /// The ring of a receiving end, whose handle goes to the sender.
    pub fn ring(network: &Arc<Network>) -> Result<Words> {
        Ok(Words::counting(&network.session, WORDS)?)
    }

    pub fn new(channel: Channel, ring: Words) -> Receiver {
        Receiver {
            channel,
            ring,
            next: 0,
            waiting: [const { None }; SLOTS],
            ordinals: HashMap::new(),
            taken: 0,
            early: VecDeque::new(),
            direct: 0,
            missing: None,
            abandoned: false,
            ended: false,
        }
    }

    /// Posts a buffer of `size` bytes at `data`, which is at `offset` in registered memory. Returns the index of the
    /// request; `None` while there is no room for another.
    ///
    /// # Safety
    /// The buffer stays valid and unused until the request is done or this end is closed.
    pub unsafe fn start(
        &mut self,
        data: *mut u8,
        (memory, offset): (&Memory, u64),
        size: u64,
        tag: i32,
    ) -> Result<Option<usize>> {
        self.channel.usable()?;
        let (number, slot) = (self.next, self.next as usize % SLOTS);
        if self.waiting[slot].is_some() {
            return Ok(None);
        }
        // The word of this slot's last direct message, which eager ones since then have not replaced.
        self.ring.store(SIGNALS + slot, 0);
        let count = self.ring.load(COUNTS + slot);
        let (handle, bytes) = (memory.encode(), memory.encoded_len());
        let mut descriptor = [0; DESCRIPTOR_WORDS];
        descriptor[..HEAD_WORDS].copy_from_slice(&[
            size,
            offset,
            (bytes as u64) << 32 | u64::from(tag as u32),
            self.taken,
        ]);
        for (to, word) in descriptor[HEAD_WORDS..].iter_mut().zip(handle.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let (word, to) = (self.channel.place(slot * SLOT_WORDS), self.channel.place(slot * SLOT_WORDS + 1));
        let source = (Source::Copied(descriptor.as_ptr().cast()), (8 * HEAD_WORDS + bytes) as u64);
        let session = &self.channel.network.session;
        // SAFETY: the source is copied now.
        match unsafe { session.start_put_signal_at_leisure(to, source, word, (AmoOp::Set, number + 1)) } {
            Ok(None) => return Ok(None),
            Ok(put) => self.channel.keep(put),
            Err(error) => return Err(self.channel.fail(error)),
        }
        let next = self.ordinals.entry(tag).or_default();
        let ordinal = *next;
        *next = next.wrapping_add(1);
        self.waiting[slot] = Some(Waiting { number, count, tag, ordinal, data, room: size, copied: None });
        self.next += 1;
        if let Some(at) = self.early.iter().position(|early| (early.0, early.1) == (tag, ordinal))
            && let Some((_, _, bytes)) = self.early.remove(at)
        {
            let to = self.buffer(slot, bytes.len() as u64)?;
            // SAFETY: the buffer has room for so many bytes, and no other code uses it.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        Ok(Some(slot))
    }

    /// The buffer of a receive, for its message of `size` bytes, which the caller copies.
    fn buffer(&mut self, slot: usize, size: u64) -> Result<*mut u8> {
        match &mut self.waiting[slot] {
            Some(waiting) if size <= waiting.room => {
                waiting.copied = Some(size);
                Ok(waiting.data)
            }
            Some(Waiting { tag, room, .. }) => {
                let why = format!("a message of {size} bytes with tag {tag} for a buffer of {room}");
                Err(self.channel.fail(Failure::usage(why)))
            }
            None => Err(Failure::argument("a request that is not under way")),
        }
    }

    /// Takes the messages that have arrived in eager slots, in their order.
    fn take_eager(&mut self) -> Result<()> {
        loop {
            if !is_eager(&self.ring, self.taken) {
                return Ok(());
            }
            let at = EAGER + eager_slot(self.taken).0;
            let (receive, size) = (self.ring.load(at + 1), size_in(self.ring.load(at + 2), self.taken));
            let (tag, ordinal) = (receive as u32 as i32, (receive >> 32) as u32);
            let Some(size) = size else { return Err(self.lost_part()) };
            if size > EAGER_BYTES as u64 {
                return Err(self.channel.fail(Failure::remote(format!("a message of {size} bytes in an eager slot"))));
            }
            let bytes = at + 1 + EAGER_HEAD;
            let of = |waiting: &Waiting| waiting.copied.is_none() && (waiting.tag, waiting.ordinal) == (tag, ordinal);
            match self.waiting.iter().position(|waiting| waiting.as_ref().is_some_and(of)) {
                Some(slot) => {
                    let to = self.buffer(slot, size)?;
                    // SAFETY: the buffer has room for so many bytes, and no other code uses it.
                    unsafe { self.ring.read_bytes(bytes, to, size as usize) };
                }
                // The sender keeps to this bound (`Sender::send_eagerly`). It stands here as a defence: another one's
                // messages stay in their slots.
                None if self.early.len() < EAGER_SLOTS => {
                    let mut early = vec![0; size as usize];
                    // SAFETY: as above.
                    unsafe { self.ring.read_bytes(bytes, early.as_mut_ptr(), early.len()) };
                    self.early.push_back((tag, ordinal, early));
                }
                None => return Ok(()),
            }
            self.taken += 1;
            self.channel.heard();
        }
    }

    /// Whether a message has arrived, and its size. The request is free again then.
    pub fn test(&mut self, slot: usize) -> Result<Option<u64>> {
        if self.waiting.get(slot).is_none_or(Option::is_none) {
            return Err(Failure::argument("a request that is not under way"));
        }
        self.channel.usable()?;
        self.take_eager()?;
        if let Some(size) = self.take_copied(slot) {
            return Ok(Some(size));
        }
        let mut arrived = self.arrived(slot);
        if arrived.is_none() {
            self.channel.network.session.progress();
            let Receiver { channel, ring, taken, waiting, .. } = self;
            let is_there = || find(ring, waiting, slot).is_some() || is_eager(ring, *taken);
            let answer = ring.address(ANSWER).cast_mut();
            let question = Question { word: sender::SENT, answer, is_needed: true };
            if channel.look(is_there, question)? {
                self.compare()?;
            }
            arrived = self.arrived(slot);
        }
        let Some(size) = arrived else { return Ok(None) };
        let Some(size) = size else { return Err(self.lost_part()) };
        self.channel.heard();
        self.waiting[slot] = None;
        self.direct += 1;
        match size {
            REFUSED => Err(self.channel.fail(Failure::usage("a message that is larger than the buffer"))),
            size => Ok(Some(size)),
        }
    }

    /// Compares the number of messages that the sender has sent with those that have come. No end reports what a
    /// connection has lost that was broken and made again.
    fn compare(&mut self) -> Result<()> {
        let answer = (self.ring.load(ANSWER), Instant::now());
        let found = (0..SLOTS).filter(|&slot| self.arrived(slot).is_some()).count() as u64;
        let eager = (0..EAGER_SLOTS as u64).filter(|at| is_eager(&self.ring, self.taken + at)).count() as u64;
        let come = self.direct + self.taken + found + eager;
        let (sent, since) = *self.missing.get_or_insert(answer);
        if come >= sent {
            self.missing = (come < answer.0).then_some(answer);
            return Ok(());
        }
        let limit = self.channel.network.timeout;
        if since.elapsed() < limit {
            return Ok(());
        }
        let (pe, seconds) = (self.channel.pe(), limit.as_secs());
        Err(self.channel.fail(Failure::remote(format!(
            "{come} of {sent} messages of peer {pe} have arrived within {seconds} s (SYMRAIL_TIMEOUT_S): a connection \
             was lost"
        ))))
    }

    /// The failure of a message that was counted, and whose size has not come: its write was in parts.
    fn lost_part(&mut self) -> Failure {
        let pe = self.channel.pe();
        self.channel
            .fail(Failure::remote(format!("a part of a message of peer {pe} is missing: a connection was lost")))
    }

    /// The size of a message that has arrived in its buffer, as [`find`].
    fn arrived(&self, slot: usize) -> Option<Option<u64>> {
        find(&self.ring, &self.waiting, slot)
    }

    /// Ends a receive whose message was copied from an eager slot, and returns its size.
    fn take_copied(&mut self, slot: usize) -> Option<u64> {
        self.waiting[slot].take_if(|waiting| waiting.copied.is_some())?.copied
    }

    /// Waits for the messages to buffers inside of this memory, which is about to be deregistered: the sender may be
    /// putting them. An end that has closed puts nothing more. One that puts nothing for [`QUIET`] is not waited for,
    /// now or later. Returns whether nothing is being put any more; else [`Receiver::end_writes`] sees to it.
    pub fn settle(&mut self, memory: &Range<usize>) -> bool {
        let (mut before, mut since) = (usize::MAX, Instant::now());
        loop {
            self.channel.network.session.progress();
            // A failure is kept for `test`.
            let _ = self.take_eager();
            let open = |it: &&Waiting| it.copied.is_none() && memory.contains(&it.data.addr());
            let waiting = self.waiting.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.as_ref()?)));
            let missing = waiting.filter(|(slot, it)| open(it) && self.arrived(*slot).is_none()).count();
            if missing == 0 || self.channel.has_closed() {
                return missing == 0 || self.channel.has_said_goodbye();
            }
            if missing < before {
                (before, since) = (missing, Instant::now());
            }
            self.abandoned |= since.elapsed() > QUIET;
            if self.abandoned {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Sees to it that the sender does not go on writing into memory that was deregistered under a receive. An answer to
    /// a question over each rail is behind what the sender had begun. Where none comes, the connection ends.
    pub fn end_writes(&mut self) {
        if !self.ended && self.channel.answers_over_all_rails(QUIET) {
            return;
        }
        self.ended = true;
        if self.channel.end_connections() {
            let (pe, seconds) = (self.channel.pe(), QUIET.as_secs());
            self.channel.fail(Failure::remote(format!(
                "the memory of a receive from peer {pe} was deregistered before its message had come. The peer sent \
                 nothing for {seconds} s, so its connections were ended: complete or abort requests before deregMr"
            )));
        }
    }

    pub fn network(&self) -> &Arc<Network> {
        &self.channel.network
    }
}

/// Whether an eager message is in its slot.
fn is_eager(ring: &Words, number: u64) -> bool {
    let (at, count) = eager_slot(number);
    ring.load(EAGER + at) == count
}

/// The size of a message that has arrived in the buffer of a slot's receive: its signal has come, or it was counted, and
/// then its size may be missing.
fn find(ring: &Words, waiting: &[Option<Waiting>; SLOTS], slot: usize) -> Option<Option<u64>> {
    let waiting = waiting[slot].as_ref()?;
    if ring.load(COUNTS + slot) != waiting.count {
        return Some(size_in(ring.load(SIZES + slot), waiting.number));
    }
    size_in(ring.load(SIGNALS + slot), waiting.number).map(Some)
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.next > 0 {
            self.channel.finish(false);
        }
    }
}
