//! Buffers whose contents are undefined because a call has failed after its start.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};

/// The reason why buffers cannot be used any more, if there is one.
#[derive(Default)]
pub(super) struct Broken(Mutex<Option<String>>);

impl Broken {
    /// Refuses a call.
    ///
    /// # Errors
    /// [`Error::Broken`], with the first reason.
    pub fn check(&self) -> Result<()> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(Error::Broken { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Records an error as the reason.
    pub fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            let mut why = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            why.get_or_insert_with(|| error.to_string());
        }
        result
    }

    /// Records a failed launch if the other ranks know of its call already: they wait for data that will not arrive.
    pub fn noting_launch(&self, is_announced: bool, launched: Result<()>) -> Result<()> {
        if is_announced { self.noting(launched) } else { launched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_that_fails_behind_an_announcement_breaks_the_buffers() {
        let (broken, failed) = (Broken::default(), || Err(Error::Device { reason: "no launch".into() }));
        assert!(broken.noting_launch(false, failed()).is_err() && broken.check().is_ok());
        assert!(broken.noting_launch(true, Ok(())).is_ok() && broken.check().is_ok());
        assert!(matches!(broken.noting_launch(true, failed()), Err(Error::Device { .. })));
        let _ = broken.noting::<()>(Err(Error::Order { what: "later" }));
        assert!(matches!(broken.check(), Err(Error::Broken { why }) if why.contains("no launch")));
    }
}
