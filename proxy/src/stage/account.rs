//! Results for issuers: ended operations with a tag, whether all have ended, and the first error of the others.

use symrail_transport::endpoint::command::{Finished, Issuer, Owner};
use symrail_transport::{Error, Result};

/// One issuer's operations: how many are under way, and the first error of those without a tag.
#[derive(Default)]
struct Account {
    outstanding: u64,
    error: Option<Error>,
}

/// All issuers' accounts.
#[derive(Default)]
pub(super) struct Accounts {
    by_issuer: Vec<Account>,
    /// Results to be reported.
    finished: Vec<Finished>,
}

impl Accounts {
    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.by_issuer.get(usize::from(issuer)).is_none_or(|a| a.outstanding == 0)
    }

    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        self.by_issuer.get_mut(usize::from(issuer)).and_then(|a| a.error.take())
    }

    pub fn next_finished(&mut self) -> Option<Finished> {
        self.finished.pop()
    }

    /// Records the start of an operation.
    pub fn begin(&mut self, issuer: Issuer) {
        self.of(issuer).outstanding += 1;
    }

    /// Records the end of an operation.
    pub fn end(&mut self, owner: Owner, result: Result<u64>) {
        let account = self.of(owner.issuer);
        account.outstanding = account.outstanding.saturating_sub(1);
        match (owner.tag, result) {
            (Some(tag), result) => {
                self.finished.push(Finished { issuer: owner.issuer, tag, result: result.map_err(Box::new) });
            }
            (None, Err(error)) => {
                account.error.get_or_insert(error);
            }
            (None, Ok(_)) => {}
        }
    }

    fn of(&mut self, issuer: Issuer) -> &mut Account {
        let at = usize::from(issuer);
        if at >= self.by_issuer.len() {
            self.by_issuer.resize_with(at + 1, Account::default);
        }
        &mut self.by_issuer[at]
    }
}
