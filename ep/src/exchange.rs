//! Numbered blocks from every rank to every other one: the common base of both ways of dispatch and combine.
//!
//! Each rank has [`SLOTS`] slots for the blocks of every other rank and uses them in rotation. The sender writes a
//! block into its slot: by stores where the target's heap is mapped, else by one put-with-signal from the outbox. It
//! then sets the block's number in a word beside the slot. The reader of a block frees its slot by adding to a word of
//! the sender. The sender reuses the slot when the rail has acknowledged the block, too: until then a failing rail may
//! have to send it again.
//!
//! Block numbers only rise. So no word is ever cleared, and a word of an earlier call is never mistaken for one of this
//! call.
//!
//! A rank that gives up a call writes so into the words that would announce its next blocks ([`Exchange::give_up`]).
//! The ranks that wait for those blocks learn at once which ranks it has waited for. They could not find that out
//! themselves.

use std::convert::Infallible;
use std::time::Duration;

use symrail::{BoundedWait, Cmp, Delivery, Ended, Pe, Runtime, SignalOp, SignalUpdate, SymSlice, rounds};

use crate::error::{Error, Result};

/// The most blocks in flight from one rank to another.
pub const SLOTS: usize = 2;
/// Blocks begin at multiples of this many bytes.
const ALIGNMENT: usize = 64;
/// A flag that the sender sets in place of a block's number when it gives up. The lower bits hold the rank that it has
/// waited for, and the milliseconds of the wait.
const GIVEN_UP: u64 = 1 << 63;
const RANK_AT: u32 = 32;

/// The time limit of waits. [`Runtime::set_interrupt`] may end them earlier.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimit {
    /// The longest wait for a rank.
    pub time: Duration,
}

impl WaitLimit {
    /// The time limit of the runtime's operations.
    #[must_use]
    pub fn of(rt: &Runtime) -> WaitLimit {
        WaitLimit { time: rt.timeout() }
    }
}

/// One wait for blocks or for free slots.
pub(crate) struct Wait<'a> {
    rt: &'a Runtime,
    bounds: BoundedWait<'a>,
    polls: u32,
}

impl<'a> Wait<'a> {
    pub fn new(rt: &'a Runtime, limit: WaitLimit) -> Wait<'a> {
        Wait { rt, bounds: rt.bounded_wait(limit.time), polls: 0 }
    }

    /// Makes progress. Returns a reason if the wait has ended.
    pub fn pause(&mut self) -> Option<Ended> {
        if !self.rt.progress() {
            std::thread::yield_now();
        }
        self.polls += 1;
        if !self.polls.is_multiple_of(32) {
            return None;
        }
        // A lost rank is late: the caller decides what that means.
        let Ok(ended) = self.bounds.ended(|_| Ok::<_, Infallible>(()));
        ended
    }

    /// Starts the time limit again, because a rank has arrived.
    pub fn restart(&mut self) {
        self.bounds.restart();
    }

    /// The error that names the ranks which have not arrived.
    pub fn error(&self, ended: Ended, what: &'static str, ranks: Vec<Pe>) -> Error {
        match ended {
            Ended::Interrupted => {
                let (waiting, waited) = (self.rt.my_pe(), self.bounds.waited());
                symrail::Error::Interrupted { waiting, what, waited, missing: ranks }.into()
            }
            Ended::TimedOut => late(self.rt.my_pe(), what, ranks, self.bounds.waited().as_secs_f64()),
        }
    }
}

/// Memory beside memory that was made before, which is freed if the heap is exhausted: all PEs get that error. After
/// another error it stays, as other PEs may not free theirs. Collective.
pub(crate) fn beside<A, B>(made: A, next: Result<B>, free: impl FnOnce(A) -> Result<()>) -> Result<(A, B)> {
    match next {
        Ok(next) => Ok((made, next)),
        Err(error) => {
            if let Error::Runtime(error) = &error
                && (error.is_exhausted() || matches!(error, symrail::Error::GrowthRefused { .. }))
            {
                free(made)?;
            }
            Err(error)
        }
    }
}

/// Blocks of a maximum size from every rank to every other one. See the [module](self).
pub struct Exchange {
    block: usize,
    /// The slots for the blocks of each source.
    inbox: SymSlice<u8>,
    /// The slots for the blocks to each destination. Empty where all PEs of the job are mapped.
    outbox: SymSlice<u8>,
    /// For each source and slot the number of the block that has arrived; for each destination the number of blocks
    /// that it has read.
    words: SymSlice<u64>,
    /// The number of blocks sent to each rank, and of those read from each.
    sent: Vec<u64>,
    read: Vec<u64>,
    /// For each destination and slot, the delivery of the block that was last sent from it.
    deliveries: Vec<Option<Delivery>>,
    rt: Runtime,
}

/// The error for ranks that have not arrived at a call `what` in time, for which rank `pe` has waited.
pub(crate) fn late(pe: Pe, what: &'static str, late: Vec<Pe>, seconds: f64) -> Error {
    rounds::Error::TimedOut { pe, what, waiting: "other ranks".into(), late, seconds }.into()
}

/// An error if a rank's word says that the rank has given up.
fn unless_given_up(word: u64, from: Pe) -> Result<()> {
    if word & GIVEN_UP == 0 {
        return Ok(());
    }
    let rank = (word & !GIVEN_UP) >> RANK_AT;
    let seconds = f64::from(word as u32) / 1000.0;
    Err(late(from, "a call of a rank that sends to this one", vec![rank as Pe], seconds))
}

impl Exchange {
    /// The heap bytes of an exchange with blocks of this size, in a job where not all PEs are mapped.
    #[must_use]
    pub fn bytes(ranks: usize, block: usize) -> usize {
        2 * ranks * SLOTS * block.next_multiple_of(ALIGNMENT) + ranks * (SLOTS + 1) * 8
    }

    /// The largest block size for which these bytes suffice; 0 if they suffice for none.
    #[must_use]
    pub fn largest_block(ranks: usize, bytes: usize) -> usize {
        let words = ranks * (SLOTS + 1) * 8;
        bytes.saturating_sub(words) / (2 * ranks * SLOTS) / ALIGNMENT * ALIGNMENT
    }

    /// Makes an exchange. Collective.
    ///
    /// # Errors
    /// An exhausted heap.
    pub fn new(rt: &Runtime, block: usize) -> Result<Exchange> {
        let (ranks, block) = (rt.n_pes() as usize, block.next_multiple_of(ALIGNMENT));
        let all = ranks * SLOTS * block;
        // The heap is symmetric: one PE that is not mapped somewhere gives all PEs an outbox.
        let all_mapped = rt.team_world()?.all((0..rt.n_pes()).all(|pe| rt.is_mapped(pe)))?;
        let inbox = rt.alloc_slice(all)?;
        let outbox = rt.alloc_slice(if all_mapped { 0 } else { all }).map_err(Error::from);
        let (inbox, outbox) = beside(inbox, outbox, |inbox| Ok(inbox.free()?))?;
        let words = rt.alloc_slice(ranks * (SLOTS + 1)).map_err(Error::from);
        let ((inbox, outbox), words) = beside((inbox, outbox), words, |(inbox, outbox)| {
            outbox.free()?;
            Ok(inbox.free()?)
        })?;
        let deliveries = (0..ranks * SLOTS).map(|_| None).collect();
        Ok(Exchange {
            rt: rt.clone(),
            block,
            inbox,
            outbox,
            words,
            sent: vec![0; ranks],
            read: vec![0; ranks],
            deliveries,
        })
    }

    /// Frees the memory. Collective.
    ///
    /// # Errors
    /// A peer that does not respond.
    pub fn free(self) -> Result<()> {
        self.words.free()?;
        self.outbox.free()?;
        Ok(self.inbox.free()?)
    }

    /// Forgets all blocks, as if the exchange had just been made. All ranks do this between the same two barriers, when
    /// their operations are complete.
    ///
    /// # Errors
    /// Memory that cannot be written.
    pub fn restart(&mut self) -> Result<()> {
        self.deliveries.fill_with(|| None);
        self.sent.fill(0);
        self.read.fill(0);
        Ok(self.words.write_slice(0, &vec![0; self.words.len()])?)
    }

    /// The runtime.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// The largest size of a block in bytes.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// The heap bytes of this exchange.
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

    /// Whether the next block to a rank has a free slot, in this rank's outbox and in the target's inbox.
    ///
    /// # Errors
    /// The failed delivery of an earlier block; a rank that has given up; memory that cannot be read.
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

    /// Writes a part of the next block to a rank. The caller has made sure of a free slot ([`Exchange::has_room`]).
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], a bug of the caller; an error of the runtime.
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

    /// Sends the next block to a rank: the first `bytes` bytes that were written.
    ///
    /// # Errors
    /// An error of the runtime.
    pub fn send(&mut self, to: Pe, bytes: usize) -> Result<()> {
        let (me, number) = (self.rt.my_pe(), self.sent[to as usize]);
        let signal = SignalUpdate::set((&*self.words, me as usize * SLOTS + number as usize % SLOTS), number + 1);
        let (dest, source) = (self.at(me, number), self.at(to, number));
        if self.rt.is_mapped(to) {
            self.inbox.put_signal(dest, &[], signal, to)?;
        } else {
            let put = self.inbox.put_signal_tracked(dest, &self.outbox, source, bytes, signal, to)?;
            self.deliveries[to as usize * SLOTS + number as usize % SLOTS] = Some(put);
        }
        self.sent[to as usize] += 1;
        Ok(())
    }

    /// Whether the next block from a rank has arrived.
    ///
    /// # Errors
    /// A rank that has given up; memory that cannot be read.
    pub fn has_arrived(&self, from: Pe) -> Result<bool> {
        let number = self.read[from as usize];
        let word = from as usize * SLOTS + number as usize % SLOTS;
        // The plain read serves blocks that have not arrived: a test makes progress on every call.
        let found = self.words.read(word)?;
        unless_given_up(found, from)?;
        Ok(found > number && self.words.test(word, Cmp::Gt, number)?)
    }

    /// Notifies all other ranks, except the late ones, that this rank has given up. This rank sends no block
    /// afterwards.
    pub fn give_up(&self, late: &[Pe], seconds: f64) {
        let Some(&first) = late.first() else { return };
        let millis = (seconds * 1000.0) as u32;
        let word = GIVEN_UP | u64::from(first) << RANK_AT | u64::from(millis);
        let me = self.rt.my_pe();
        for to in (0..self.ranks() as Pe).filter(|to| *to != me && !late.contains(to)) {
            for slot in 0..SLOTS {
                // A rank that this signal does not reach notices when its own time limit expires.
                let _ = self.words.signal_op(me as usize * SLOTS + slot, word, SignalOp::Set, to);
            }
        }
    }

    /// Copies a part of the next block from a rank, which must have arrived.
    ///
    /// # Errors
    /// An error of the runtime.
    pub fn read(&self, from: Pe, at: usize, part: &mut [u8]) -> Result<()> {
        Ok(self.inbox.get(self.at(from, self.read[from as usize]) + at, part, self.rt.my_pe())?)
    }

    /// Frees the slot of the block that was read, for its sender.
    ///
    /// # Errors
    /// An error of the runtime.
    pub fn give_back(&mut self, from: Pe) -> Result<()> {
        self.read[from as usize] += 1;
        let word = self.ranks() * SLOTS + self.rt.my_pe() as usize;
        // The signal adds, because signals that set may arrive out of order.
        Ok(self.words.signal_op(word, 1, SignalOp::Add, from)?)
    }
}
