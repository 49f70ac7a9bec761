//! What calls have in turn, until it is taken away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use symrail_core::lock;

/// How often a wait asks whether it is to end.
pub const POLL: Duration = Duration::from_millis(20);

/// See above.
pub struct Held<T> {
    inside: Mutex<Option<T>>,
    ended: Arc<AtomicBool>,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held { inside: Mutex::new(None), ended: Arc::default() }
    }
}

impl<T> Held<T> {
    /// Puts in what is held.
    pub fn put(&self, what: T) {
        *lock(&self.inside) = Some(what);
    }

    /// What waits of calls ask: whether they are to end.
    pub fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    /// Works with it, after all who do; nothing if it was taken.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        lock(&self.inside).as_mut().map(body)
    }

    /// Looks at it, unless somebody works with it or it was taken.
    pub fn look<R>(&self, body: impl FnOnce(&T) -> R) -> Option<R> {
        let inside = match self.inside.try_lock() {
            Ok(inside) => inside,
            // Of one that panicked, too.
            Err(TryLockError::Poisoned(inside)) => inside.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        inside.as_ref().map(body)
    }

    /// Takes it, after all who work with it.
    pub fn take(&self) -> Option<T> {
        lock(&self.inside).take()
    }

    /// Lets whoever works with it end his waits, and takes it.
    pub fn end(&self) -> Option<T> {
        self.ended.store(true, Ordering::Release);
        self.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_does_not_wait_for_a_call_that_waits() {
        let held = Held::default();
        held.put(5);
        let ended = held.ended();
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                held.with(|_| {
                    let _ = begun.send(());
                    // A wait for a peer that does not come.
                    while !ended.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    "ended"
                })
            });
            let _ = has_begun.recv();
            assert_eq!(held.look(|five| *five), None, "somebody works with it");
            assert_eq!(held.end(), Some(5));
            assert!(matches!(call.join(), Ok(Some("ended"))));
        });
        assert_eq!((held.end(), held.with(|five| *five)), (None, None));
    }
}
