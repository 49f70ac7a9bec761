//! Atomics, mutexes and threads: the standard library's, or loom's when a model runs.

use std::time::Duration;

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};
#[cfg(loom)]
pub(super) use loom::thread::{Thread, current};
#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(super) use std::thread::{Thread, current};

/// Parks this thread for so long at most; in a model until another thread unparks it.
pub(super) fn park(longest: Duration) {
    #[cfg(not(loom))]
    std::thread::park_timeout(longest);
    #[cfg(loom)]
    {
        let _ = longest;
        loom::thread::park();
    }
}
