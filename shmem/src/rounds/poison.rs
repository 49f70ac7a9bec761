//! Refusing calls after one that has failed after its start.

use std::fmt::Display;
use std::sync::Mutex;

use symrail_core::lock;
use symrail_transport::Pe;

use super::Error;

/// The first failure after which an object cannot be used any more, if there was one.
#[derive(Debug, Default)]
pub struct Poison(Mutex<Option<String>>);

impl Poison {
    /// Refuses a call after a failure.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn check(&self, pe: Pe, what: &'static str) -> Result<(), Error> {
        let why = lock(&self.0).clone();
        why.map_or(Ok(()), |why| Err(Error::Poisoned { pe, what, why: Some(why) }))
    }

    /// Passes a result on. Its error, if it is the first one, refuses later calls.
    ///
    /// # Errors
    /// That of the result.
    pub fn poison_on_err<T, E: Display>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| {
            lock(&self.0).get_or_insert_with(|| error.to_string());
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
}
