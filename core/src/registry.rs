//! Handles of C interfaces: numbers in place of addresses, so that an invalid handle is an error and not a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;

/// Handles are multiples of 16, like addresses.
const STEP: usize = 16;
static NEXT: AtomicUsize = AtomicUsize::new(STEP);

/// A handle that no object of this process has had.
pub fn number() -> usize {
    NEXT.fetch_add(STEP, Ordering::Relaxed)
}

/// Whether [`number`] has returned this handle.
#[must_use]
pub fn is_known(handle: usize) -> bool {
    handle < NEXT.load(Ordering::Relaxed)
}

/// Objects by their handles. A handle of one registry is none of another one.
#[derive(Debug)]
pub struct Registry<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T> Registry<T> {
    /// A registry without objects.
    #[must_use]
    pub const fn new() -> Registry<T> {
        Registry(Mutex::new(BTreeMap::new()))
    }

    /// Keeps an object. Returns its handle.
    pub fn add(&self, object: T) -> usize {
        let handle = number();
        self.put(handle, object);
        handle
    }

    /// Keeps an object by a handle that [`number`] has returned for it.
    pub fn put(&self, handle: usize, object: T) {
        lock(&self.0).insert(handle, Arc::new(object));
    }

    /// The object of a handle; `None` if it has none, or none any more.
    pub fn find(&self, handle: usize) -> Option<Arc<T>> {
        lock(&self.0).get(&handle).cloned()
    }

    /// Removes an object: its handle becomes invalid.
    pub fn take(&self, handle: usize) -> Option<Arc<T>> {
        lock(&self.0).remove(&handle)
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_that_of_one_object_of_one_registry() {
        let (words, numbers) = (Registry::new(), Registry::new());
        let (word, five) = (words.add("word"), numbers.add(5));
        assert_eq!(numbers.find(five).as_deref(), Some(&5));
        assert!(numbers.find(word).is_none() && numbers.find(0).is_none() && numbers.find(usize::MAX).is_none());
        assert_eq!(words.take(word).as_deref(), Some(&"word"));
        assert!(words.find(word).is_none() && words.take(word).is_none());
        assert!(is_known(word), "it was a handle once");
        assert!(words.add("word") != word, "no handle comes again");
    }
}
