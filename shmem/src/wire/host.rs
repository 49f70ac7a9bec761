//! The host endpoint, which host threads use one at a time.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use symrail_proxy::IdleWork;
use symrail_transport::endpoint::{Endpoint, NoAgent};

/// Polls under one acquisition of the lock: taking the lock costs as much as a poll.
const POLLS_AT_ONCE: u32 = 8;

/// The host endpoint behind its lock.
pub(super) struct Host {
    side: Mutex<Side>,
    /// Whether polling can make progress, as the endpoint's last user left it; readable without the lock.
    active: AtomicBool,
    /// Whether requests are being coalesced, as the endpoint's last user left it.
    gathered: AtomicBool,
    /// Whether the endpoint was used, and whether a put was left behind that a peer may wait for, since the proxy
    /// thread checked.
    used: AtomicBool,
    awaited: AtomicBool,
    /// Whether its users have polled it since then.
    polled: AtomicBool,
}

/// The host endpoint, and the state that its host threads share.
pub(super) struct Side {
    pub endpoint: Endpoint,
    next_tag: u64,
    /// Set if the current holder of the lock has polled.
    polled: bool,
}

/// A host thread's use of the host endpoint.
pub(super) struct InUse<'a> {
    side: MutexGuard<'a, Side>,
    host: &'a Host,
}

impl Host {
    pub fn new(endpoint: Endpoint) -> Host {
        let side = Mutex::new(Side { endpoint, next_tag: 0, polled: false });
        let [active, gathered, used, awaited, polled] = [const { AtomicBool::new(false) }; 5];
        Host { side, active, gathered, used, awaited, polled }
    }

    #[inline]
    pub fn lock(&self) -> InUse<'_> {
        InUse { side: symrail_core::lock(&self.side), host: self }
    }

    #[inline]
    pub fn try_lock(&self) -> Option<InUse<'_>> {
        let side = match self.side.try_lock() {
            Ok(side) => side,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(InUse { side, host: self })
    }

    /// Whether operations are in flight that polling can advance.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Polls if that can make progress and no other thread uses the endpoint. Returns whether polling still can.
    pub fn poll_if_unused(&self) -> bool {
        if self.is_active()
            && let Some(mut side) = self.try_lock()
        {
            side.poll();
        }
        self.is_active()
    }

    /// After a put that a peer may wait for: whether it was left to be coalesced with later ones.
    #[inline]
    pub fn leaves_behind(&self) -> bool {
        let gathered = self.gathered.load(Ordering::Relaxed);
        if gathered {
            self.awaited.store(true, Ordering::Relaxed);
        }
        gathered
    }

    /// For the proxy thread's idle task: polls if a peer may wait for a put, or if no host thread polls.
    pub fn idle_work(&self) -> IdleWork {
        let awaited = self.awaited.swap(false, Ordering::Relaxed);
        let polled = self.polled.swap(false, Ordering::Relaxed);
        let in_use = self.used.swap(false, Ordering::Relaxed) && !awaited;
        if in_use && polled {
            return IdleWork::InUse;
        }
        let active = self.poll_if_unused();
        self.used.store(false, Ordering::Relaxed);
        self.polled.store(false, Ordering::Relaxed);
        if awaited || (active && !in_use) {
            IdleWork::Soon
        } else if in_use {
            IdleWork::InUse
        } else {
            IdleWork::Nothing
        }
    }
}

impl Side {
    /// A tag that no operation of a host thread has had, on any path.
    pub fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    #[inline]
    pub fn poll(&mut self) -> usize {
        self.polled = true;
        self.endpoint.poll(&mut NoAgent)
    }

    /// Polls a few times, until `done`.
    #[inline]
    pub fn poll_until(&mut self, done: impl Fn(&Side) -> bool) -> bool {
        for _ in 0..POLLS_AT_ONCE {
            if done(self) {
                return true;
            }
            self.poll();
        }
        done(self)
    }
}

impl Deref for InUse<'_> {
    type Target = Side;

    #[inline]
    fn deref(&self) -> &Side {
        &self.side
    }
}

impl DerefMut for InUse<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Side {
        &mut self.side
    }
}

impl Drop for InUse<'_> {
    #[inline]
    fn drop(&mut self) {
        let endpoint = &self.side.endpoint;
        self.host.active.store(endpoint.is_active(), Ordering::Relaxed);
        self.host.gathered.store(endpoint.has_gathered(), Ordering::Relaxed);
        self.host.used.store(true, Ordering::Relaxed);
        if std::mem::take(&mut self.side.polled) {
            self.host.polled.store(true, Ordering::Relaxed);
        }
    }
}
