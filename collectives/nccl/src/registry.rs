//! Handles, and their communicators: an invalid handle is an error, not a crash.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use symrail_core::lock;

use crate::communicator::Communicator;
use crate::guard::Failure;
use crate::types::Handle;

static COMMUNICATORS: Mutex<Option<HashMap<usize, Arc<Communicator>>>> = Mutex::new(None);
/// Handles are multiples of 16, like addresses.
static NEXT: AtomicUsize = AtomicUsize::new(16);

/// A handle, which has no communicator yet.
pub fn reserve() -> Handle {
    std::ptr::without_provenance_mut(NEXT.fetch_add(16, Ordering::Relaxed))
}

/// Gives a reserved handle its communicator.
pub fn put(handle: Handle, communicator: Communicator) {
    lock(&COMMUNICATORS).get_or_insert_default().insert(handle.addr(), Arc::new(communicator));
}

/// A handle for a communicator.
pub fn add(communicator: Communicator) -> Handle {
    let handle = reserve();
    put(handle, communicator);
    handle
}

/// The communicator of a handle.
pub fn find(handle: Handle) -> Result<Arc<Communicator>, Failure> {
    let found = lock(&COMMUNICATORS).as_ref().and_then(|all| all.get(&handle.addr()).cloned());
    found.ok_or_else(|| unknown(handle))
}

/// Whether a handle never belonged to a communicator of this library. A handle that did is not forwarded to the other
/// library.
pub fn is_unknown(handle: Handle) -> bool {
    handle.addr() >= NEXT.load(Ordering::Relaxed)
}

/// Removes a communicator: its handle becomes invalid.
pub fn take(handle: Handle) -> Result<Arc<Communicator>, Failure> {
    let found = lock(&COMMUNICATORS).as_mut().and_then(|all| all.remove(&handle.addr()));
    found.ok_or_else(|| unknown(handle))
}

fn unknown(handle: Handle) -> Failure {
    Failure::argument(format!("{handle:?} is no communicator, or none any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_is_none_any_more_is_not_the_other_librarys() {
        let given = NEXT.fetch_add(16, Ordering::Relaxed);
        let handle = std::ptr::without_provenance_mut;
        assert!(find(handle(given)).is_err(), "its communicator is gone");
        assert!(!is_unknown(handle(given)) && !is_unknown(std::ptr::null_mut()));
        assert!(is_unknown((&raw const NEXT).cast_mut().cast()), "an address");
    }
}
