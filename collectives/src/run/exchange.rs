//! Sends and receives of the CPU device. Bytes travel through slots in the receiver's heap: the sender puts into an
//! empty slot, with a signal, and the receiver empties it and signals back.
//!
//! Each slot has its own word, which the signal sets to the slot's number and the whole transfer's size. So signals may
//! arrive in any order, as rails deliver them, and a receiver detects at the first slot that it has matched a send of
//! another size. It then tells the sender, which checks for that at every send, and in every later call.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use symrail::kernels::cpu::{Cmp, Grid, SignalOp, SignalUpdate, Symmetric, Thread};
use symrail::rounds::{self, Poison};
use symrail_core::lock;

use super::Buffer;
use super::wait::{Wait, launch};
use crate::error::{Error, Result};
use crate::members::{Members, Taken};
use crate::transfer::{Row, Transfer, arrange};

const WHAT: &str = "sends and receives";
const SLOTS: u64 = 4;
/// Bytes of all slots together, if each has this many.
const ALL_SLOTS: u64 = 4 << 20;
const SLOT: std::ops::RangeInclusive<u64> = 1 << 10..=64 << 10;
/// Bits of a slot's word for the transfer's size; the bits above hold the slot's number. Larger sizes are compared by
/// their lower bits.
const SIZE_BITS: u32 = 40;

/// A slot's word: the number of a slot, from 0 on, and the size of its transfer.
fn word_of(number: u64, size: u64) -> u64 {
    (number + 1) << SIZE_BITS | size & ((1 << SIZE_BITS) - 1)
}

pub(crate) struct Exchange {
    /// In the layout of [`Words`].
    words: Taken,
    slots: Taken,
    /// For each rank, the number of slots filled there, and emptied here.
    sent: Vec<u64>,
    received: Vec<u64>,
    poison: Poison,
    members: Members,
}

/// The remaining transfers with a PE in one direction, in order.
struct Queue {
    row: Row,
    buffers: std::vec::IntoIter<Buffer>,
    /// The rest of the first one, and its size.
    left: Buffer,
    size: u64,
    /// The number of slots filled or emptied so far.
    count: u64,
}

impl Queue {
    /// Whether nothing is left.
    fn is_done(&mut self) -> bool {
        while self.left.is_empty() {
            match self.buffers.next() {
                Some(next) => (self.left, self.size) = (next, next.len()),
                None => return true,
            }
        }
        false
    }
}

impl Exchange {
    /// Allocates memory. Collective over the members.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(members: &Members) -> Result<Self> {
        let n = members.n() as usize;
        let slots = members.take(n * (SLOTS * slot_bytes(n as u64)) as usize)?;
        let words = members.take(8 * Words::number(n as u64) as usize)?;
        Ok(Exchange {
            members: members.clone(),
            words,
            slots,
            sent: vec![0; n],
            received: vec![0; n],
            poison: Poison::default(),
        })
    }

    /// The address of some of its memory on this PE.
    pub fn start(&self) -> *const u8 {
        self.words.start()
    }

    /// Frees the memory. Collective over the members.
    ///
    /// # Errors
    /// As for [`SymSlice::free`].
    pub fn free(self) -> Result<()> {
        self.slots.free()?;
        self.words.free()
    }

    /// Sends and receives; returns when all data has been received, and the sources may be changed.
    ///
    /// # Errors
    /// As for [`arrange`]; or a PE did not do its part within the time-out, or a send matched a receive of another
    /// size, after which this cannot be used any more.
    pub fn run(&mut self, transfers: &[Transfer<Buffer>]) -> Result<()> {
        // What still arrives of an earlier call would be taken for this one's.
        self.poison.check(self.members.runtime().my_pe(), "the sends and receives of a communicator")?;
        self.members.runtime().check_joined()?;
        let arranged = arrange(self.members.me(), self.members.n(), transfers, Buffer::len)?;
        let runtime = self.members.runtime();
        let device = runtime.cpu_device()?;
        let name = |buffer: Buffer| device.symmetric_at::<u8>(buffer.offset, buffer.len);
        let (all, slots) = (self.words.words(&device)?, name(self.slots.buffer()?)?);
        let words = Words { all, n: self.members.n().into() };
        let queues = Mutex::new(self.queues(&arranged.others)?);
        let grid = Grid { blocks: 1, threads_per_block: 1 };
        let members = &self.members;
        let ended = AtomicBool::new(false);
        let run = launch(runtime, &device, grid, WHAT, &ended, |thread| {
            for &(from, to) in &arranged.own {
                thread.put(name(to)?, name(from)?, thread.my_pe())?;
            }
            let ways = Ways { thread, members, words, slots, slot: slot_bytes(members.n().into()), name: &name };
            ways.all(&mut lock(&queues), runtime.timeout(), &ended)
        });
        self.poison.poison_on_err(run)?;
        for queue in lock(&queues).iter() {
            let counts = if queue.row.receives { &mut self.received } else { &mut self.sent };
            counts[queue.row.peer as usize] = queue.count;
        }
        Ok(())
    }

    fn queues(&self, transfers: &[(Row, Buffer)]) -> Result<Vec<Queue>> {
        let mut rows: Vec<(Row, Vec<Buffer>)> = Vec::new();
        for &(row, buffer) in transfers {
            match rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, buffers)) => buffers.push(buffer),
                None => rows.push((row, vec![buffer])),
            }
        }
        let nothing = self.slots.buffer()?.part(0, 0)?;
        let queue = |(row, buffers): (Row, Vec<Buffer>)| {
            let counts = if row.receives { &self.received } else { &self.sent };
            Queue { row, buffers: buffers.into_iter(), left: nothing, size: 0, count: counts[row.peer as usize] }
        };
        Ok(rows.into_iter().map(queue).collect())
    }
}

/// Bytes of a slot among `n` ranks.
fn slot_bytes(n: u64) -> u64 {
    (ALL_SLOTS / (n * SLOTS)).clamp(*SLOT.start(), *SLOT.end())
}

/// Words of a PE with which it and the others signal full and empty slots.
#[derive(Clone, Copy)]
struct Words {
    all: Symmetric<u64>,
    /// The number of ranks.
    n: u64,
}

impl Words {
    /// The number of words among `n` ranks.
    fn number(n: u64) -> u64 {
        n * (SLOTS + 3)
    }

    /// The word of a slot that a rank fills: see [`word_of`].
    fn full(self, rank: u64, slot: u64) -> Result<Symmetric<u64>> {
        Ok(self.all.at(rank * SLOTS + slot % SLOTS)?)
    }

    /// How many of the slots that were filled at a rank are empty again.
    fn emptied(self, rank: u64) -> Result<Symmetric<u64>> {
        Ok(self.all.at(self.n * SLOTS + rank)?)
    }

    /// The size of a transfer that a rank refuses, and behind it the size of the receive, plus one.
    fn refused(self, rank: u64) -> Result<[Symmetric<u64>; 2]> {
        let first = self.n * (SLOTS + 1) + 2 * rank;
        Ok([self.all.at(first)?, self.all.at(first + 1)?])
    }
}

/// The calling thread's access to slots.
struct Ways<'a, 't, F> {
    thread: &'a Thread<'t>,
    words: Words,
    slots: Symmetric<u8>,
    slot: u64,
    name: &'a F,
    members: &'a Members,
}

impl<F> Ways<'_, '_, F>
where
    F: Fn(Buffer) -> std::result::Result<Symmetric<u8>, symrail::kernels::cpu::DeviceError>,
{
    /// Works on all queues until they are done. The time-out limits a time without progress.
    fn all(&self, queues: &mut [Queue], timeout: Duration, ended: &AtomicBool) -> Result<()> {
        (0..self.members.n()).try_for_each(|rank| self.is_taken(rank))?;
        let mut wait = Wait::new(WHAT, self.members.team(), ended, timeout);
        loop {
            let (mut done, mut moved) = (true, false);
            for queue in queues.iter_mut() {
                while !queue.is_done() && self.slot(queue)? {
                    moved = true;
                }
                done &= queue.is_done();
            }
            if done {
                self.thread.quiet()?;
                return queues.iter().try_for_each(|queue| self.is_taken(queue.row.peer));
            }
            if moved {
                wait.restart();
                continue;
            }
            // Also drives the engine.
            self.thread.test(self.words.all.at(0)?, Cmp::Eq, u64::MAX)?;
            if !wait.goes_on()? {
                return Err(self.late(queues, timeout));
            }
        }
    }

    /// Fills or empties the next slot, if the peer is ready.
    fn slot(&self, queue: &mut Queue) -> Result<bool> {
        let (me, peer) = (u64::from(self.members.me()), queue.row.peer);
        let (pe, from) = (self.members.pe(peer as usize), u64::from(peer));
        let len = queue.left.len().min(self.slot);
        let memory = (self.name)(queue.left.part(0, len)?)?;
        let slot_of = |rank: u64| self.slots.part((rank * SLOTS + queue.count % SLOTS) * self.slot, len);
        let word = word_of(queue.count, queue.size);
        if queue.row.receives {
            let found = self.thread.signal_fetch(self.words.full(from, queue.count)?)?;
            if found >> SIZE_BITS != word >> SIZE_BITS {
                return Ok(false);
            }
            if found != word {
                return Err(self.refuse(peer, found & ((1 << SIZE_BITS) - 1), queue.size)?);
            }
            self.thread.put(memory, slot_of(from)?, self.thread.my_pe())?;
            self.thread.signal_op(self.words.emptied(me)?, 1, SignalOp::Add, pe)?;
        } else {
            if queue.count >= self.thread.signal_fetch(self.words.emptied(from)?)? + SLOTS {
                self.is_taken(peer)?;
                return Ok(false);
            }
            let full = self.words.full(me, queue.count)?;
            self.thread.put_signal_nbi(slot_of(me)?, memory, SignalUpdate::set(full, word), pe)?;
        }
        queue.count += 1;
        queue.left = queue.left.part(len, queue.left.len() - len)?;
        Ok(true)
    }

    /// Tells a sender that its transfer is refused; returns the error for this PE.
    fn refuse(&self, rank: u32, sent: u64, received: u64) -> Result<Error> {
        let (me, from) = (u64::from(self.members.me()), self.members.pe(rank as usize));
        let [of_sent, of_received] = self.words.refused(me)?;
        self.thread.signal_op(of_sent, sent, SignalOp::Set, from)?;
        self.thread.fence()?;
        self.thread.signal_op(of_received, received + 1, SignalOp::Set, from)?;
        self.thread.quiet()?;
        Ok(Error::Sizes { from, to: self.thread.my_pe(), sent, received })
    }

    /// Fails if a rank has refused a transfer so far.
    fn is_taken(&self, rank: u32) -> Result<()> {
        let [of_sent, of_received] = self.words.refused(rank.into())?;
        match self.thread.signal_fetch(of_received)? {
            0 => Ok(()),
            more => Err(Error::Sizes {
                from: self.thread.my_pe(),
                to: self.members.pe(rank as usize),
                sent: self.thread.signal_fetch(of_sent)?,
                received: more - 1,
            }),
        }
    }

    fn late(&self, queues: &mut [Queue], timeout: Duration) -> Error {
        let (rank, waiting) = match queues.iter_mut().find_map(|queue| (!queue.is_done()).then_some(&*queue)) {
            Some(Queue { row: Row { peer, receives: true }, left, .. }) => {
                (*peer, format!("a receive from rank {peer} that lacks {} bytes", left.len()))
            }
            Some(Queue { row: Row { peer, .. }, left, .. }) => {
                (*peer, format!("a send to rank {peer} of which {} bytes are left", left.len()))
            }
            None => (0, WHAT.into()),
        };
        let (pe, late) = (self.thread.my_pe(), vec![self.members.pe(rank as usize)]);
        rounds::Error::TimedOut { pe, what: WHAT, waiting, late, seconds: timeout.as_secs_f64() }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_slots_tell_number_and_size() {
        assert_ne!(word_of(0, 0), 0, "what no slot has been filled with");
        for number in [0, 7, (1 << 24) - 1, 1 << 24, u64::MAX >> 8] {
            let [now, before, longer] =
                [(number, 5), (number + SLOTS, 5), (number, 6)].map(|(n, size)| word_of(n, size));
            assert_ne!(now >> SIZE_BITS, before >> SIZE_BITS, "the next one of the same slot");
            assert!(now >> SIZE_BITS == longer >> SIZE_BITS && now != longer);
        }
        assert_eq!(word_of(3, 1 << SIZE_BITS | 9), word_of(3, 9));
    }
}
