//! Who may write where, and what has arrived: words between pairs of PEs.
//!
//! Each pair of an operation has a slot of words at both ends. They hold numbers of rounds, which only grow, so that
//! nothing is ever reset and no barrier is needed: round `n` of a plan waits for words of at least `2 * n`, and an odd
//! one says that there is no block.
//!
//! 1. The receiver writes where its block may go, its *landing*, and then the round into the sender's `ready` word.
//! 2. The sender writes the block, and then the round into the receiver's `arrived` word.
//!
//! Small blocks over rails go to room of their own without the first step: see `small`. A block may then overtake that
//! of the round before, on another rail or because it needs no delivery before its word. So odd rounds have an arrived
//! word of their own, which is the ready word that such pairs do not need: a word of `n` says nothing of `n - 1`.
//!
//! A receiver that cannot take anything says so in place of the landing; then the sender only acknowledges that. A
//! sender that does not reach the landing says so in place of the arrival.
//!
//! Whether a pair's blocks are small ones is agreed when the plan is made: one end may have mapped the other while the
//! other reaches it over rails.

use symrail::{Cmp, Delivery, Pe, Runtime, SignalOp, WordSet};

use crate::error::{Refusal, Result};

/// Arrays of words, each with one for every slot.
const OFFERS: usize = 0;
const LANDINGS: usize = 1;
const READY: usize = 2;
const ARRIVED: usize = 3;
const ARRAYS: usize = 4;
/// What an arrived word has more than its round's number when there is no block.
const NOTHING: u64 = 1;

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

    /// What words of this round hold.
    fn value(&self) -> u64 {
        2 * self.round
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
            let signal = (ready, self.value(), SignalOp::Set);
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
        let signal = (self.word(self.arrived(link), link.there), self.value(), SignalOp::Set);
        // SAFETY: the caller's promise.
        Ok(unsafe { self.runtime.put_signal_nbi(self.at(distance), from, bytes, signal, link.pe) }?)
    }

    /// As [`Exchange::put`]; its delivery can be asked for.
    ///
    /// # Safety
    /// As there, until then.
    pub unsafe fn put_tracked(&self, link: &Link, to: *mut u8, from: *const u8, bytes: usize) -> Result<Delivery<'rt>> {
        let signal = (self.word(self.arrived(link), link.there), self.value(), SignalOp::Set);
        // SAFETY: the caller's promise.
        Ok(unsafe { self.runtime.put_signal_tracked(to, from, bytes, signal, link.pe) }?)
    }

    /// The number of this round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Says that this PE's block has arrived, or that a refusal has: after stores to memory that is mapped.
    pub fn tell_arrived(&self, link: &Link) -> Result<()> {
        self.tell(link, self.value())
    }

    /// Says that there will be no block in this round.
    pub fn tell_nothing(&self, link: &Link) -> Result<()> {
        self.tell(link, self.value() + NOTHING)
    }

    fn tell(&self, link: &Link, value: u64) -> Result<()> {
        let signal = (self.word(self.arrived(link), link.there), value, SignalOp::Set);
        // SAFETY: no bytes are put.
        Ok(unsafe { self.runtime.put_signal_nbi(signal.0.cast(), signal.0.cast(), 0, signal, link.pe) }?)
    }

    /// Whether the other end's block of this round has arrived.
    pub fn has_arrived(&self, link: &Link) -> Result<bool> {
        self.is_set(self.arrived(link), link)
    }

    /// Whether what has arrived is that there is no block.
    pub fn is_nothing(&self, link: &Link) -> Result<bool> {
        // SAFETY: a word of this plan, aligned.
        Ok(unsafe { self.runtime.peek(self.word(self.arrived(link), link.here)) }? == self.value() + NOTHING)
    }

    /// Agrees with the other ends which pairs have room for small blocks: those of which both ends want it. The pairs'
    /// ends all call this, in the first round.
    pub fn agree(&mut self, links: &mut [&mut Link]) -> Result<()> {
        self.begin();
        // This round is as those of other blocks.
        let wanted: Vec<bool> = links.iter_mut().map(|link| std::mem::take(&mut link.small)).collect();
        for (link, &wanted) in links.iter().zip(&wanted) {
            self.offer(link, Landing::Packed(wanted.into()))?;
        }
        let mut both = Vec::new();
        for (link, &wanted) in links.iter().zip(&wanted) {
            both.push(wanted && self.await_landing(link)? == Landing::Packed(1));
            self.tell_arrived(link)?;
        }
        for (link, both) in links.iter_mut().zip(both) {
            self.await_arrived(link)?;
            link.small = both;
        }
        Ok(())
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
        unsafe { self.runtime.wait_in("a plan", self.word(array, link.here).cast_const(), Cmp::Ge, self.value()) }?;
        Ok(())
    }

    fn is_set(&self, array: usize, link: &Link) -> Result<bool> {
        // SAFETY: a word of this plan, aligned.
        Ok(unsafe { self.runtime.peek(self.word(array, link.here)) }? >= self.value())
    }

    /// Waits for a word of this round: ready words by slot, then arrived ones, without those that are `done`.
    pub fn wait(&self, done: &[i32]) -> Result<()> {
        let words = self.word(READY, 0);
        let set = WordSet::all_of(words.cast_const(), 2 * self.slots, Cmp::Ge, self.value()).without(done);
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::small::Small;

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

    /// The two ends of a pair, at one PE.
    const ENDS: [Link; 2] =
        [Link { pe: 0, here: 0, there: 1, small: true }, Link { pe: 0, here: 1, there: 0, small: true }];
    const ROOM: usize = 256;

    #[test]
    fn between_two_ends() {
        let runtime = Runtime::init().unwrap();
        let memory = || runtime.calloc(1, Exchange::bytes(2) + Small::bytes(2, ROOM)).unwrap();
        let ends = |memory: *mut u8| {
            // SAFETY: zeroed words that are large enough, for the two ends of one pair.
            ENDS.map(|link| (link, unsafe { Exchange::new(&runtime, memory.cast(), 2) }))
        };
        let rooms = memory();
        a_small_block_is_not_taken_for_the_one_before(ends(rooms), &runtime, rooms);
        small_blocks_are_for_pairs_of_which_both_ends_want_them(ends(memory()));
        what_is_not_sent_has_arrived_as_nothing(ends(memory()));
    }

    /// The block of round 2 arrives before that of round 1.
    fn a_small_block_is_not_taken_for_the_one_before<'rt>(
        [(link, mut here), (back, mut there)]: [(Link, Exchange<'rt>); 2],
        runtime: &'rt Runtime,
        memory: *mut u8,
    ) {
        let at = memory.wrapping_add(Exchange::bytes(2));
        // SAFETY: memory behind the words.
        let [rooms, mut sent] = [(); 2].map(|()| unsafe { Small::new(runtime, at, 2, ROOM) });
        let mut send = |there: &Exchange<'rt>, byte: u8| {
            let block = sent.outgoing(&back, there.round()).unwrap();
            // SAFETY: the room of a block.
            unsafe { block.write_bytes(byte, 16) };
            sent.send(there, &back, Ok(16)).unwrap();
        };
        let found = |here: &Exchange<'rt>| {
            let block = rooms.received(&link, here.round()).unwrap();
            // SAFETY: 16 bytes of the room.
            unsafe { block.cast::<[u8; 16]>().read_volatile() }
        };
        here.begin();
        there.begin();
        let ahead = Exchange { runtime, words: there.words, slots: 2, round: there.round + 1 };
        send(&ahead, 2);
        assert!(!here.has_arrived(&link).unwrap(), "the block of round 2 was taken for that of round 1");
        send(&there, 1);
        assert!(here.has_arrived(&link).unwrap());
        assert_eq!(found(&here), [1; 16]);
        here.begin();
        assert!(here.has_arrived(&link).unwrap());
        assert_eq!(found(&here), [2; 16]);
    }

    fn small_blocks_are_for_pairs_of_which_both_ends_want_them(ends: [(Link, Exchange<'_>); 2]) {
        let mut ends = ends;
        for wanted in [[true, true], [true, false], [false, true], [false, false]] {
            let agreed = std::thread::scope(|scope| {
                let both = ends.each_mut().map(|end| &mut *end).into_iter().zip(wanted);
                let asked = both.map(|((link, exchange), small)| {
                    let mut link = Link { small, ..*link };
                    scope.spawn(move || exchange.agree(&mut [&mut link]).map(|()| link.small).unwrap())
                });
                asked.collect::<Vec<_>>().into_iter().map(|end| end.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(agreed, [wanted == [true, true]; 2], "{wanted:?}");
        }
    }

    fn what_is_not_sent_has_arrived_as_nothing([(link, mut here), (back, mut there)]: [(Link, Exchange<'_>); 2]) {
        let [link, back] = [link, back].map(|link| Link { small: false, ..link });
        for round in 0..8 {
            here.begin();
            there.begin();
            if round < 5 {
                continue;
            }
            assert!(!here.has_arrived(&link).unwrap(), "round {round}");
            if round == 6 {
                there.tell_nothing(&back).unwrap();
            } else {
                there.tell_arrived(&back).unwrap();
            }
            assert!(here.has_arrived(&link).unwrap(), "round {round}");
            assert_eq!(here.is_nothing(&link).unwrap(), round == 6);
        }
    }
}
