//! The receiving end of a connection.

use std::sync::Arc;

use symrail_proxy::session::Request;
use symrail_proxy::session::memory::Memory;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::Source;

use crate::channel::Channel;
use crate::network::Network;
use crate::report::{Failure, Result};
use crate::ring::{DESCRIPTOR_WORDS, HEAD_WORDS, REFUSED, Ring, SLOT_WORDS, SLOTS, stamp};

/// The receiving end. Its ring has the words of the sizes, and behind them the descriptors that it puts.
pub struct Receiver {
    channel: Channel,
    ring: Ring,
    /// The number of the next message.
    next: u64,
    /// The message that each slot waits for.
    waiting: [Option<u64>; SLOTS],
    /// The put of each slot's descriptor.
    puts: [Option<Request>; SLOTS],
}

impl Receiver {
    /// The ring of a receiving end, whose handle goes to the sender.
    pub fn ring(network: &Arc<Network>) -> Result<Ring> {
        Ring::new(network, SLOTS * (1 + DESCRIPTOR_WORDS))
    }

    pub fn new(channel: Channel, ring: Ring) -> Receiver {
        Receiver { channel, ring, next: 0, waiting: [None; SLOTS], puts: [const { None }; SLOTS] }
    }

    /// Posts a buffer of `size` bytes at `offset` in registered memory. Returns the index of the request; `None` while
    /// there is no room for another.
    pub fn start(&mut self, memory: &Memory, offset: u64, size: u64, tag: i32) -> Result<Option<usize>> {
        self.channel.usable()?;
        let (number, slot) = (self.next, self.next as usize % SLOTS);
        if self.waiting[slot].is_some() || !self.is_put(slot)? {
            return Ok(None);
        }
        let at = SLOTS + slot * DESCRIPTOR_WORDS;
        let handle = memory.encode();
        let bytes = memory.encoded_len();
        for (i, word) in [size, offset, (bytes as u64) << 32 | u64::from(tag as u32)].into_iter().enumerate() {
            self.ring.store(at + i, word);
        }
        for (i, word) in handle[..bytes].as_chunks::<8>().0.iter().enumerate() {
            self.ring.store(at + HEAD_WORDS + i, u64::from_le_bytes(*word));
        }
        let (word, to) = (self.channel.place(slot * SLOT_WORDS)?, self.channel.place(slot * SLOT_WORDS + 1)?);
        let source = (Source::Stable(self.ring.address(at)), (8 * HEAD_WORDS + bytes) as u64);
        // SAFETY: this slot of the ring is not changed before the put has ended.
        let put = unsafe { self.channel.network.session.start_put_signal(to, source, word, (AmoOp::Set, number + 1)) };
        match put {
            Ok(None) => return Ok(None),
            Ok(put) => self.puts[slot] = put,
            Err(error) => return Err(self.channel.fail(error)),
        }
        self.waiting[slot] = Some(number);
        self.next += 1;
        Ok(Some(slot))
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
        let Some(Some(number)) = self.waiting.get(slot).copied() else {
            return Err(Failure::argument("a request that is not under way"));
        };
        if !self.has_arrived(slot, number) {
            self.channel.network.session.progress();
            self.is_put(slot)?;
            let ring = &self.ring;
            self.channel.look(|| ring.load(slot) & 0xffff == stamp(number))?;
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
