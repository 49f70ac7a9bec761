//! AMOs as loops of fetches and compare-swaps: the next step of each loop for a given value of its word, and the AMOs
//! that wait for the word.

use std::collections::{HashMap, VecDeque};

use super::command::{OpHandle, Signal};
use crate::amo::{self, AmoOp, AmoType};
use crate::pe::Pe;

/// An AMO on one word, without the destination of the old value.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordAmo {
    pub offset: u64,
    pub ty: AmoType,
    pub op: AmoOp,
    pub operand: u64,
    pub compare: u64,
}

impl WordAmo {
    pub fn of_signal(signal: Signal) -> WordAmo {
        WordAmo { offset: signal.offset, ty: AmoType::U64, op: signal.op, operand: signal.value, compare: 0 }
    }
}

/// An AMO that is performed by a loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct SwapLoop {
    amo: WordAmo,
    /// The type of the provider's word.
    pub by: AmoType,
    /// The comparand and the new value of the last compare-swap; `None` while the word is fetched.
    swap: Option<(u64, u64)>,
}

/// An aligned 8-byte word of a PE.
pub(super) type Word = (Pe, u64);

/// The next step of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The loop has ended. The AMO's word held `old`, and the provider's word holds `now`.
    Done { old: u64, now: u64 },
    /// Perform a compare-swap.
    Swap { expected: u64, new: u64 },
}

impl SwapLoop {
    pub fn new(amo: WordAmo, by: AmoType) -> SwapLoop {
        SwapLoop { amo, by, swap: None }
    }

    /// The offset of the provider's word.
    pub fn offset(&self) -> u64 {
        self.amo.offset & !(self.by.size() as u64 - 1)
    }

    /// The word that the loop reserves.
    pub fn word(&self, pe: Pe) -> Word {
        (pe, self.amo.offset & !7)
    }

    /// The AMO's word within the provider's word: the lowest bit, and a mask of its width.
    fn place(&self) -> (u32, u64) {
        let shift = (self.amo.offset - self.offset()) as u32 * 8;
        (shift, u64::MAX >> (64 - 8 * self.amo.ty.size()))
    }

    /// The next step after the provider's word held `seen`.
    pub fn next(&mut self, seen: u64) -> Next {
        let (shift, mask) = self.place();
        let old = seen >> shift & mask;
        if let Some((expected, now)) = self.swap
            && expected == seen
        {
            return Next::Done { old, now };
        }
        let WordAmo { ty, op, operand, compare, .. } = self.amo;
        let value = amo::value_after(old, ty, op, operand, compare);
        if value == old {
            return Next::Done { old, now: seen }; // the word already holds the new value, so there is nothing to write
        }
        let new = seen & !(mask << shift) | value << shift;
        self.swap = Some((seen, new));
        Next::Swap { expected: seen, new }
    }
}

/// An AMO that waits for a loop on its word.
pub(super) struct Queued {
    pub op: OpHandle,
    pub amo: WordAmo,
    pub fetching: bool,
}

/// The loops of an endpoint.
#[derive(Default)]
pub(super) struct Loops {
    /// Words that have a loop, and the AMOs that wait for each.
    pub words: HashMap<Word, VecDeque<Queued>>,
    /// Loops whose last request has completed.
    pub returned: VecDeque<OpHandle>,
    /// Words whose loop has ended, and their values then, if known.
    pub ended: Vec<(Word, Option<u64>)>,
}

impl Loops {
    /// Whether a loop or a waiting AMO can continue.
    pub fn pending(&self) -> bool {
        !self.returned.is_empty() || !self.ended.is_empty()
    }

    /// Notes a loop that broke off because its operation failed. Its word is free for other AMOs.
    #[inline]
    pub fn broke_off(&mut self, word: Word) {
        self.ended.push((word, None));
    }

    /// Notes that the last request of a loop has completed.
    pub fn came_back(&mut self, op: OpHandle) {
        self.returned.push_back(op);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TYPES: [AmoType; 6] = [AmoType::I32, AmoType::U32, AmoType::I64, AmoType::U64, AmoType::F32, AmoType::F64];

    /// Runs a loop against a word in memory that other PEs change `disturbances` times in between.
    fn run(word: &mut u64, amo: WordAmo, by: AmoType, disturbances: &[u64]) -> u64 {
        let mut swap_loop = SwapLoop::new(amo, by);
        let mask = u64::MAX >> (64 - 8 * by.size());
        let shift = (swap_loop.offset() % 8 * 8) as u32;
        let mut others = disturbances.iter();
        let mut seen = *word >> shift & mask;
        loop {
            match swap_loop.next(seen) {
                Next::Done { old, now } => {
                    assert_eq!(now, *word >> shift & mask);
                    return old;
                }
                Next::Swap { expected, new } => {
                    if let Some(other) = others.next() {
                        *word = *other;
                    }
                    seen = *word >> shift & mask;
                    if seen == expected {
                        *word = *word & !(mask << shift) | new << shift;
                    }
                }
            }
        }
    }

    proptest! {
        /// The effect and the result of a loop equal those of a CPU's atomic on the word's last value.
        #[test]
        fn a_loop_does_what_a_cpu_does(
            start: u64, ty in 0usize..6, op in 0u8..7, operand: u64, compare: u64, equal: bool, high: bool, narrow: bool,
            disturbances in proptest::collection::vec(any::<u64>(), 0..4),
        ) {
            let (ty, op) = (TYPES[ty], AmoOp::from_repr(op).unwrap_or(AmoOp::Fetch));
            prop_assume!(op.defined_on(ty));
            let within = if ty.size() == 4 && high { 4 } else { 0 };
            let by = if ty.size() == 4 && narrow { AmoType::U32 } else { AmoType::U64 };
            let mask = u64::MAX >> (64 - 8 * ty.size());
            let compare = if equal { start >> (8 * within) & mask } else { compare & mask };
            let amo = WordAmo { offset: 4096 + within, ty, op, operand: operand & mask, compare };
            let mut word = start;
            let old = run(&mut word, amo, by, &disturbances);
            // The loop took effect on one of the values that the word had.
            let candidates = std::iter::once(start).chain(disturbances.iter().copied());
            let matches = candidates.clone().any(|held| {
                let mut expected = held;
                // SAFETY: a local word; `within` keeps 4-byte words inside of it and aligned.
                let was = unsafe {
                    let at = (&raw mut expected).cast::<u8>().add(within as usize);
                    amo::apply(at, ty, op, amo.operand, compare)
                };
                was == old && (expected == word || candidates.clone().any(|other| other == word))
            });
            prop_assert!(matches, "{old:#x} {word:#x}");
            if disturbances.is_empty() {
                let mut expected = start;
                // SAFETY: as above.
                unsafe { amo::apply((&raw mut expected).cast::<u8>().add(within as usize), ty, op, amo.operand, compare) };
                prop_assert_eq!(word, expected);
            }
        }
    }

    #[test]
    fn a_loop_that_has_nothing_to_change_writes_nothing() {
        let amo = WordAmo { offset: 4, ty: AmoType::U32, op: AmoOp::CompareSwap, operand: 9, compare: 7 };
        let mut swap_loop = SwapLoop::new(amo, AmoType::U64);
        assert_eq!(swap_loop.offset(), 0);
        assert_eq!(
            swap_loop.next(0x0000_0008_0000_0007),
            Next::Done { old: 8, now: 0x0000_0008_0000_0007 },
            "the other half is not ours"
        );
        let mut swap_loop = SwapLoop::new(amo, AmoType::U64);
        let swap = Next::Swap { expected: 0x0000_0007_1234_5678, new: 0x0000_0009_1234_5678 };
        assert_eq!(swap_loop.next(0x0000_0007_1234_5678), swap);
        assert_eq!(swap_loop.next(0x0000_0007_1234_5678), Next::Done { old: 7, now: 0x0000_0009_1234_5678 }, "it took");
    }
}
