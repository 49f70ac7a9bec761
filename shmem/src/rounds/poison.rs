//! Refusing calls after one that has failed after its start.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use symrail_core::lock;
use symrail_transport::Pe;

use super::Error;

/// Whether an object that PEs share can be used: not after a call that has failed, or that has begun and never ended.
#[derive(Debug, Default)]
pub struct Poison(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Usable,
    Begun,
    /// The first failure.
    Failed(String),
}

impl State {
    fn check(&self, pe: Pe, what: &'static str) -> Result<(), Error> {
        match self {
            State::Usable => Ok(()),
            State::Begun => Err(Error::Poisoned { pe, what, why: None }),
            State::Failed(why) => Err(Error::Poisoned { pe, what, why: Some(why.clone()) }),
        }
    }
}

impl Poison {
    /// Refuses a call after a failure.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn check(&self, pe: Pe, what: &'static str) -> Result<(), Error> {
        lock(&self.0).check(pe, what)
    }

    /// Begins a call. All later ones are refused until [`Poison::end`].
    ///
    /// # Errors
    /// As for [`Poison::check`].
    pub fn begin(&mut self, pe: Pe, what: &'static str) -> Result<(), Error> {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.check(pe, what)?;
        *state = State::Begun;
        Ok(())
    }

    /// Ends a call that has not failed.
    pub fn end(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(state, State::Begun) {
            *state = State::Usable;
        }
    }

    /// Passes a result on. Its error, if it is the first one, refuses later calls.
    ///
    /// # Errors
    /// That of the result.
    pub fn poison_on_err<T, E: Display>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| {
            let mut state = lock(&self.0);
            if !matches!(*state, State::Failed(_)) {
                *state = State::Failed(error.to_string());
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_keeps_the_first_failure() {
        let poison = Poison::default();
        assert!(poison.poison_on_err(Ok::<_, String>(())).is_ok() && poison.check(0, "a plan").is_ok());
        for error in ["no launch", "later"] {
            assert!(poison.poison_on_err(Err::<(), _>(error)).is_err());
        }
        let refused = poison.check(2, "a plan");
        assert!(matches!(refused, Err(Error::Poisoned { pe: 2, why: Some(why), .. }) if why == "no launch"));
    }

    #[test]
    fn poison_refuses_while_a_call_has_not_ended() {
        let mut poison = Poison::default();
        for _ in 0..2 {
            assert!(poison.begin(0, "a plan").is_ok());
            assert!(matches!(poison.begin(1, "a plan"), Err(Error::Poisoned { pe: 1, why: None, .. })));
            poison.end();
        }
        assert!(poison.poison_on_err(Err::<(), _>("late")).is_err());
        poison.end();
        assert!(matches!(poison.begin(0, "a plan"), Err(Error::Poisoned { why: Some(_), .. })));
    }
}
