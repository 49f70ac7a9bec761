//! Checks that all PEs of a team make the same call, with `SYMRAIL_CHECK_COLLECTIVES` only.

use super::call::{Call, NUMBERS, describe};
use super::same_call::ComparedCall;
use crate::error::{Error, Result};
use crate::team::Team;

impl Team {
    /// Fails unless all of the team's PEs make the same call, if that check is on.
    #[inline]
    pub(crate) fn agree(&self, call: Call) -> Result<ComparedCall<'_>> {
        if self.ops().comm.job.settings.check_collectives { self.agree_now(&call) } else { Ok(ComparedCall::none()) }
    }

    #[cold]
    fn agree_now(&self, call: &Call) -> Result<ComparedCall<'_>> {
        let job = &self.ops().comm.job;
        if self.is_world() {
            return self.runtime().everybody().agree(*call);
        }
        job.here()?;
        let compared = ComparedCall::begin(self.group(), self.area().slot(), self.calls());
        if !compared.is_taken() {
            return Ok(compared);
        }
        let (size, pe) = (self.group().size(), |index| self.group().pe(index));
        compared.describe(|| format!("{} in a team of {size} PEs, {} to {}", call.words(), pe(0), pe(size - 1)));
        let mine = call.to_numbers();
        let numbers = self.gather(&mine)?;
        match numbers.as_chunks::<NUMBERS>().0.iter().enumerate().find(|(_, numbers)| **numbers != mine) {
            None => Ok(compared),
            Some((index, &theirs)) => Err(Error::CallsDiffer {
                pe: job.me,
                called: call.words(),
                other: self.group().pe(index as u32),
                other_called: describe(theirs),
            }),
        }
    }
}
