//! AMOs by the provider or NIC, and what of them it cannot do itself.
//!
//! Where providers perform AMOs, they perform all of them (architecture.md: AMOs on one word are all performed by the
//! same party), and all on lane 0: a NIC's atomics need not be atomic with those of its neighbour. What the provider
//! lacks (a NIC has an addition and a compare-swap of 64-bit words, no more) becomes a loop over what it has: fetch the
//! word, compute the new one here, put it there by compare-swap if the word has not changed, else try again with what
//! it has become. The loop goes on with every completion, for at most `TIMEOUT_S`. Loops of one endpoint on one word
//! would only make each other fail: while there is one, further AMOs on the word wait for it, in order, and start from
//! the value that it left.
//!
//! Smaller words are changed within the aligned word around them, so their neighbour is written back as it was: whoever
//! changes the neighbour otherwise than by AMOs must not do so meanwhile.

use std::collections::{HashMap, VecDeque};

use super::job::{OpHandle, Signal};
use super::queue::{Work, WorkRequest};
use super::swap_loop::{Next, SwapLoop, Word};
use super::{Core, Endpoint};
use symrail_core::VariantArray;

use crate::amo::{AmoOp, AmoType};
use crate::pe::Pe;
use crate::rail::Rail;

/// The lane of every AMO that a provider performs.
pub(super) const AMO_LANE: usize = 0;

/// An AMO on one word, without what becomes of the old value.
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

/// How a provider does an AMO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// By one request.
    Itself,
    /// By fetches and compare-swaps of a word of this type.
    Loop(AmoType),
    /// Not at all.
    Never,
}

/// What a provider can do is asked for once.
pub(super) struct Abilities([[[How; 2]; AmoOp::VARIANTS.len()]; AmoType::VARIANTS.len()]);

impl Abilities {
    pub fn of(rail: &dyn Rail) -> Abilities {
        let loops = |ty| rail.supports_amo(ty, AmoOp::Fetch, true) && rail.supports_amo(ty, AmoOp::CompareSwap, true);
        // Its own size first: then no neighbour is touched.
        let (small, large) = (loops(AmoType::U32), loops(AmoType::U64));
        let mut all = [[[How::Never; 2]; AmoOp::VARIANTS.len()]; AmoType::VARIANTS.len()];
        for (ty, by_op) in AmoType::VARIANTS.iter().copied().zip(&mut all) {
            for (op, by_fetching) in AmoOp::VARIANTS.iter().copied().zip(by_op) {
                for (fetching, how) in [false, true].into_iter().zip(by_fetching) {
                    *how = match () {
                        () if rail.supports_amo(ty, op, fetching) => How::Itself,
                        () if small && ty.size() == 4 => How::Loop(AmoType::U32),
                        () if large => How::Loop(AmoType::U64),
                        () => How::Never,
                    };
                }
            }
        }
        Abilities(all)
    }

    #[inline]
    pub fn how(&self, ty: AmoType, op: AmoOp, fetching: bool) -> How {
        self.0[ty as usize][op as usize][usize::from(fetching)]
    }
}

/// An AMO that waits for a loop on its word.
struct Queued {
    op: OpHandle,
    amo: WordAmo,
    fetching: bool,
}

/// The loops of an endpoint.
#[derive(Default)]
pub(super) struct Loops {
    /// Words on which there is a loop, and who waits for it.
    words: HashMap<Word, VecDeque<Queued>>,
    /// Loops whose last request has come back.
    returned: VecDeque<OpHandle>,
    /// Words whose loop has ended, and what they held then, if that is known.
    ended: Vec<(Word, Option<u64>)>,
}

impl Loops {
    /// Whether there is something to go on with.
    pub fn pending(&self) -> bool {
        !self.returned.is_empty() || !self.ended.is_empty()
    }

    /// A loop has ended before its end, as its operation has failed: others may have the word.
    #[inline]
    pub fn broke_off(&mut self, word: Word) {
        self.ended.push((word, None));
    }

    /// The last request of a loop has come back.
    pub fn came_back(&mut self, op: OpHandle) {
        self.returned.push_back(op);
    }
}

impl Endpoint {
    /// Lets the provider do an AMO, itself or by a loop. The operation waits for it.
    pub(super) fn launch_word_amo(&mut self, pe: Pe, op: OpHandle, amo: WordAmo, fetching: bool) {
        let how = self.core.profile.abilities().how(amo.ty, amo.op, fetching);
        if how == How::Itself && self.core.loops.words.is_empty() {
            return self.post_word_amo(pe, op, amo, fetching);
        }
        self.launch_in_turn(pe, op, amo, fetching);
    }

    /// The same where loops are to be thought of: its own, or one that has the word.
    #[cold]
    fn launch_in_turn(&mut self, pe: Pe, op: OpHandle, amo: WordAmo, fetching: bool) {
        let word = (pe, amo.offset & !7);
        if let Some(queue) = self.core.loops.words.get_mut(&word) {
            queue.push_back(Queued { op, amo, fetching });
            self.core.hold_lane(op, AMO_LANE);
            return self.core.ops.expect(op, 1);
        }
        if self.core.profile.abilities().how(amo.ty, amo.op, fetching) != How::Itself {
            self.core.loops.words.insert(word, VecDeque::new());
        }
        self.start_word_amo(pe, op, amo, fetching, None);
    }

    /// Starts an AMO that has its word for itself, as far as that is needed. `now`: what the provider's word holds.
    /// Gives what it holds then, if that is known.
    fn start_word_amo(&mut self, pe: Pe, op: OpHandle, amo: WordAmo, fetching: bool, now: Option<u64>) -> Option<u64> {
        match self.core.profile.abilities().how(amo.ty, amo.op, fetching) {
            How::Itself => self.post_word_amo(pe, op, amo, fetching),
            How::Loop(by) => {
                self.core.hold_lane(op, AMO_LANE);
                self.core.ops.begin_loop(op, SwapLoop::new(amo, by));
                match now.filter(|_| by.size() == 8) {
                    Some(now) => return self.continue_loop(op, now),
                    None => {
                        let offset = SwapLoop::new(amo, by).offset();
                        let fetch = WordAmo { offset, ty: by, op: AmoOp::Fetch, operand: 0, compare: 0 };
                        self.post_word_amo(pe, op, fetch, true);
                    }
                }
            }
            // `submit` has asked before.
            How::Never => self.core.fail_full(op),
        }
        None
    }

    #[inline(always)]
    fn post_word_amo(&mut self, pe: Pe, op: OpHandle, amo: WordAmo, fetching: bool) {
        let Some(slot) = self.core.bounce.alloc(8) else { return self.core.fail_full(op) };
        let ptr = self.core.bounce.ptr(slot).as_ptr();
        self.core.ops.expect(op, 1);
        self.post(WorkRequest::new(Work::Amo { amo, fetching }, pe, AMO_LANE, op, (ptr, 8), Some(slot)));
    }

    /// Goes on with a loop whose word was seen to hold `seen`. Gives what the word holds when this was its end; the
    /// operation is then still to be released.
    fn continue_loop(&mut self, id: OpHandle, seen: u64) -> Option<u64> {
        let (pe, swap_loop, next) = self.core.ops.continue_loop(id, seen)?;
        match next {
            Next::Done { now, .. } => Some(now),
            Next::Swap { expected, new } => {
                let (offset, ty) = (swap_loop.offset(), swap_loop.by);
                let swap = WordAmo { offset, ty, op: AmoOp::CompareSwap, operand: new, compare: expected };
                self.post_word_amo(pe, id, swap, true);
                None
            }
        }
    }

    /// Goes on with the loops whose last request has come back, and with what has waited for them, as far as there are
    /// buffers.
    pub(super) fn continue_loops(&mut self) {
        while self.core.bounce.plentiful()
            && let Some(id) = self.core.loops.returned.pop_front()
        {
            let Some((word, seen)) = self.core.ops.seen(id) else { continue };
            if let Some(now) = self.continue_loop(id, seen) {
                self.core.finish(id);
                self.core.loops.ended.push((word, Some(now)));
            }
        }
        while self.core.bounce.plentiful()
            && let Some((word, now)) = self.core.loops.ended.pop()
        {
            self.start_next(word, now);
        }
    }

    /// Starts what waits for a word on which there is no loop any more.
    fn start_next(&mut self, word: Word, mut now: Option<u64>) {
        while let Some(queue) = self.core.loops.words.get_mut(&word) {
            if !self.core.bounce.plentiful() {
                return self.core.loops.ended.push((word, now));
            }
            let Some(Queued { op, amo, fetching }) = queue.pop_front() else {
                self.core.loops.words.remove(&word);
                return;
            };
            if self.core.ops.is_over(op) {
                continue;
            }
            if !self.core.ops.has_failed(op) {
                now = self.start_word_amo(word.0, op, amo, fetching, now);
            }
            let goes_on = self.core.ops.is_loop(op);
            // It was kept from ending while it waited.
            self.core.release(op);
            if goes_on {
                return;
            }
        }
    }
}

impl Core {
    /// Nothing that a later fence orders behind an operation may pass it on `lane` until it has ended.
    pub(super) fn hold_lane(&mut self, id: OpHandle, lane: usize) {
        if let Some(pe) = self.ops.hold(id, lane) {
            self.lanes.hold(pe, lane);
        }
    }
}
