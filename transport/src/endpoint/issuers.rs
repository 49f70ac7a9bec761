//! Issuers of operations: how many of their operations are under way, the results of those that ended, and whether the
//! issuer needs the completion of the next.
//!
//! An operation with a tag ends with a [`Finished`], any other with its issuer's quiet.

use super::command::{Finished, Issuer, Owner};
use super::protocol::Completion;
use super::wait_predictor::WaitPredictor;
use crate::error::Error;

#[derive(Default)]
struct IssuerState {
    outstanding: u64,
    error: Option<Error>,
    /// The predictor for its operations with a tag.
    wait_predictor: WaitPredictor,
}

/// All issuers of an endpoint.
pub(super) struct Issuers {
    states: Vec<IssuerState>,
    /// Ended operations with a tag whose end has not been taken.
    finished: Vec<Finished>,
    /// Operations with a tag that have not ended and whose end no caller will take.
    abandoned: Vec<(Issuer, u64)>,
    /// The predictor for all operations without a tag.
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

    /// Counts an operation that was entered.
    #[inline(always)]
    pub fn started(&mut self, issuer: Issuer) {
        self.state(issuer).outstanding += 1;
    }

    /// Counts the end of an operation that was entered.
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

    /// Drops the end of this operation: no caller will take it.
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

    /// Notes an operation that was done at once and never entered.
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

    /// Counts a new operation. Returns whether the issuer needs its completion.
    #[inline]
    pub fn completion(&mut self, owner: Owner) -> Completion {
        if owner.tag.is_none() {
            return if self.wait_predictor.is_next_alone() { Completion::Signaled } else { Completion::Unsignaled };
        }
        let issuer = self.state(owner.issuer);
        if issuer.outstanding == 0 {
            issuer.wait_predictor.quiet();
        }
        if issuer.wait_predictor.is_next_alone() { Completion::Signaled } else { Completion::Batched }
    }

    /// Counts an operation without a tag behind another one, neither of which its issuer needs alone.
    #[inline(always)]
    pub fn continued(&mut self) {
        self.wait_predictor.issued();
    }

    /// Counts an operation that was appended to another one of its issuer.
    #[inline(always)]
    pub fn appended(&mut self, owner: Owner) {
        self.state(owner.issuer).wait_predictor.issued();
    }

    /// Notes that a quiet begins.
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

    /// Keeps an error for the issuer, unless it has an earlier one.
    pub fn keep_error(&mut self, issuer: Issuer, error: Error) {
        self.state(issuer).error.get_or_insert(error);
    }

    /// Whether an ended operation with a tag waits to be taken.
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
