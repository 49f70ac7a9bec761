//! Credits: when a queue pair may post, and which work requests get a completion.
//!
//! A send queue has room for `depth` work requests. The completion queue, which all queue pairs of a rail share, has
//! room for a number of completions. A work request holds one credit of both until it is known to have ended. It holds
//! one of the completion queue even when it requests no completion, because it gets one when its queue pair fails.
//!
//! Work requests of one queue pair end in order, so one completion ends all before it. So only some request one
//! ("signalled"): the last of a chain that has an id in it, and enough of the others that no credit is lost for ever.

use std::collections::VecDeque;

use crate::rail::OpId;

/// The credits of a rail's completion queue.
#[derive(Debug)]
pub(super) struct Credits {
    free: u32,
    /// Work requests behind the last signalled one of their queue pair, summed over all queue pairs.
    trailing: u32,
    /// The limit of `trailing`.
    trailing_limit: u32,
}

impl Credits {
    pub fn new(total: u32) -> Self {
        // Half of the credits: whenever the queue is full, completions will end at least the other half.
        Credits { free: total, trailing: 0, trailing_limit: total / 2 }
    }
}

/// The work requests of one queue pair that are not known to have ended.
#[derive(Debug)]
pub(super) struct SendQueue {
    entries: VecDeque<Entry>,
    depth: usize,
    /// The sequence number of the first entry.
    first: u32,
    /// Entries behind the last signalled one, and the number of those with an id.
    trailing: u32,
    trailing_ids: u32,
    /// Whether a work request has failed. Then all later ones fail, too.
    failed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: Option<OpId>,
    signalled: bool,
    /// Whether it is of nobody: see [`SendQueue::admit_last`].
    last: bool,
}

/// The content of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The work request and all before it have succeeded.
    Done,
    /// The work request failed. Those before it succeeded, unless one of them failed before.
    Failed,
    /// The work request was discarded since its queue pair is in the error state. Those before it that got no
    /// completion count as failed, too: devices differ in whether they report each discarded one, and an unknown result
    /// is no success.
    Flushed,
}

/// A work request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub id: Option<OpId>,
    pub failed: bool,
}

impl SendQueue {
    pub fn new(depth: u32) -> Self {
        SendQueue {
            entries: VecDeque::with_capacity(depth as usize),
            depth: depth as usize,
            first: 0,
            trailing: 0,
            trailing_ids: 0,
            failed: false,
        }
    }

    /// Takes credits for one more work request and returns its sequence number; `None` when there are none.
    #[inline(always)]
    pub fn admit(&mut self, credits: &mut Credits, id: Option<OpId>) -> Option<u32> {
        if credits.free == 0 || self.entries.len() == self.depth {
            return None;
        }
        let sequence = self.first.wrapping_add(self.entries.len() as u32);
        self.entries.push_back(Entry { id, signalled: false, last: false });
        credits.free -= 1;
        credits.trailing += 1;
        self.trailing += 1;
        self.trailing_ids += u32::from(id.is_some());
        Some(sequence)
    }

    /// Whether the last work request must be signalled even if it is not the `last_of_chain`. If so, counts it as
    /// signalled.
    #[inline(always)]
    pub fn signal_last(&mut self, credits: &mut Credits, last_of_chain: bool) -> bool {
        let for_id = last_of_chain && self.trailing_ids > 0;
        // A quarter of the queue is often enough that posting continues while the completion is under way.
        let for_credits =
            self.trailing as usize >= (self.depth / 4).max(1) || credits.trailing > credits.trailing_limit;
        if !(for_id || for_credits) {
            return false;
        }
        if let Some(last) = self.entries.back_mut() {
            last.signalled = true;
        }
        credits.trailing -= self.trailing;
        self.trailing = 0;
        self.trailing_ids = 0;
        true
    }

    /// Takes credits for one more work request that will be signalled. Its completion ends all before it; its own end is
    /// not reported.
    pub fn admit_last(&mut self, credits: &mut Credits) -> Option<u32> {
        let sequence = self.admit(credits, None)?;
        if let Some(last) = self.entries.back_mut() {
            (last.signalled, last.last) = (true, true);
        }
        credits.trailing -= self.trailing;
        (self.trailing, self.trailing_ids) = (0, 0);
        Some(sequence)
    }

    /// Removes the last `count` work requests, which were not posted after all, and returns their ids in order.
    pub fn retract(&mut self, credits: &mut Credits, count: usize) -> impl Iterator<Item = Option<OpId>> {
        let keep = self.entries.len().saturating_sub(count);
        credits.free += (self.entries.len() - keep) as u32;
        let gone = self.entries.split_off(keep);
        self.recount(credits);
        gone.into_iter().map(|entry| entry.id)
    }

    /// Ends all work requests, of a queue pair that exists no more, without a report. Late completions find none of them.
    pub fn abandon(&mut self, credits: &mut Credits) {
        let count = self.entries.len();
        self.retract(credits, count).for_each(drop);
        self.first = self.first.wrapping_add(count as u32);
        self.reset();
    }

    fn recount(&mut self, credits: &mut Credits) {
        let behind = self.entries.iter().rev().take_while(|entry| !entry.signalled);
        let (trailing, ids) = behind.fold((0, 0), |(n, ids), entry| (n + 1, ids + u32::from(entry.id.is_some())));
        credits.trailing = credits.trailing - self.trailing + trailing;
        self.trailing = trailing;
        self.trailing_ids = ids;
    }

    /// Handles a completion for `sequence`: reports each work request that has ended, in order, and frees its credits.
    /// A sequence number that is not outstanding reports nothing.
    pub fn complete(&mut self, credits: &mut Credits, sequence: u32, outcome: Outcome, mut report: impl FnMut(Ended)) {
        let over = sequence.wrapping_sub(self.first) as usize;
        if over >= self.entries.len() {
            return;
        }
        self.failed |= outcome == Outcome::Flushed;
        for nth in 0..=over {
            let Some(entry) = self.entries.pop_front() else { break };
            self.first = self.first.wrapping_add(1);
            credits.free += 1;
            self.failed |= outcome == Outcome::Failed && nth == over;
            if !entry.last {
                report(Ended { id: entry.id, failed: self.failed });
            }
        }
        let left = self.entries.len() as u32;
        if self.trailing > left {
            // The failure of the queue pair has ended unsignalled ones.
            credits.trailing -= self.trailing - left;
            self.trailing = left;
            self.trailing_ids = self.entries.iter().filter(|entry| entry.id.is_some()).count() as u32;
        }
    }

    /// Whether the work request is outstanding.
    pub fn has(&self, sequence: u32) -> bool {
        (sequence.wrapping_sub(self.first) as usize) < self.entries.len()
    }

    /// Whether the last work request is one of [`SendQueue::admit_last`].
    pub fn is_marked(&self) -> bool {
        self.entries.back().is_some_and(|entry| entry.last)
    }

    /// Whether no work request is outstanding.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Restarts after a reset of the queue pair, which is allowed only when no work request is outstanding.
    pub fn reset(&mut self) {
        self.failed = false;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ended(
        queue: &mut SendQueue,
        credits: &mut Credits,
        sequence: u32,
        outcome: Outcome,
    ) -> Vec<(Option<OpId>, bool)> {
        let mut out = Vec::new();
        queue.complete(credits, sequence, outcome, |ended| out.push((ended.id, ended.failed)));
        out
    }

    #[test]
    fn neither_queue_is_overrun() {
        let (mut credits, mut queue) = (Credits::new(6), SendQueue::new(4));
        for id in 0..4 {
            assert!(queue.admit(&mut credits, Some(id)).is_some());
        }
        assert_eq!(queue.admit(&mut credits, Some(4)), None, "the send queue holds four");
        let mut other = SendQueue::new(4);
        assert!(other.admit(&mut credits, None).is_some());
        assert!(other.admit(&mut credits, None).is_some());
        assert_eq!(other.admit(&mut credits, None), None, "the completion queue holds six");
        queue.signal_last(&mut credits, true);
        assert_eq!(ended(&mut queue, &mut credits, 3, Outcome::Done).len(), 4);
        assert!(other.admit(&mut credits, None).is_some());
    }

    #[test]
    fn one_completion_ends_a_chain_in_order() {
        let (mut credits, mut queue) = (Credits::new(64), SendQueue::new(64));
        queue.admit(&mut credits, Some(7));
        assert!(!queue.signal_last(&mut credits, false));
        queue.admit(&mut credits, None);
        assert!(!queue.signal_last(&mut credits, false));
        queue.admit(&mut credits, Some(9));
        assert!(queue.signal_last(&mut credits, true));
        assert_eq!(
            ended(&mut queue, &mut credits, 2, Outcome::Done),
            [(Some(7), false), (None, false), (Some(9), false)]
        );
        assert_eq!(ended(&mut queue, &mut credits, 2, Outcome::Done), [], "twice the same completion");
    }

    #[test]
    fn a_failure_spares_what_came_before_and_takes_all_that_follows() {
        let (mut credits, mut queue) = (Credits::new(64), SendQueue::new(64));
        for id in 0..5 {
            queue.admit(&mut credits, Some(id));
        }
        assert_eq!(ended(&mut queue, &mut credits, 1, Outcome::Failed), [(Some(0), false), (Some(1), true)]);
        // This device reports only the signalled ones of the flushed work requests.
        assert_eq!(
            ended(&mut queue, &mut credits, 4, Outcome::Flushed),
            [(Some(2), true), (Some(3), true), (Some(4), true)]
        );
        assert!(queue.is_empty());
        assert_eq!(credits.free, 64);
        assert_eq!(credits.trailing, 0);
    }

    #[test]
    fn what_a_flush_does_not_mention_has_failed() {
        let (mut credits, mut queue) = (Credits::new(64), SendQueue::new(64));
        for id in 0..3 {
            queue.admit(&mut credits, Some(id));
        }
        let all_failed = [(Some(0), true), (Some(1), true), (Some(2), true)];
        assert_eq!(ended(&mut queue, &mut credits, 2, Outcome::Flushed), all_failed);
    }

    #[test]
    fn a_retracted_request_leaves_no_trace() {
        let (mut credits, mut queue) = (Credits::new(64), SendQueue::new(64));
        queue.admit(&mut credits, Some(1));
        queue.signal_last(&mut credits, true);
        queue.admit(&mut credits, Some(2));
        queue.admit(&mut credits, Some(3));
        queue.signal_last(&mut credits, true);
        assert_eq!(queue.retract(&mut credits, 2).collect::<Vec<_>>(), [Some(2), Some(3)]);
        assert_eq!((credits.free, credits.trailing, queue.trailing_ids), (63, 0, 0));
        assert_eq!(queue.admit(&mut credits, None), Some(1));
    }

    #[test]
    fn abandoned_requests_return_their_credits_and_their_completions_find_nothing() {
        let (mut credits, mut queue) = (Credits::new(64), SendQueue::new(64));
        for id in 0..3 {
            queue.admit(&mut credits, Some(id));
        }
        assert!(!queue.is_marked());
        assert_eq!(queue.admit_last(&mut credits), Some(3));
        assert!(queue.is_marked());
        queue.admit(&mut credits, None);
        queue.abandon(&mut credits);
        assert_eq!((credits.free, credits.trailing, queue.is_empty()), (64, 0, true));
        assert_eq!(queue.admit(&mut credits, Some(7)), Some(5));
        assert_eq!([4, 5].map(|sequence| queue.has(sequence)), [false, true]);
        assert_eq!(ended(&mut queue, &mut credits, 5, Outcome::Done), [(Some(7), false)]);
    }

    /// Makes one step of two queue pairs that share a completion queue. A queue pair is its queue and the sequence
    /// numbers that will produce a completion.
    fn step(pairs: &mut [(SendQueue, Vec<u32>); 2], credits: &mut Credits, what: usize) {
        let (queue, due) = &mut pairs[what % 2];
        match what / 2 {
            posted @ 0..=1 => {
                // With an id, or without.
                let Some(sequence) = queue.admit(credits, (posted == 0).then_some(1)) else { return };
                due.extend(queue.signal_last(credits, true).then_some(sequence));
            }
            2 => {
                // The device refuses a chain of two. Without credits for the second, the first is posted.
                let Some(sequence) = queue.admit(credits, None) else { return };
                let signalled = queue.signal_last(credits, false);
                if queue.admit(credits, Some(2)).is_some() {
                    queue.signal_last(credits, true);
                    assert_eq!(queue.retract(credits, 2).count(), 2);
                } else if queue.signal_last(credits, true) || signalled {
                    due.push(sequence);
                }
            }
            3 if !due.is_empty() => {
                let sequence = due.remove(0);
                queue.complete(credits, sequence, Outcome::Done, |ended| assert!(!ended.failed));
            }
            4 => {
                // The queue pair fails: the completion of its last work request stands for all.
                let last = queue.first.wrapping_add(queue.entries.len() as u32).wrapping_sub(1);
                queue.complete(credits, last, Outcome::Flushed, |ended| assert!(ended.failed));
                queue.reset();
                due.clear();
            }
            _ => {}
        }
    }

    /// In every sequence of so many steps no credit is lost or created, and a queue pair without credits has a
    /// completion to come.
    #[test]
    fn every_short_history_keeps_the_books() {
        const STEPS: u32 = 6;
        const KINDS: usize = 10;
        const CREDITS: u32 = 5;
        for history in 0..KINDS.pow(STEPS) {
            let mut credits = Credits::new(CREDITS);
            let mut pairs = [(); 2].map(|()| (SendQueue::new(8), Vec::new()));
            for step_number in 0..STEPS {
                step(&mut pairs, &mut credits, history / KINDS.pow(step_number) % KINDS);
                let outstanding: usize = pairs.iter().map(|(queue, _)| queue.entries.len()).sum();
                assert_eq!(credits.free as usize + outstanding, CREDITS as usize, "history {history}");
                let behind =
                    |queue: &SendQueue| queue.entries.iter().rev().take_while(|entry| !entry.signalled).count();
                let trailing: usize = pairs.iter().map(|(queue, _)| behind(queue)).sum();
                assert_eq!(credits.trailing as usize, trailing, "history {history}");
                let comes = pairs.iter().any(|(_, due)| !due.is_empty());
                assert!(credits.free > 0 || comes, "history {history}: no credit and no completion to come");
            }
        }
    }

    /// Posts without ids on any mix of queue pairs never stop for lack of a completion.
    #[test]
    fn credits_always_come_back() {
        for (total, depth, queues) in [(16, 16, 1), (16, 16, 40), (64, 16, 7), (9, 3, 20), (2, 2, 5)] {
            let mut credits = Credits::new(total);
            let mut all: Vec<_> = (0..queues).map(|_| (SendQueue::new(depth), Vec::new())).collect();
            for turn in 0..10_000_usize {
                // The order is the most uneven one: each queue pair once before any comes again.
                let (queue, signalled) = &mut all[turn % queues];
                if let Some(sequence) = queue.admit(&mut credits, None) {
                    if queue.signal_last(&mut credits, true) {
                        signalled.push(sequence);
                    }
                    continue;
                }
                let mut freed = 0;
                for (queue, signalled) in &mut all {
                    for sequence in signalled.drain(..) {
                        queue.complete(&mut credits, sequence, Outcome::Done, |_| freed += 1);
                    }
                }
                assert!(freed > 0, "{total} credits, depth {depth}, {queues} queue pairs: stuck at {turn}");
            }
        }
    }
}
