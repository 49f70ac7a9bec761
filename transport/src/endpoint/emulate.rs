//! AMOs that the provider or NIC performs, and loops for those that it lacks.
//!
//! Where providers perform AMOs, they perform all of them (architecture.md: the same party performs all AMOs on a
//! word), and all on lane 0: the atomics of two NICs need not be atomic with each other. A NIC has only an addition and
//! a compare-swap of 64-bit words. The endpoint performs other AMOs by a loop: it fetches the word, computes the new
//! one, and stores it by compare-swap if the word has not changed. Otherwise it tries again with the word's new value.
//! Each completion continues the loop, for at most `TIMEOUT_S`. Loops of one endpoint on one word would make each other
//! fail. So while a word has a loop, further AMOs on it wait in order, and start from the value that the loop left.
//!
//! The loop for a smaller word changes the aligned word around it and writes the neighbour back unchanged. So nobody
//! may change the neighbour meanwhile except by AMOs.

use std::collections::VecDeque;

use super::abilities::{AMO_LANE, How};
use super::command::OpHandle;
use super::queue::{Work, WorkRequest};
use super::swap_loop::{Next, Queued, SwapLoop, Word, WordAmo};
use super::{Core, Endpoint};
use crate::amo::AmoOp;
use crate::pe::Pe;

impl Endpoint {
    /// Lets the provider perform an AMO, by one work request or by a loop. The operation waits for it.
    pub(super) fn launch_word_amo(&mut self, pe: Pe, op: OpHandle, amo: WordAmo, fetching: bool) {
        let how = self.core.profile.abilities().how(amo.ty, amo.op, fetching);
        if how == How::Itself && self.core.loops.words.is_empty() {
            return self.post_word_amo(pe, op, amo, fetching);
        }
        self.launch_in_turn(pe, op, amo, fetching);
    }

    /// As `launch_word_amo`, for an AMO that needs a loop or whose word may have one.
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

    /// Starts an AMO for which no other loop has the word. `now`: the current value of the provider's word, if known.
    /// Returns the new value, if known.
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
            // `submit` has checked this.
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

    /// Continues a loop whose word held `seen`. At the end of the loop it returns the value of the word; the caller
    /// must then release the operation.
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

    /// Continues loops whose last request has completed, and starts AMOs that waited for them, as far as there are
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

    /// Starts AMOs that wait for a word that has no loop any more.
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
            // Waiting counted as an event of the operation, which kept it from ending.
            self.core.release(op);
            if goes_on {
                return;
            }
        }
    }
}

impl Core {
    /// Keeps operations behind a later fence from passing an operation on `lane` until it has ended.
    pub(super) fn hold_lane(&mut self, id: OpHandle, lane: usize) {
        if let Some(pe) = self.ops.hold(id, lane) {
            self.lanes.hold(pe, lane);
        }
    }
}
