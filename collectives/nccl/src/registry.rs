//! Handles, and their communicators: an invalid handle is an error, not a crash.

use std::sync::Arc;

use symrail_core::registry::{Registry, is_known, number};

use crate::communicator::Communicator;
use crate::guard::Failure;
use crate::types::Handle;

static COMMUNICATORS: Registry<Communicator> = Registry::new();

/// A handle, which has no communicator yet.
pub fn reserve() -> Handle {
    number()
}

/// Gives a reserved handle its communicator.
pub fn put(handle: Handle, communicator: Communicator) {
    COMMUNICATORS.put(handle, communicator);
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
