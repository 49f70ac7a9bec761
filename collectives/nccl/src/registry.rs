//! Handles, and their communicators: an invalid handle is an error, not a crash.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use symrail_core::lock;
use symrail_core::registry::{Registry, is_known, number};

use crate::communicator::Communicator;
use crate::guard::Failure;
use crate::types::Handle;

static COMMUNICATORS: Registry<Communicator> = Registry::new();

/// The handles of communicators that were to be made, and were not. Programs have those of groups, and end them.
static NOT_MADE: Mutex<BTreeSet<Handle>> = Mutex::new(BTreeSet::new());

/// A handle, which has no communicator yet.
pub struct Reserved(Handle);

impl Reserved {
    pub fn new() -> Reserved {
        Reserved(number())
    }

    pub fn handle(&self) -> Handle {
        self.0
    }

    /// Gives the handle its communicator. Without one it was not for a communicator.
    pub fn put(self, communicator: Option<Communicator>) {
        if let Some(communicator) = communicator {
            COMMUNICATORS.put(self.0, communicator);
        }
        std::mem::forget(self);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        lock(&NOT_MADE).insert(self.0);
    }
}

/// Whether this is the handle of a communicator that was not made. It is no handle any more.
pub fn take_not_made(handle: Handle) -> bool {
    lock(&NOT_MADE).remove(&handle)
}

/// The communicator of a handle.
pub fn find(handle: Handle) -> Result<Arc<Communicator>, Failure> {
    COMMUNICATORS.find(handle).ok_or_else(|| unknown(handle))
}

/// Whether a handle never belonged to a communicator of this library. A handle that did is not forwarded to the other
/// library.
pub fn is_unknown(handle: Handle) -> bool {
    !is_known(handle)
}

/// Removes a communicator: its handle becomes invalid.
pub fn take(handle: Handle) -> Result<Arc<Communicator>, Failure> {
    COMMUNICATORS.take(handle).ok_or_else(|| unknown(handle))
}

fn unknown(handle: Handle) -> Failure {
    if lock(&NOT_MADE).contains(&handle) {
        return Failure::argument(format!(
            "{handle:#x} is no communicator: it was not made, since its group has failed"
        ));
    }
    Failure::argument(format!("{handle:#x} is no communicator, or none any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_is_none_any_more_is_not_the_other_librarys() {
        let given = number();
        assert!(find(given).is_err(), "its communicator is gone");
        assert!(!is_unknown(given) && !is_unknown(0));
        assert!(is_unknown((&raw const COMMUNICATORS).addr()), "an address");
    }
}
