//! Who has issued operations: how many have not ended, what became of those that have, and how soon the end of the next
//! is wanted.
//!
//! The end of an operation is reported by a [`Finished`] if it has a tag, else by its issuer's quiet.
//!
//! An issuer's past says how soon the end of its next operation is wanted. `put; quiet` in a loop is fastest when the
//! put asks for its own completion: one message there, one back. A stream of puts, or a put whose effect is awaited in
//! some other way, is fastest without. So it is with AMOs and signals and their acknowledgements. Which it will be is
//! what it was the last times.

use super::command::{Finished, Issuer, Owner};
use crate::error::Error;

/// How soon the end of an operation is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hurry {
    /// A later quiet asks for it.
    No,
    /// Somebody waits for it, as for others that are issued about now: it may travel with them.
    Soon,
    /// Somebody waits for it alone.
    Alone,
}

/// Whether the next operation is followed by a quiet at once: a saturating counter, as branch predictors have it.
#[derive(Debug)]
struct WaitPredictor {
    since_quiet: u32,
    /// 0 and 1 expect more operations, 2 and 3 expect a quiet.
    confidence: u8,
}

impl Default for WaitPredictor {
    fn default() -> Self {
        WaitPredictor { since_quiet: 0, confidence: 2 }
    }
}

impl WaitPredictor {
    /// Whether an operation issued now should ask for its own completion.
    #[inline]
    fn expects_quiet(&self) -> bool {
        self.since_quiet == 0 && self.confidence >= 2
    }

    /// An operation is issued. Whether it should ask for its own completion.
    #[inline]
    fn is_next_alone(&mut self) -> bool {
        let alone = self.expects_quiet();
        self.issued();
        alone
    }

    #[inline]
    fn issued(&mut self) {
        self.since_quiet = self.since_quiet.saturating_add(1);
        if self.since_quiet == 2 {
            self.confidence = self.confidence.saturating_sub(1);
        }
    }

    /// A quiet began; or all that was issued is complete, where nobody says that he waits.
    #[inline]
    fn quiet(&mut self) {
        if self.since_quiet == 1 {
            self.confidence = (self.confidence + 1).min(3);
        }
        self.since_quiet = 0;
    }
}

#[derive(Default)]
struct IssuerState {
    outstanding: u64,
    error: Option<Error>,
    /// Of its operations with a tag.
    wait_predictor: WaitPredictor,
}

/// All issuers of an endpoint.
pub(super) struct Issuers {
    states: Vec<IssuerState>,
    /// Operations with a tag that have ended, and that nobody has asked about.
    finished: Vec<Finished>,
    /// Operations with a tag that have not ended, and that nobody will ask about.
    abandoned: Vec<(Issuer, u64)>,
    /// Of all operations without a tag.
    wait_predictor: WaitPredictor,
}

impl Issuers {
    pub fn new() -> Issuers {
        Issuers {
            states: Vec::new(),
            finished: Vec::with_capacity(64),
            abandoned: Vec::new(),
            wait_predictor: WaitPredictor::default(),
        }
    }

    /// An operation has been entered.
    #[inline(always)]
    pub fn started(&mut self, issuer: Issuer) {
        self.state(issuer).outstanding += 1;
    }

    /// An operation that was entered has ended.
    #[inline(always)]
    pub fn ended(&mut self, owner: Owner, outcome: Result<u64, Box<Error>>) {
        let state = self.state(owner.issuer);
        state.outstanding = state.outstanding.saturating_sub(1);
        match (owner.tag, outcome) {
            (Some(tag), _) if !self.abandoned.is_empty() && self.was_abandoned(owner.issuer, tag) => {}
            (Some(tag), result) => self.finished.push(Finished { issuer: owner.issuer, tag, result }),
            (None, Err(error)) => self.keep_error(owner.issuer, *error),
            (None, Ok(_)) => {}
        }
    }

    /// Nobody will ask about the end of this operation.
    pub fn abandon(&mut self, issuer: Issuer, tag: u64) {
        if self.take_finished(issuer, tag).is_none() {
            self.abandoned.push((issuer, tag));
        }
    }

    #[cold]
    fn was_abandoned(&mut self, issuer: Issuer, tag: u64) -> bool {
        let at = self.abandoned.iter().position(|it| *it == (issuer, tag));
        at.map(|at| self.abandoned.swap_remove(at)).is_some()
    }

    /// An operation was done at once, and never entered.
    #[inline]
    pub fn ended_at_once(&mut self, owner: Owner, value: u64) {
        if let Some(tag) = owner.tag {
            self.finished.push(Finished { issuer: owner.issuer, tag, result: Ok(value) });
        }
    }

    #[inline(always)]
    fn state(&mut self, issuer: Issuer) -> &mut IssuerState {
        let at = usize::from(issuer);
        if at >= self.states.len() {
            self.states.resize_with(at + 1, IssuerState::default);
        }
        &mut self.states[at]
    }

    /// How soon the end of a new operation is wanted.
    #[inline]
    pub fn hurry(&mut self, owner: Owner) -> Hurry {
        if owner.tag.is_none() {
            return if self.wait_predictor.is_next_alone() { Hurry::Alone } else { Hurry::No };
        }
        let issuer = self.state(owner.issuer);
        if issuer.outstanding == 0 {
            issuer.wait_predictor.quiet();
        }
        if issuer.wait_predictor.is_next_alone() { Hurry::Alone } else { Hurry::Soon }
    }

    /// An operation has become a part of another one of its issuer's.
    #[inline]
    pub fn joined(&mut self, owner: Owner) {
        self.state(owner.issuer).wait_predictor.issued();
    }

    /// A quiet begins.
    #[inline]
    pub fn quiet_begins(&mut self) {
        self.wait_predictor.quiet();
    }

    /// Whether all operations of an issuer have ended.
    #[inline]
    pub fn none_of(&self, issuer: Issuer) -> bool {
        self.states.get(usize::from(issuer)).is_none_or(|i| i.outstanding == 0)
    }

    /// Takes the first error of an issuer's operations without a tag.
    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        self.states.get_mut(usize::from(issuer)).and_then(|i| i.error.take())
    }

    /// An error is an issuer's to be told, unless there was one before.
    pub fn keep_error(&mut self, issuer: Issuer, error: Error) {
        self.state(issuer).error.get_or_insert(error);
    }

    /// Whether an operation with a tag has ended and nobody has asked about it.
    #[inline]
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Takes the end of an issuer's operation with this tag.
    #[inline]
    pub fn take_finished(&mut self, issuer: Issuer, tag: u64) -> Option<Finished> {
        Finished::take(&mut self.finished, issuer, tag)
    }

    /// Takes the end of any operation with a tag.
    #[inline]
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.finished.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_pattern_within_two_rounds() {
        let mut p = WaitPredictor::default();
        for _ in 0..3 {
            p.issued();
            p.issued();
            p.quiet();
        }
        assert!(!p.expects_quiet());
        for _ in 0..3 {
            p.issued();
            p.quiet();
        }
        assert!(p.expects_quiet());
        p.issued();
        assert!(!p.expects_quiet(), "a second one goes without");
    }
}
