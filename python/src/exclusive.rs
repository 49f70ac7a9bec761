//! A value that one call uses at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::PyResult;

use crate::errors::{Kind, raise};

/// Calls of other threads wait for one another. A call within another one of the same thread is an error: Python runs the
/// handlers of signals, which may call anything, inside of calls that wait.
#[derive(Default)]
pub struct Exclusive<T> {
    value: Mutex<T>,
    /// The thread whose call uses the value, or 0.
    user: AtomicUsize,
}

/// A number of the calling thread, which no other thread that lives has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The use of a value by a call.
struct Use<'a, T> {
    value: MutexGuard<'a, T>,
    user: &'a AtomicUsize,
}

impl<'a, T> Use<'a, T> {
    fn new(value: MutexGuard<'a, T>, user: &'a AtomicUsize) -> Use<'a, T> {
        user.store(this_thread(), Ordering::Relaxed);
        Use { value, user }
    }
}

impl<T> Drop for Use<'_, T> {
    fn drop(&mut self) {
        self.user.store(0, Ordering::Relaxed);
    }
}

impl<T> Exclusive<T> {
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { value: Mutex::new(value), user: AtomicUsize::new(0) }
    }

    /// Makes a call, behind those of other threads. The caller does not hold Python's lock.
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        if self.user.load(Ordering::Relaxed) == this_thread() {
            let what =
                "a call of this thread on the same object has not returned; a signal's handler cannot make another";
            return Err(raise(Kind::State, what));
        }
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(call(&mut Use::new(value, &self.user).value))
    }

    /// As [`Exclusive::with`], without waiting; `None` while another call uses the value.
    pub fn try_with<R>(&self, call: impl FnOnce(&mut T) -> R) -> Option<R> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(call(&mut Use::new(value, &self.user).value))
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
