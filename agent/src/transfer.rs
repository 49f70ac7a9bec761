//! Transfers: lists of descriptors that are prepared once, and posted any number of times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use symrail_core::{Backoff, lock};
use symrail_proxy::session::{Part, Registered, Request};

use crate::error::{Error, Result};
use crate::outbox::{Delivery, Outbox};
use crate::peer::Peer;
use crate::worker::Shared;

/// Operations are started in batches of at most this many bytes, unless one alone has more, and at most [`BATCHES`] of
/// them are under way: an operation has to end within `SYMRAIL_TIMEOUT_S` of its start, however long a list takes.
const BATCH_BYTES: u64 = 64 << 20;
const BATCHES: usize = 4;

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the other agent to this one.
    Read,
    /// From this agent to the other one.
    Write,
}

/// One operation: descriptors that are contiguous at both ends are one.
struct Item {
    local: u64,
    /// Its memory among the list's.
    remote: usize,
    at: u64,
    len: u64,
}

/// What a transfer moves.
pub(crate) struct List {
    direction: Direction,
    peer: Arc<Peer>,
    items: Vec<Item>,
    /// This agent's memory that the items use.
    locals: HashMap<*const Registered, Weak<Registered>>,
    remotes: Vec<Arc<Registered>>,
}

// SAFETY: the pointers are keys, and are not dereferenced.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl List {
    pub fn new(direction: Direction, peer: Arc<Peer>) -> List {
        List { direction, peer, items: Vec::new(), locals: HashMap::new(), remotes: Vec::new() }
    }

    /// Adds bytes at `local`, which are in memory of this agent, and as many at `address` in the process of the peer,
    /// which are in `remote`.
    pub fn add(
        &mut self,
        (memory, local): (&Arc<Registered>, u64),
        (remote, address): (&Arc<Registered>, u64),
        len: u64,
    ) {
        if len == 0 {
            return;
        }
        self.uses(memory);
        if !self.remotes.last().is_some_and(|last| Arc::ptr_eq(last, remote)) {
            self.remotes.push(Arc::clone(remote));
        }
        let (index, at) = (self.remotes.len() - 1, address - remote.base());
        if let Some(last) = self.items.last_mut()
            && (last.remote, last.at + last.len, last.local + last.len) == (index, at, local)
        {
            last.len += len;
            return;
        }
        self.items.push(Item { local, remote: index, at, len });
    }

    /// Notes that the list uses memory of this agent.
    pub fn uses(&mut self, memory: &Arc<Registered>) {
        self.locals.entry(Arc::as_ptr(memory)).or_insert_with(|| Arc::downgrade(memory));
    }

    /// The memory of this agent, kept registered.
    fn pinned(&self) -> Result<Vec<Arc<Registered>>> {
        let gone = || Error::Argument { what: "transfer", why: "memory that it uses was deregistered".into() };
        self.locals.values().map(|memory| memory.upgrade().ok_or_else(gone)).collect()
    }

    /// The next batch.
    fn parts(&self, from: usize) -> impl Iterator<Item = Part<'_>> {
        let mut bytes = 0u64;
        let fits = move |item: &&Item| {
            let first = bytes == 0;
            bytes = bytes.saturating_add(item.len);
            first || bytes <= BATCH_BYTES
        };
        self.items[from..].iter().take_while(fits).map(|item| {
            let place = self.remotes[item.remote].place(item.at);
            Part { place, local: std::ptr::with_exposed_provenance_mut(item.local as usize), len: item.len }
        })
    }
}

struct Progress {
    /// The first item that was not started.
    next: usize,
    /// Requests that have not ended.
    requests: Vec<Request>,
    notification: Option<Vec<u8>>,
    delivery: Option<Arc<Delivery>>,
    failed: Option<Error>,
    cancelled: bool,
    /// The memory that operations under way use.
    pinned: Vec<Arc<Registered>>,
}

/// A transfer that was posted.
pub(crate) struct Running {
    list: Arc<List>,
    progress: Mutex<Progress>,
    /// How it has ended. Nothing of it accesses memory of this process then.
    outcome: OnceLock<Result<()>>,
}

impl Running {
    pub fn has_ended(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Starts nothing more.
    pub fn cancel(&self) {
        lock(&self.progress).cancelled = true;
    }

    /// Notes what has ended, and starts what can be started. If another thread does so right now, that one does the
    /// work.
    pub fn advance(&self, shared: &Shared) {
        let mut progress = match self.progress.try_lock() {
            Ok(progress) => progress,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if self.has_ended() {
            return;
        }
        if let Some(outcome) = self.step(&mut progress, shared) {
            progress.pinned.clear();
            let _ = self.outcome.set(outcome);
        }
    }

    fn step(&self, progress: &mut Progress, shared: &Shared) -> Option<Result<()>> {
        let List { direction, peer, items, .. } = &*self.list;
        let Progress { requests, failed, .. } = progress;
        requests.retain(|request| match request.outcome() {
            None => true,
            Some(Ok(())) => false,
            Some(Err(error)) => {
                failed.get_or_insert_with(|| shared.failed(peer, error));
                false
            }
        });
        while progress.failed.is_none() && !progress.cancelled && progress.next < items.len() {
            match peer.is_open() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    progress.failed = Some(error);
                    break;
                }
            }
            if progress.requests.len() >= BATCHES {
                return None;
            }
            let parts = self.list.parts(progress.next);
            // SAFETY: the bytes are in memory that stays registered until the operations have ended; `Agent::register`'s
            // promise is that it stays mapped, and about other code that uses it.
            let started = unsafe {
                match direction {
                    Direction::Write => shared.session.start_puts(parts),
                    Direction::Read => shared.session.start_gets(parts),
                }
            };
            match started {
                Ok(Some((count, request))) => {
                    progress.next += count;
                    progress.requests.push(request);
                }
                Ok(None) => return None,
                Err(error) => progress.failed = Some(shared.failed(peer, error)),
            }
        }
        if !progress.requests.is_empty() {
            return None;
        }
        if let Some(error) = progress.failed.take() {
            return Some(Err(error));
        }
        // The notification alone needs none of this process's memory.
        progress.pinned.clear();
        if progress.cancelled {
            return Some(Err(Error::Lost { agent: peer.name.clone(), why: "the transfer was cancelled".into() }));
        }
        if let Some(message) = progress.notification.take() {
            match shared.notify(peer, &message) {
                Ok(delivery) => progress.delivery = Some(delivery),
                Err(error) => return Some(Err(error)),
            }
        }
        progress.delivery.as_ref().map_or(Some(Ok(())), |delivery| delivery.get().cloned())
    }
}

/// A prepared transfer. Dropping it cancels it.
///
/// All methods are for one thread at a time.
pub struct Transfer {
    shared: Arc<Shared>,
    list: Arc<List>,
    running: Option<Arc<Running>>,
}

impl Transfer {
    pub(crate) fn new(shared: &Arc<Shared>, list: List) -> Transfer {
        Transfer { shared: Arc::clone(shared), list: Arc::new(list), running: None }
    }

    /// The number of operations that the descriptors became.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.list.items.len()
    }

    /// Starts it. It does not block. With a notification, the other agent gets it when all bytes are visible.
    ///
    /// # Errors
    /// [`Error::Busy`] while it is under way; memory that was deregistered; a notification that is too large;
    /// [`Error::Lost`].
    pub fn post(&mut self, notification: Option<&[u8]>) -> Result<()> {
        if self.running.as_ref().is_some_and(|running| !running.has_ended()) {
            return Err(Error::Busy { what: "the transfer" });
        }
        self.list.peer.is_open()?;
        notification.map_or(Ok(()), Outbox::check)?;
        let progress = Progress {
            next: 0,
            requests: Vec::new(),
            notification: notification.map(<[u8]>::to_vec),
            delivery: None,
            failed: None,
            cancelled: false,
            pinned: self.list.pinned()?,
        };
        let running =
            Running { list: Arc::clone(&self.list), progress: Mutex::new(progress), outcome: OnceLock::new() };
        let running = Arc::new(running);
        self.shared.add(&running)?;
        self.running = Some(Arc::clone(&running));
        running.advance(&self.shared);
        if running.has_ended() {
            self.shared.remove(&running);
        } else {
            self.shared.wake();
        }
        Ok(())
    }

    /// Whether it has ended. It does not block.
    ///
    /// # Errors
    /// The failure of the transfer, each time it is tested; it is not posted.
    pub fn test(&self) -> Result<bool> {
        let not_posted = || Error::Argument { what: "transfer", why: "it is not posted".into() };
        let running = self.running.as_ref().ok_or_else(not_posted)?;
        if !running.has_ended() {
            self.shared.session.progress();
            running.advance(&self.shared);
            if !running.has_ended() {
                return Ok(false);
            }
            self.shared.remove(running);
        }
        running.outcome.get().map_or(Ok(false), |outcome| outcome.clone().map(|()| true))
    }

    /// Waits until it has ended, but no longer than this. Returns whether it has.
    ///
    /// # Errors
    /// As for [`Transfer::test`].
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        let begun = Instant::now();
        let mut backoff = Backoff::new(256, 4096, Duration::from_micros(100));
        loop {
            if self.test()? {
                return Ok(true);
            }
            if begun.elapsed() >= limit {
                return Ok(false);
            }
            backoff.pause();
        }
    }

    /// Cancels it: nothing more of it is started, its notification is not sent, and it may be posted again. It does not
    /// block. What is under way ends by itself; until then its memory stays registered.
    pub fn cancel(&mut self) {
        if let Some(running) = self.running.take() {
            running.cancel();
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel();
    }
}
