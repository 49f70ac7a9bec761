//! A value that calls use one after the other, until a final call takes it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use symrail_core::lock;

/// How often a wait checks whether it must end.
pub const POLL: Duration = Duration::from_millis(20);

/// See above.
pub struct Held<T> {
    inside: Mutex<Option<T>>,
    /// How many calls want waits to end.
    ended: Arc<AtomicU32>,
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

    /// The number that waits of calls check: they must end unless it is 0.
    pub fn ended(&self) -> Arc<AtomicU32> {
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

    /// Ends the waits of the current user, and of all later ones. Returns at once.
    pub fn let_waits_end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
        self.let_kernels_end();
    }

    /// Ends the waits of the current user and of kernels, and calls `body` behind that user. Later users wait again,
    /// except for kernels; `None` if the value was taken.
    pub fn interrupt<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.let_waits_end();
        let mut inside = lock(&self.inside);
        self.ended.fetch_sub(1, Ordering::AcqRel);
        inside.as_mut().map(body)
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
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Runs work that lasts until its waits must end, while another thread ends them.
    fn ends(
        work: impl FnOnce(&Held<u32>, &dyn Fn() -> bool) -> Option<bool> + Send,
        end: impl FnOnce(&Held<u32>),
    ) -> Held<u32> {
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
                    while held.ended().load(Ordering::Acquire) == 0 || !by_kernel.load(Ordering::Acquire) {
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
            end(held);
            assert!(matches!(call.join(), Ok(Some(true))));
        });
        held
    }

    #[test]
    fn an_end_does_not_wait_for_a_call_that_waits() {
        let held = ends(|held, wait| held.with(|_| wait()), Held::let_waits_end);
        assert_eq!(held.finish(|five| five), Some(5));
        assert_eq!((held.finish(|five| five), held.with(|five| *five)), (None, None));
    }

    #[test]
    fn an_end_does_not_wait_for_the_last_work() {
        let held = ends(|held, wait| held.finish(|_| wait()), Held::let_waits_end);
        assert_eq!(held.finish(|five| five), None);
    }

    #[test]
    fn later_users_of_an_interrupted_value_wait_again() {
        let interrupt = |held: &Held<u32>| assert_eq!(held.interrupt(|five| *five), Some(5));
        let held = ends(|held, wait| held.with(|_| wait()), interrupt);
        assert_eq!((held.ended().load(Ordering::Acquire), held.with(|five| *five)), (0, Some(5)));
        // An end that comes meanwhile lasts.
        held.let_waits_end();
        interrupt(&held);
        assert_eq!(held.ended().load(Ordering::Acquire), 1);
    }
}
