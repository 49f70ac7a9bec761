//! Who may write where, and what has arrived: words between pairs of PEs.
//!
//! Each pair of an operation has a slot of words at both ends. They hold numbers of rounds, which only grow, so that
//! nothing is ever reset and no barrier is needed: round `n` of a plan waits for words of at least `n`.
//!
//! 1. The receiver writes where its block may go, its *landing*, and then the round into the sender's `ready` word.
//! 2. The sender writes the block, and then the round into the receiver's `arrived` word.
//!
//! Small blocks over rails go to room of their own without the first step: see `small`. A block may then overtake that
//! of the round before, on another rail or because it needs no delivery before its word. So odd rounds have an arrived
//! word of their own, which is the ready word that such pairs do not need: a word of `n` says nothing of `n - 1`.
//!
//! A receiver that cannot take anything says so in place of the landing; then the sender only acknowledges that.

use symrail::{Cmp, Delivery, Pe, Runtime, SignalOp, WordSet};

use crate::error::{Refusal, Result};

/// Arrays of words, each with one for every slot.
const OFFERS: usize = 0;
const LANDINGS: usize = 1;
const READY: usize = 2;
const ARRIVED: usize = 3;
const ARRAYS: usize = 4;

/// Where a block may go at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// At this distance from the words, one element behind the other.
    Packed(i64),
    /// At this distance from the words, as the elements lie in the output.
    InPlace(i64),
    /// Nowhere.
    Refused(Refusal),
}

impl Landing {
    pub fn to_number(self) -> u64 {
        let (value, kind) = match self {
            Landing::Packed(distance) => (distance.cast_unsigned(), 0),
            Landing::InPlace(distance) => (distance.cast_unsigned(), 1),
            Landing::Refused(refusal) => (refusal.code(), 2),
        };
        value << 2 | kind
    }

    fn of_number(number: u64) -> Landing {
        let distance = number.cast_signed() >> 2;
        match number & 3 {
            0 => Landing::Packed(distance),
            1 => Landing::InPlace(distance),
            _ => Landing::Refused(Refusal::of_code(number >> 2)),
        }
    }
}

/// The other end of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub pe: Pe,
    /// The slot of the pair at this PE.
    pub here: usize,
    /// The slot of the pair at the other one.
    pub there: usize,
    /// Blocks both ways have room of their own.
    pub small: bool,
}

/// The words of a plan.
pub(crate) struct Exchange<'rt> {
    runtime: &'rt Runtime,
    words: *mut u64,
    slots: usize,
    round: u64,
}

// SAFETY: the address is that of symmetric memory, which any thread may use by the runtime's operations.
unsafe impl Send for Exchange<'_> {}

impl<'rt> Exchange<'rt> {
    /// Bytes of the words for so many slots.
    pub fn bytes(slots: usize) -> usize {
        ARRAYS * slots * size_of::<u64>()
    }

    /// # Safety
    /// The words are symmetric memory of [`Exchange::bytes`] bytes, all 0 and used by nobody else.
    pub unsafe fn new(runtime: &'rt Runtime, words: *mut u64, slots: usize) -> Exchange<'rt> {
        Exchange { runtime, words, slots, round: 0 }
    }

    fn word(&self, array: usize, slot: usize) -> *mut u64 {
        self.words.wrapping_add(array * self.slots + slot)
    }

    /// The array of the words that say that blocks of this round have arrived.
    fn arrived(&self, link: &Link) -> usize {
        if link.small && !self.round.is_multiple_of(2) { READY } else { ARRIVED }
    }

    /// Begins the next round.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// How far symmetric memory is from the words: the same on all PEs. `None` if it is not symmetric.
    pub fn distance(&self, ptr: *const u8, bytes: usize) -> Option<i64> {
        let words = self.runtime.symmetric_offset(self.words.cast(), 8).ok()?;
        let offset = self.runtime.symmetric_offset(ptr, bytes).ok()?;
        Some(offset.cast_signed() - words.cast_signed())
    }

    /// The symmetric address at a distance.
    pub fn at(&self, distance: i64) -> *mut u8 {
        self.words.cast::<u8>().wrapping_offset(distance as isize)
    }

    /// Tells a sender where its block may go.
    pub fn offer(&self, link: &Link, landing: Landing) -> Result<()> {
        let source = self.word(OFFERS, link.here);
        let (dest, ready) = (self.word(LANDINGS, link.there), self.word(READY, link.there));
        // SAFETY: the words are this plan's. What was offered before has been taken, since its block has arrived.
        unsafe {
            source.write_volatile(landing.to_number());
            let signal = (ready, self.round, SignalOp::Set);
            Ok(self.runtime.put_signal_nbi(dest.cast(), source.cast(), size_of::<u64>(), signal, link.pe)?)
        }
    }

    /// Where the block of this round may go, once the receiver has said so.
    pub fn landing(&self, link: &Link) -> Result<Option<Landing>> {
        if !self.is_set(READY, link)? {
            return Ok(None);
        }
        // SAFETY: a word of this plan, which its writer leaves alone until the block has arrived.
        let number = unsafe { self.runtime.peek(self.word(LANDINGS, link.here)) }?;
        Ok(Some(Landing::of_number(number)))
    }

    /// Puts a block, and says that it has arrived.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`, and does not change until the next quiet.
    pub unsafe fn put(&self, link: &Link, distance: i64, from: *const u8, bytes: usize) -> Result<()> {
        let signal = (self.word(self.arrived(link), link.there), self.round, SignalOp::Set);
        // SAFETY: the caller's promise.
        Ok(unsafe { self.runtime.put_signal_nbi(self.at(distance), from, bytes, signal, link.pe) }?)
    }

    /// As [`Exchange::put`]; its delivery can be asked for.
    ///
    /// # Safety
    /// As there, until then.
    pub unsafe fn put_tracked(&self, link: &Link, to: *mut u8, from: *const u8, bytes: usize) -> Result<Delivery<'rt>> {
        let signal = (self.word(self.arrived(link), link.there), self.round, SignalOp::Set);
        // SAFETY: the caller's promise.
        Ok(unsafe { self.runtime.put_signal_tracked(to, from, bytes, signal, link.pe) }?)
    }

    /// The number of this round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Says that this PE's block has arrived, or that there will be none: after stores to memory that is mapped.
    pub fn tell_arrived(&self, link: &Link) -> Result<()> {
        let signal = (self.word(self.arrived(link), link.there), self.round, SignalOp::Set);
        // SAFETY: no bytes are put.
        Ok(unsafe { self.runtime.put_signal_nbi(signal.0.cast(), signal.0.cast(), 0, signal, link.pe) }?)
    }

    /// Whether the other end's block of this round has arrived.
    pub fn has_arrived(&self, link: &Link) -> Result<bool> {
        self.is_set(self.arrived(link), link)
    }

    /// Waits until the receiver has said where the block of this round may go.
    pub fn await_landing(&self, link: &Link) -> Result<Landing> {
        loop {
            self.await_word(READY, link)?;
            if let Some(landing) = self.landing(link)? {
                return Ok(landing);
            }
        }
    }

    /// Waits until the other end's block of this round has arrived.
    pub fn await_arrived(&self, link: &Link) -> Result<()> {
        self.await_word(self.arrived(link), link)
    }

    fn await_word(&self, array: usize, link: &Link) -> Result<()> {
        // SAFETY: a word of this plan, aligned.
        unsafe { self.runtime.wait_in("a plan", self.word(array, link.here).cast_const(), Cmp::Ge, self.round) }?;
        Ok(())
    }

    fn is_set(&self, array: usize, link: &Link) -> Result<bool> {
        // SAFETY: a word of this plan, aligned.
        Ok(unsafe { self.runtime.peek(self.word(array, link.here)) }? >= self.round)
    }

    /// Waits for a word of this round: ready words by slot, then arrived ones, without those that are `done`.
    pub fn wait(&self, done: &[i32]) -> Result<()> {
        let words = self.word(READY, 0);
        let set = WordSet::all_of(words.cast_const(), 2 * self.slots, Cmp::Ge, self.round).without(done);
        // SAFETY: the two arrays are one behind the other, aligned.
        unsafe { self.runtime.wait_until_any(&set) }?;
        Ok(())
    }

    /// The place of a slot's words among those of [`Exchange::wait`].
    pub fn done_index(&self, link: &Link, arrived: bool) -> usize {
        link.here + if arrived == (self.arrived(link) == ARRIVED) { self.slots } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landings_survive_the_way() {
        for landing in [
            Landing::Packed(0),
            Landing::Packed(-64),
            Landing::InPlace(1 << 40),
            Landing::InPlace(-(1 << 40)),
            Landing::Refused(Refusal::Overlap),
        ] {
            assert_eq!(Landing::of_number(landing.to_number()), landing);
        }
    }
}
