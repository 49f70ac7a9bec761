//! Numbered blocks from every rank to every other one: what both ways of dispatch and combine are built on.
//!
//! Each rank has [`SLOTS`] slots for the blocks of every other rank, which are used in turns. A block is written into
//! its slot (by stores where the target's heap is mapped; else by one put-with-signal from the outbox), and its number
//! is set in a word beside it. Who has read a block gives its slot back, by adding to a word of its sender. The sender
//! uses it again when the rail has acknowledged the block, too: until then the rail's failure has it sent again.
//!
//! Numbers only rise, so nothing is ever cleared, and a word of an earlier call is never taken for one of this.
//!
//! A rank that gives up a call says so where its next blocks would be announced ([`Exchange::give_up`]). Who waits for
//! them learns at once for whom that rank has waited, which it could not know itself.

use std::time::{Duration, Instant};

use symrail::{Cmp, Delivery, InterruptPoll, Pe, Runtime, SignalOp, SymSlice};

use crate::error::{Error, Result};

/// Blocks under way from one rank to another.
pub const SLOTS: usize = 2;
/// Blocks begin at multiples of this many bytes.
const ALIGNMENT: usize = 64;
/// In place of a block's number: its sender has given up. Below are the rank that it has waited for, and for how many
/// milliseconds.
const GIVEN_UP: u64 = 1 << 63;
const RANK_AT: u32 = 32;

/// How long waits last. [`Runtime::set_interrupt`] may end them earlier.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimit {
    /// For how long a rank is waited for.
    pub time: Duration,
}

impl WaitLimit {
    /// As long as operations of the runtime.
    #[must_use]
    pub fn of(rt: &Runtime) -> WaitLimit {
        WaitLimit { time: Duration::from_secs(rt.settings().timeout_s) }
    }
}

/// One wait for blocks, or for slots.
pub(crate) struct Wait<'a> {
    rt: &'a Runtime,
    limit: WaitLimit,
    begun: Instant,
    interrupt_poll: InterruptPoll<'a>,
    polls: u32,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Late,
    Interrupted,
}

impl<'a> Wait<'a> {
    pub fn new(rt: &'a Runtime, limit: WaitLimit) -> Wait<'a> {
        Wait { rt, limit, begun: Instant::now(), interrupt_poll: rt.interrupt_poll(), polls: 0 }
    }

    /// Makes progress. Something, if the wait is over.
    pub fn pause(&mut self) -> Option<Over> {
        if !self.rt.progress() {
            std::thread::yield_now();
        }
        self.polls += 1;
        if !self.polls.is_multiple_of(32) {
            return None;
        }
        if self.begun.elapsed() > self.limit.time {
            return Some(Over::Late);
        }
        self.interrupt_poll.ended().map(|_| Over::Interrupted)
    }

    /// Begins again, since somebody has arrived.
    pub fn restart(&mut self) {
        self.begun = Instant::now();
        self.interrupt_poll = self.rt.interrupt_poll();
    }

    /// The error for who is still waited for.
    pub fn error(&self, over: Over, what: &'static str, ranks: Vec<Pe>) -> Error {
        match over {
            Over::Interrupted => Error::Interrupted { what, ranks },
            Over::Late => Error::Late { what, me: self.rt.my_pe(), ranks, seconds: self.begun.elapsed().as_secs_f64() },
        }
    }
}

/// Blocks of at most so many bytes from every rank to every other one. See the [module](self).
pub struct Exchange<'rt> {
    rt: &'rt Runtime,
    block: usize,
    /// For each source, its slots.
    inbox: SymSlice<'rt, u8>,
    /// For each destination, its slots. Empty where all PEs of the job are mapped.
    outbox: SymSlice<'rt, u8>,
    /// For each source and slot the number of the block that has arrived; for each destination how many it has read.
    words: SymSlice<'rt, u64>,
    /// Blocks sent to each rank, and read from each.
    sent: Vec<u64>,
    read: Vec<u64>,
    /// For each destination and slot, the delivery of the block that was sent from it.
    deliveries: Vec<Option<Delivery<'rt>>>,
}

/// Whether something holds for all PEs. One PE that is not mapped somewhere is enough for all to have an outbox: the
/// heap is symmetric. Collective.
pub(crate) fn hold_for_all(rt: &Runtime, here: bool) -> Result<bool> {
    let mut fails = [u64::from(!here)];
    rt.team_world()?.max_of_all(&mut fails)?;
    Ok(fails == [0])
}

/// What a rank's word says, if that is not a block's number.
fn unless_given_up(word: u64, from: Pe) -> Result<()> {
    if word & GIVEN_UP == 0 {
        return Ok(());
    }
    let rank = (word & !GIVEN_UP) >> RANK_AT;
    let seconds = f64::from(word as u32) / 1000.0;
    Err(Error::Late { what: "a rank that sends to this one", me: from, ranks: vec![rank as Pe], seconds })
}

impl<'rt> Exchange<'rt> {
    /// Bytes of the heap that an exchange of such blocks takes, in a job where not all PEs are mapped.
    #[must_use]
    pub fn bytes(ranks: usize, block: usize) -> usize {
        2 * ranks * SLOTS * block.next_multiple_of(ALIGNMENT) + ranks * (SLOTS + 1) * 8
    }

    /// The largest blocks for which so many bytes suffice; 0 if they are too few for any.
    #[must_use]
    pub fn largest_block(ranks: usize, bytes: usize) -> usize {
        let words = ranks * (SLOTS + 1) * 8;
        bytes.saturating_sub(words) / (2 * ranks * SLOTS) / ALIGNMENT * ALIGNMENT
    }

    /// Makes one. Collective.
    ///
    /// # Errors
    /// The heap is exhausted.
    pub fn new(rt: &'rt Runtime, block: usize) -> Result<Exchange<'rt>> {
        let (ranks, block) = (rt.n_pes() as usize, block.next_multiple_of(ALIGNMENT));
        let all = ranks * SLOTS * block;
        let all_mapped = hold_for_all(rt, (0..rt.n_pes()).all(|pe| rt.is_mapped(pe)))?;
        let inbox = rt.alloc_slice(all)?;
        let outbox = rt.alloc_slice(if all_mapped { 0 } else { all })?;
        let words = rt.alloc_slice(ranks * (SLOTS + 1))?;
        let deliveries = (0..ranks * SLOTS).map(|_| None).collect();
        Ok(Exchange { rt, block, inbox, outbox, words, sent: vec![0; ranks], read: vec![0; ranks], deliveries })
    }

    /// Gives the memory back. Collective.
    ///
    /// # Errors
    /// A peer that does not answer.
    pub fn free(self) -> Result<()> {
        self.words.free()?;
        self.outbox.free()?;
        Ok(self.inbox.free()?)
    }

    /// The runtime.
    #[must_use]
    pub fn runtime(&self) -> &'rt Runtime {
        self.rt
    }

    /// Bytes that a block may have.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// Bytes of the heap that it has taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.inbox.len() + self.outbox.len() + 8 * self.words.len()
    }

    fn ranks(&self) -> usize {
        self.sent.len()
    }

    fn at(&self, rank: Pe, number: u64) -> usize {
        (rank as usize * SLOTS + number as usize % SLOTS) * self.block
    }

    /// Whether the next block to a rank has a slot, here and there.
    ///
    /// # Errors
    /// Why an earlier block was not delivered; the rank has given up; memory that cannot be read.
    pub fn has_room(&mut self, to: Pe) -> Result<bool> {
        let freed = self.words.read(self.ranks() * SLOTS + to as usize)?;
        let number = self.sent[to as usize];
        if number >= freed + SLOTS as u64 {
            for slot in 0..SLOTS {
                unless_given_up(self.words.read(to as usize * SLOTS + slot)?, to)?;
            }
            return Ok(false);
        }
        let delivery = &mut self.deliveries[to as usize * SLOTS + number as usize % SLOTS];
        let done = delivery.as_mut().map_or(Ok(true), Delivery::is_done)?;
        if done {
            *delivery = None;
        }
        Ok(done)
    }

    /// Writes a part of the next block to a rank, where there is room for it.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], a bug of the caller; or what the runtime says.
    pub fn write(&self, to: Pe, at: usize, part: &[u8]) -> Result<()> {
        if at + part.len() > self.block {
            let (needed, given) = (at + part.len(), self.block);
            return Err(Error::BufferTooSmall { what: "a block", needed, given });
        }
        let (me, number) = (self.rt.my_pe(), self.sent[to as usize]);
        if self.rt.is_mapped(to) {
            self.inbox.put(self.at(me, number) + at, part, to)?;
        } else {
            self.outbox.put(self.at(to, number) + at, part, me)?;
        }
        Ok(())
    }

    /// Sends the next block to a rank, of so many bytes that were written.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn send(&mut self, to: Pe, bytes: usize) -> Result<()> {
        let (me, number) = (self.rt.my_pe(), self.sent[to as usize]);
        let word = (&*self.words, me as usize * SLOTS + number as usize % SLOTS);
        let (dest, source) = (self.at(me, number), self.at(to, number));
        if self.rt.is_mapped(to) {
            self.inbox.put_signal(dest, &[], word, number + 1, SignalOp::Set, to)?;
        } else {
            let put = self.inbox.put_signal_tracked(
                dest,
                &self.outbox,
                source,
                bytes,
                word,
                number + 1,
                SignalOp::Set,
                to,
            )?;
            self.deliveries[to as usize * SLOTS + number as usize % SLOTS] = Some(put);
        }
        self.sent[to as usize] += 1;
        Ok(())
    }

    /// Whether the next block from a rank has arrived.
    ///
    /// # Errors
    /// The rank has given up; memory that cannot be read.
    pub fn has_arrived(&self, from: Pe) -> Result<bool> {
        let number = self.read[from as usize];
        let word = from as usize * SLOTS + number as usize % SLOTS;
        // The plain read is for those that have not arrived, of which a test would make progress each time.
        let found = self.words.read(word)?;
        unless_given_up(found, from)?;
        Ok(found > number && self.words.test(word, Cmp::Gt, number)?)
    }

    /// Tells all others but those that were waited for that this rank has given up, after which no block comes from it
    /// any more.
    pub fn give_up(&self, late: &[Pe], seconds: f64) {
        let Some(&first) = late.first() else { return };
        let millis = (seconds * 1000.0) as u32;
        let word = GIVEN_UP | u64::from(first) << RANK_AT | u64::from(millis);
        let me = self.rt.my_pe();
        for to in (0..self.ranks() as Pe).filter(|to| *to != me && !late.contains(to)) {
            for slot in 0..SLOTS {
                // Who cannot be told finds out when its time is over.
                let _ = self.words.signal_op(me as usize * SLOTS + slot, word, SignalOp::Set, to);
            }
        }
    }

    /// Copies a part of the next block from a rank, which has arrived.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn read(&self, from: Pe, at: usize, part: &mut [u8]) -> Result<()> {
        Ok(self.inbox.get(self.at(from, self.read[from as usize]) + at, part, self.rt.my_pe())?)
    }

    /// Gives the slot of the block that was read back to its sender.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn give_back(&mut self, from: Pe) -> Result<()> {
        self.read[from as usize] += 1;
        let word = self.ranks() * SLOTS + self.rt.my_pe() as usize;
        // Adding, since signals that set need not arrive in order.
        Ok(self.words.signal_op(word, 1, SignalOp::Add, from)?)
    }
}
