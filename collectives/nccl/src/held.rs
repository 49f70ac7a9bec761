//! A value that calls use one after the other, until a final call takes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use symrail_core::lock;

/// How often a wait checks whether it must end.
pub const POLL: Duration = Duration::from_millis(20);

/// See above.
pub struct Held<T> {
    inside: Mutex<Option<T>>,
    ended: Arc<AtomicBool>,
    /// Ends the waits of kernels, which do not check the flag.
    at_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held { inside: Mutex::new(None), ended: Arc::default(), at_end: OnceLock::new() }
    }
}

impl<T> Held<T> {
    /// Stores the value, and a function that ends the waits of its kernels. Called once.
    pub fn put(&self, what: T, at_end: impl Fn() + Send + Sync + 'static) {
        let _ = self.at_end.set(Box::new(at_end));
        *lock(&self.inside) = Some(what);
    }

    /// The flag that waits of calls check: whether they must end.
    pub fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    /// Calls `body` with the value, after all earlier users; `None` if it was taken.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        lock(&self.inside).as_mut().map(body)
    }

    /// Calls `body` with the value, unless another thread uses it or it was taken.
    pub fn look<R>(&self, body: impl FnOnce(&T) -> R) -> Option<R> {
        let inside = match self.inside.try_lock() {
            Ok(inside) => inside,
            // Also after a panic of another user.
            Err(TryLockError::Poisoned(inside)) => inside.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        inside.as_ref().map(body)
    }

    /// Takes the value for its final use, after all earlier users. A concurrent call waits until that is done.
    pub fn finish<R>(&self, body: impl FnOnce(T) -> R) -> Option<R> {
        let mut inside = lock(&self.inside);
        inside.take().map(body)
    }

    /// Ends the waits of the current user. Returns at once.
    pub fn let_waits_end(&self) {
        self.ended.store(true, Ordering::Release);
        self.let_kernels_end();
    }

    /// Ends the waits of kernels alone.
    pub fn let_kernels_end(&self) {
        if let Some(at_end) = self.at_end.get() {
            at_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs work that lasts until its waits must end, while another thread ends them.
    fn ends(work: impl FnOnce(&Held<u32>, &dyn Fn() -> bool) -> Option<bool> + Send) -> Held<u32> {
        let (held, by_kernel) = (Held::default(), Arc::new(AtomicBool::new(false)));
        let set = Arc::clone(&by_kernel);
        held.put(5, move || set.store(true, Ordering::Release));
        let (begun, has_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let held = &held;
            let call = scope.spawn(move || {
                work(held, &|| {
                    let _ = begun.send(());
                    // A wait for a peer that never arrives, and a driver call that a kernel blocks.
                    let begin = std::time::Instant::now();
                    while !(held.ended().load(Ordering::Acquire) && by_kernel.load(Ordering::Acquire)) {
                        if begin.elapsed().as_secs() > 60 {
                            return false;
                        }
                        std::thread::yield_now();
                    }
                    true
                })
            });
            let _ = has_begun.recv();
            assert_eq!(held.look(|five| *five), None, "somebody works with it");
            held.let_waits_end();
            assert!(matches!(call.join(), Ok(Some(true))));
        });
        held
    }

    #[test]
    fn an_end_does_not_wait_for_a_call_that_waits() {
        let held = ends(|held, wait| held.with(|_| wait()));
        assert_eq!(held.finish(|five| five), Some(5));
        assert_eq!((held.finish(|five| five), held.with(|five| *five)), (None, None));
    }

    #[test]
    fn an_end_does_not_wait_for_the_last_work() {
        let held = ends(|held, wait| held.finish(|_| wait()));
        assert_eq!(held.finish(|five| five), None);
    }
}
