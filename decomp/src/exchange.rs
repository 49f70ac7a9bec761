//! The words between pairs of PEs, which signal where a PE may write and which blocks have arrived.
//!
//! Each pair of an operation has a slot of words at both ends. The words hold numbers of rounds, which only grow, so
//! that no PE resets a word and no barrier is needed. Round `n` of a plan waits for words of at least `2 * n`. An odd
//! arrived word signals that there is no block.
//!
//! 1. The receiver writes where its block may go, its *landing*, and then the round into the sender's `ready` word.
//! 2. The sender writes the block, and then the round into the receiver's `arrived` word. For blocks over rails the
//!    receiver counts arrivals in that word instead, so that a block can be one message without a reply.
//!
//! Small blocks over rails go to buffers of their own without the first step: see `small`. Such a block may overtake
//! that of the round before, on another rail or because its word need not wait for a delivery. So odd rounds have an
//! arrived word of their own. It is the ready word, which such pairs do not need. A word of `n` thus implies nothing
//! about `n - 1`.
//!
//! A receiver that cannot accept a block writes the reason in place of the landing. The sender then only acknowledges
//! that. A sender that does not reach the landing writes the reason in place of the arrival.
//!
//! The PEs agree on the pairs with small blocks, and on the blocks that are counted, when the plan is made. One end may
//! have mapped the other while the other reaches it over rails. A block over rails may overtake any word that was sent
//! before it, since the two are different messages. So all that changes a word that counts adds to it, even the word
//! that ends the agreement: a store would take back the blocks that came before it.
//!
//! Each wait for a word ends within `SYMRAIL_TIMEOUT_S`.

use symrail::rounds::SignalWords;
use symrail::{Cmp, Delivery, Pe, Runtime, SignalOp, SignalUpdate, WordSet, with_timeout};

use crate::error::{Refusal, Result};

/// The arrays of words, each with one word for every slot.
const OFFERS: usize = 0;
const LANDINGS: usize = 1;
const READY: usize = 2;
const ARRIVED: usize = 3;
const ARRAYS: usize = 4;
/// The amount by which an arrived word exceeds its round's number when there is no block.
const NOTHING: u64 = 1;
/// The value of all words after the PEs have agreed on what is counted.
const AGREED: u64 = 2;
/// The flags that the ends of a pair exchange in that agreement.
const WANTS_ROOM: i64 = 1;
const COUNTED: i64 = 2;

/// Where a block may go at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// At this distance from the words, with contiguous elements.
    Packed(i64),
    /// At this distance from the words, with the elements arranged as in the output.
    InPlace(i64),
    /// The receiver refuses it.
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
    /// Whether blocks both ways have buffers of their own.
    pub small: bool,
    /// Whether this PE's blocks are counted at the other end, since they go over rails; and the other end's at this
    /// one.
    pub counted_there: bool,
    pub counted_here: bool,
}

/// The words of a plan.
pub(crate) struct Exchange {
    words: SignalWords,
    slots: usize,
    round: u64,
    /// The values of this round's words: ready words by slot, then arrived words.
    wanted: Vec<u64>,
    /// For each slot, the delivery of the last landing.
    offered: Vec<Option<Delivery>>,
}

impl Exchange {
    /// Bytes of the words for `slots` slots.
    pub fn bytes(slots: usize) -> usize {
        ARRAYS * slots * size_of::<u64>()
    }

    /// # Safety
    /// The words are symmetric memory of [`Exchange::bytes`] bytes, all 0. Nothing else uses them.
    pub unsafe fn new(runtime: &Runtime, words: *mut u64, slots: usize) -> Exchange {
        let offered = (0..slots).map(|_| None).collect();
        // SAFETY: the caller's promise.
        let words = unsafe { SignalWords::new(runtime, words, ARRAYS * slots) };
        Exchange { words, slots, round: 0, wanted: vec![0; 2 * slots], offered }
    }

    fn index(&self, array: usize, slot: usize) -> usize {
        array * self.slots + slot
    }

    fn word(&self, array: usize, slot: usize) -> *mut u64 {
        self.words.address(self.index(array, slot))
    }

    fn base(&self) -> *mut u64 {
        self.word(OFFERS, 0)
    }

    fn runtime(&self) -> &Runtime {
        self.words.runtime()
    }

    /// The value of this round's words.
    fn value(&self) -> u64 {
        2 * self.round
    }

    /// The array of the words that signal the arrival of this round's blocks.
    fn arrived(&self, link: &Link) -> usize {
        if link.small && !self.round.is_multiple_of(2) { READY } else { ARRIVED }
    }

    /// The value of the word that signals the arrival of the other end's block of this round. Words that count continue
    /// from their value after the first round.
    fn when_arrived(&self, link: &Link) -> u64 {
        match (link.counted_here, link.small) {
            (false, _) => self.value(),
            (true, false) => AGREED + self.round - 1,
            // Each of the two words counts every other round.
            (true, true) => AGREED + self.round / 2,
        }
    }

    /// Begins the next round with the other ends.
    pub fn begin<'l>(&mut self, links: impl Iterator<Item = &'l Link>) {
        self.round += 1;
        let value = self.value();
        self.wanted.fill(value);
        for link in links {
            let at = self.done_index(link, true);
            self.wanted[at] = self.when_arrived(link);
        }
    }

    /// The distance of symmetric memory from the words, which is the same on all PEs. `None` if the memory is not
    /// symmetric.
    pub fn distance(&self, ptr: *const u8, bytes: usize) -> Option<i64> {
        let words = self.runtime().symmetric_offset(self.base().cast(), 8).ok()?;
        let offset = self.runtime().symmetric_offset(ptr, bytes).ok()?;
        Some(offset.cast_signed() - words.cast_signed())
    }

    /// The symmetric address at a distance.
    pub fn at(&self, distance: i64) -> *mut u8 {
        self.base().cast::<u8>().wrapping_offset(distance as isize)
    }

    /// Writes to a sender where its block may go.
    pub fn offer(&mut self, link: &Link, landing: Landing) -> Result<()> {
        // After a failover the landing of an earlier round could otherwise arrive again, behind this one.
        if let Some(earlier) = self.offered[link.here].take() {
            earlier.wait()?;
        }
        let source = self.word(OFFERS, link.here);
        let (dest, ready) = (self.word(LANDINGS, link.there), self.word(READY, link.there));
        // SAFETY: the words are this plan's. The sender has read the landing of the round before, since its block has
        // arrived. The source stays unchanged until the next offer has waited for this one's delivery.
        unsafe {
            source.write_volatile(landing.to_number());
            let (bytes, signal) = (size_of::<u64>(), SignalUpdate::set(ready, self.value()));
            let delivery = self.runtime().put_signal_tracked(dest.cast(), source.cast(), bytes, signal, link.pe)?;
            self.offered[link.here] = Some(delivery);
        }
        Ok(())
    }

    /// Where the block of this round may go, once the receiver has signalled it.
    pub fn landing(&self, link: &Link) -> Result<Option<Landing>> {
        if !self.is_set(READY, link, self.value())? {
            return Ok(None);
        }
        // Its writer leaves it alone until the block has arrived.
        Ok(Some(Landing::of_number(self.words.read(self.index(LANDINGS, link.here))?)))
    }

    /// Puts a block over rails, and signals its arrival.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes`, and does not change until the delivery has completed.
    pub unsafe fn put(&self, link: &Link, to: *mut u8, from: *const u8, bytes: usize) -> Result<Delivery> {
        let word = self.word(self.arrived(link), link.there);
        // SAFETY: the caller's promise.
        Ok(unsafe { self.runtime().put_counted(to, from, bytes, word, link.pe) }?)
    }

    /// The number of this round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Signals the arrival of this PE's block, or of a refusal, after stores to mapped memory.
    pub fn signal_arrival(&self, link: &Link) -> Result<()> {
        let (value, op) = if link.counted_there { (1, SignalOp::Add) } else { (self.value(), SignalOp::Set) };
        self.signal(link, value, op)
    }

    /// Signals that there is no block in this round, for a pair whose blocks are not counted.
    pub fn signal_nothing(&self, link: &Link) -> Result<()> {
        self.signal(link, self.value() + NOTHING, SignalOp::Set)
    }

    fn signal(&self, link: &Link, value: u64, op: SignalOp) -> Result<()> {
        Ok(self.words.signal(self.index(self.arrived(link), link.there), value, op, link.pe)?)
    }

    /// Whether the other end's block of this round has arrived.
    pub fn has_arrived(&self, link: &Link) -> Result<bool> {
        self.is_set(self.arrived(link), link, self.when_arrived(link))
    }

    /// Whether the arrived word signals that there is no block.
    pub fn is_nothing(&self, link: &Link) -> Result<bool> {
        let now = self.words.read(self.index(self.arrived(link), link.here))?;
        Ok(!link.counted_here && now == self.value() + NOTHING)
    }

    /// Agrees with the other ends on the pairs with buffers for small blocks, which both ends must want, and on the
    /// blocks that are counted. All ends of the pairs call this, in the first round.
    pub fn agree(&mut self, links: &mut [&mut Link]) -> Result<()> {
        self.begin(std::iter::empty());
        // This round's words are those of larger blocks.
        let mine = links.iter_mut().map(|link| {
            let Link { small, counted_there, .. } = **link;
            (link.small, link.counted_there, link.counted_here) = (false, false, false);
            WANTS_ROOM * i64::from(small) + COUNTED * i64::from(counted_there)
        });
        let mine: Vec<i64> = mine.collect();
        for (link, &mine) in links.iter().zip(&mine) {
            self.offer(link, Landing::Packed(mine))?;
        }
        let mut theirs = Vec::new();
        for link in links.iter() {
            theirs.push(if let Landing::Packed(theirs) = self.await_landing(link)? { theirs } else { 0 });
            self.signal(link, AGREED, SignalOp::Add)?;
        }
        for (link, (mine, theirs)) in links.iter_mut().zip(mine.into_iter().zip(theirs)) {
            self.await_arrived(link)?;
            link.small = mine & theirs & WANTS_ROOM != 0;
            (link.counted_there, link.counted_here) = (mine & COUNTED != 0, theirs & COUNTED != 0);
        }
        Ok(())
    }

    /// Waits until the receiver has signalled where the block of this round may go.
    pub fn await_landing(&self, link: &Link) -> Result<Landing> {
        loop {
            self.await_word(READY, link, self.value())?;
            if let Some(landing) = self.landing(link)? {
                return Ok(landing);
            }
        }
    }

    /// Waits until the other end's block of this round has arrived.
    pub fn await_arrived(&self, link: &Link) -> Result<()> {
        self.await_word(self.arrived(link), link, self.when_arrived(link))
    }

    fn await_word(&self, array: usize, link: &Link, value: u64) -> Result<()> {
        let wait = || self.words.wait("a plan", self.index(array, link.here), value);
        Ok(with_timeout(self.runtime().timeout(), wait)?)
    }

    fn is_set(&self, array: usize, link: &Link, value: u64) -> Result<bool> {
        Ok(self.words.has_reached(self.index(array, link.here), value)?)
    }

    /// Waits for a word of this round: ready words by slot, then arrived words, without those that are `done`.
    pub fn wait(&self, done: &[i32]) -> Result<()> {
        let words = self.word(READY, 0);
        // SAFETY: the two arrays are contiguous and aligned, and stay as long as the exchange.
        let set = unsafe { WordSet::each_of(words.cast_const(), Cmp::Ge, &self.wanted) }.without(done);
        with_timeout(self.runtime().timeout(), || self.runtime().wait_until_any(&set))?;
        Ok(())
    }

    /// The index of a slot's words among those of [`Exchange::wait`].
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
    const ENDS: [Link; 2] = [
        Link { pe: 0, here: 0, there: 1, small: true, counted_there: true, counted_here: false },
        Link { pe: 0, here: 1, there: 0, small: true, counted_there: true, counted_here: false },
    ];
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
        what_is_counted_has_arrived_in_its_round(ends(memory()));
        for small in [false, true] {
            blocks_that_overtake_the_agreement_are_counted(ends(memory()), small);
        }
        small_blocks_are_for_pairs_of_which_both_ends_want_them(ends(memory()));
        what_is_not_sent_has_arrived_as_nothing(ends(memory()));
    }

    /// The two ends after they have agreed. Each wants small blocks or not.
    fn agreed(ends: [(Link, Exchange); 2], wanted: [bool; 2]) -> [(Link, Exchange); 2] {
        let mut wanted = wanted.into_iter();
        std::thread::scope(|scope| {
            let asked = ends.map(|(link, mut exchange)| {
                let mut link = Link { small: wanted.next().unwrap(), ..link };
                scope.spawn(move || {
                    exchange.agree(&mut [&mut link]).unwrap();
                    (link, exchange)
                })
            });
            asked.map(|end| end.join().unwrap())
        })
    }

    /// A block over rails is another message than the word that ends the agreement. It may arrive before that word.
    fn blocks_that_overtake_the_agreement_are_counted(ends: [(Link, Exchange); 2], small: bool) {
        let [(link, here), (back, there)] = ends;
        // The block of round 2.
        let block = here.word(ARRIVED, link.here);
        // SAFETY: a word of the pair, which its ends use from here on.
        unsafe { block.write_volatile(1) };
        let [(link, mut here), (back, mut there)] = agreed([(link, here), (back, there)], [small; 2]);
        for round in 2..6 {
            here.begin([link].iter());
            there.begin([back].iter());
            if round > 2 {
                assert!(!here.has_arrived(&link).unwrap(), "round {round}");
                there.signal_arrival(&back).unwrap();
            }
            assert!(here.has_arrived(&link).unwrap(), "round {round}, with buffers of their own: {small}");
        }
    }

    /// The block of round 3 arrives before that of round 2.
    fn a_small_block_is_not_taken_for_the_one_before(ends: [(Link, Exchange); 2], runtime: &Runtime, memory: *mut u8) {
        let [(link, mut here), (back, mut there)] = agreed(ends, [true, true]);
        let at = memory.wrapping_add(Exchange::bytes(2));
        // SAFETY: memory after the words.
        let [rooms, mut sent] = [(); 2].map(|()| unsafe { Small::new(at, 2, ROOM) });
        let mut send = |there: &Exchange, byte: u8| {
            let block = sent.outgoing(&back, there.round()).unwrap();
            // SAFETY: the buffer of a block.
            unsafe { block.write_bytes(byte, 16) };
            sent.send(there, &back, Ok(16)).unwrap();
        };
        let found = |here: &Exchange| {
            let block = rooms.received(&link, here.round()).unwrap();
            // SAFETY: 16 bytes of the buffer.
            unsafe { block.cast::<[u8; 16]>().read_volatile() }
        };
        here.begin([link].iter());
        there.begin([back].iter());
        // SAFETY: the words of the other end, which is not used meanwhile.
        let ahead = Exchange { round: there.round + 1, ..unsafe { Exchange::new(runtime, there.base(), 2) } };
        send(&ahead, 3);
        assert!(!here.has_arrived(&link).unwrap(), "the block of round 3 was taken for that of round 2");
        send(&there, 2);
        assert!(here.has_arrived(&link).unwrap());
        assert_eq!(found(&here), [2; 16]);
        here.begin([link].iter());
        assert!(here.has_arrived(&link).unwrap());
        assert_eq!(found(&here), [3; 16]);
    }

    fn small_blocks_are_for_pairs_of_which_both_ends_want_them(mut ends: [(Link, Exchange); 2]) {
        for wanted in [[true, true], [true, false], [false, true], [false, false]] {
            for counted in [[true, true], [true, false], [false, true]] {
                for (end, counted_there) in ends.iter_mut().zip(counted) {
                    end.0.counted_there = counted_there;
                }
                ends = agreed(ends, wanted);
                let links = ends.each_ref().map(|(link, _)| *link);
                assert_eq!(links.map(|link| link.small), [wanted == [true, true]; 2], "{wanted:?}");
                assert_eq!(links.map(|link| link.counted_there), counted);
                assert_eq!(links.map(|link| link.counted_here), [counted[1], counted[0]]);
            }
        }
    }

    /// One end sends blocks, and in every third round only the word that there is none.
    fn what_is_counted_has_arrived_in_its_round(ends: [(Link, Exchange); 2]) {
        let [(link, mut here), (back, mut there)] = agreed(ends, [false, false]);
        for round in 2..10 {
            here.begin([link].iter());
            there.begin([back].iter());
            assert!(!here.has_arrived(&link).unwrap(), "round {round}");
            if round % 3 == 0 {
                there.signal_arrival(&back).unwrap();
            } else {
                let to = there.base().wrapping_add(ARRAYS * 2).cast();
                // SAFETY: 8 bytes of the buffers after the words.
                unsafe { there.put(&back, to, to, 8) }.unwrap().wait().unwrap();
            }
            assert!(here.has_arrived(&link).unwrap() && !here.is_nothing(&link).unwrap(), "round {round}");
            let done = (0..4).map(|at| i32::from(at != here.done_index(&link, true))).collect::<Vec<_>>();
            here.wait(&done).unwrap();
        }
    }

    fn what_is_not_sent_has_arrived_as_nothing([(link, mut here), (back, mut there)]: [(Link, Exchange); 2]) {
        let [link, back] = [link, back].map(|link| Link { small: false, counted_there: false, ..link });
        for round in 0..8 {
            here.begin(std::iter::empty());
            there.begin(std::iter::empty());
            if round < 5 {
                continue;
            }
            assert!(!here.has_arrived(&link).unwrap(), "round {round}");
            if round == 6 {
                there.signal_nothing(&back).unwrap();
            } else {
                there.signal_arrival(&back).unwrap();
            }
            assert!(here.has_arrived(&link).unwrap(), "round {round}");
            assert_eq!(here.is_nothing(&link).unwrap(), round == 6);
        }
    }
}
