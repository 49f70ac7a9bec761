//! The receiving end of a connection.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::{Request, Words};
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::channel::Channel;
use crate::network::Network;
use crate::report::{Failure, Result};
use crate::ring::{
    DESCRIPTOR_WORDS, EAGER_BYTES, EAGER_HEAD, EAGER_SLOTS, EAGER_WORDS, HEAD_WORDS, REFUSED, SLOT_WORDS, SLOTS, stamp,
};

/// The first word of the eager slots.
pub const EAGER_AT: usize = SLOTS * (1 + DESCRIPTOR_WORDS);

/// For so long a sender that puts nothing is waited for before memory that it may use is deregistered.
const QUIET: Duration = Duration::from_secs(2);

/// A receive that is under way.
struct Waiting {
    number: u64,
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

/// The receiving end. Its ring has the words of the sizes, behind them the descriptors that it puts, and the eager
/// slots.
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
    /// The put of each slot's descriptor.
    puts: [Option<Request>; SLOTS],
    /// Whether memory was deregistered that the sender may still use.
    abandoned: bool,
}

impl Receiver {
    /// The ring of a receiving end, whose handle goes to the sender.
    pub fn ring(network: &Arc<Network>) -> Result<Words> {
        Ok(Words::new(&network.session, EAGER_AT + EAGER_SLOTS * EAGER_WORDS)?)
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
            puts: [const { None }; SLOTS],
            abandoned: false,
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
        if self.waiting[slot].is_some() || !self.is_put(slot)? {
            return Ok(None);
        }
        // The word of this slot's last direct message, which eager ones since then have not replaced.
        self.ring.store(slot, 0);
        let at = SLOTS + slot * DESCRIPTOR_WORDS;
        let handle = memory.encode();
        let bytes = memory.encoded_len();
        for (i, word) in
            [size, offset, (bytes as u64) << 32 | u64::from(tag as u32), self.taken].into_iter().enumerate()
        {
            self.ring.store(at + i, word);
        }
        for (i, word) in handle[..bytes].as_chunks::<8>().0.iter().enumerate() {
            self.ring.store(at + HEAD_WORDS + i, u64::from_le_bytes(*word));
        }
        let (word, to) = (self.channel.place(slot * SLOT_WORDS), self.channel.place(slot * SLOT_WORDS + 1));
        let source = (Source::Stable(self.ring.address(at)), (8 * HEAD_WORDS + bytes) as u64);
        // SAFETY: this slot of the ring is not changed before the put has ended.
        let put = unsafe { self.channel.network.session.start_put_signal(to, source, word, (AmoOp::Set, number + 1)) };
        match put {
            Ok(None) => return Ok(None),
            Ok(put) => self.puts[slot] = put,
            Err(error) => return Err(self.channel.fail(error)),
        }
        let next = self.ordinals.entry(tag).or_default();
        let ordinal = *next;
        *next = next.wrapping_add(1);
        self.waiting[slot] = Some(Waiting { number, tag, ordinal, data, room: size, copied: None });
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
            let at = EAGER_AT + (self.taken as usize % EAGER_SLOTS) * EAGER_WORDS;
            if self.ring.load(at) != self.taken + 1 {
                return Ok(());
            }
            let (receive, size) = (self.ring.load(at + 1), self.ring.load(at + 2));
            let (tag, ordinal) = (receive as u32 as i32, (receive >> 32) as u32);
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

    /// Whether the put of a slot's descriptor has ended.
    fn is_put(&mut self, slot: usize) -> Result<bool> {
        let Some(put) = &self.puts[slot] else { return Ok(true) };
        match self.channel.network.session.test(put) {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.puts[slot] = None;
                Ok(true)
            }
            Err(error) => Err(self.channel.fail(error)),
        }
    }

    /// Whether a message has arrived, and its size. The request is free again then.
    pub fn test(&mut self, slot: usize) -> Result<Option<u64>> {
        let Some(Some(number)) = self.waiting.get(slot).map(|waiting| waiting.as_ref().map(|w| w.number)) else {
            return Err(Failure::argument("a request that is not under way"));
        };
        self.channel.usable()?;
        self.take_eager()?;
        if let Some(size) = self.take_copied(slot) {
            return Ok(Some(size));
        }
        if !self.has_arrived(slot, number) {
            self.channel.network.session.progress();
            if let Err(failure) = self.is_put(slot) {
                // A sender that has sent to an eager slot and closed takes no descriptor.
                self.take_eager()?;
                return self.take_copied(slot).map_or(Err(failure), |size| Ok(Some(size)));
            }
            let ring = &self.ring;
            let eager = EAGER_AT + (self.taken as usize % EAGER_SLOTS) * EAGER_WORDS;
            let taken = self.taken;
            self.channel.look(|| ring.load(slot) & 0xffff == stamp(number) || ring.load(eager) == taken + 1)?;
            if !self.has_arrived(slot, number) {
                return Ok(None);
            }
        }
        self.channel.heard();
        self.waiting[slot] = None;
        match self.ring.load(slot) >> 16 {
            REFUSED => Err(self.channel.fail(Failure::usage("a message that is larger than the buffer"))),
            size => Ok(Some(size)),
        }
    }

    /// Ends a receive whose message was copied from an eager slot, and returns its size.
    fn take_copied(&mut self, slot: usize) -> Option<u64> {
        self.waiting[slot].take_if(|waiting| waiting.copied.is_some())?.copied
    }

    /// Waits for the messages to buffers inside of this memory, which is about to be deregistered: the sender may be
    /// putting them. An end that has closed puts nothing more. One that puts nothing for [`QUIET`] is not waited for,
    /// now or later.
    pub fn settle(&mut self, memory: &Range<usize>) {
        let (mut before, mut since) = (usize::MAX, Instant::now());
        while !self.abandoned {
            self.channel.network.session.progress();
            // A failure is kept for `test`.
            let _ = self.take_eager();
            let open = |it: &&Waiting| it.copied.is_none() && memory.contains(&it.data.addr());
            let waiting = self.waiting.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.as_ref()?)));
            let missing = waiting.filter(|(slot, it)| open(it) && !self.has_arrived(*slot, it.number)).count();
            if missing == 0 || self.channel.has_closed() {
                return;
            }
            if missing < before {
                (before, since) = (missing, Instant::now());
            }
            self.abandoned = since.elapsed() > QUIET;
            std::thread::yield_now();
        }
    }

    fn has_arrived(&self, slot: usize, number: u64) -> bool {
        self.ring.load(slot) & 0xffff == stamp(number)
    }

    pub fn network(&self) -> &Arc<Network> {
        &self.channel.network
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.channel.settle(self.puts.iter().flatten());
    }
}
