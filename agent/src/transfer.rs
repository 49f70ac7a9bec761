//! Transfers: lists that are prepared once, and posted any number of times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use symrail_core::{Backoff, lock};
use symrail_heap::copy_engine::Between;
use symrail_proxy::session::{Registered, Request};
use symrail_transport::error::Fault;
use symrail_transport::{Error as TransportError, Operation};

use crate::devices::Copying;
use crate::error::{Error, Result};
use crate::list::{Direction, Item, List, Places};
use crate::outbox::{Delivery, Outbox};
use crate::worker::Shared;

/// The most batches under way: an operation has to end within `SYMRAIL_TIMEOUT_S` of its start, however long a list
/// takes.
const BATCHES: usize = 4;
/// Copies between devices are started in batches of this many, and so many batches at most are under way.
const BATCH_COPIES: usize = 512;
const COPY_BATCHES: usize = 32;

/// How the operations between devices are done.
enum Direct {
    /// It is not known yet.
    Unknown,
    /// By the rails, like the others.
    Rails,
    /// By the devices, with these mappings; the first one that was not started.
    Devices(Places, usize),
}

struct Progress {
    /// The first item for the rails that was not started.
    next: usize,
    direct: Direct,
    /// Requests and copies that have not ended.
    requests: Vec<Request>,
    copies: Vec<Box<dyn Copying>>,
    notification: Option<Vec<u8>>,
    delivery: Option<Arc<Delivery>>,
    failed: Option<Error>,
    cancelled: bool,
    /// The memory that operations under way use.
    pinned: Vec<Arc<Registered>>,
}

impl Progress {
    /// Nothing of it accesses memory any more.
    fn release(&mut self) {
        self.pinned.clear();
        if let Direct::Devices(mappings, _) = &mut self.direct {
            mappings.clear();
        }
    }
}

/// A transfer that was posted.
pub(crate) struct Running {
    list: Arc<List>,
    progress: Mutex<Progress>,
    /// Whether copies by devices are under way.
    copies: AtomicBool,
    /// How it has ended. Nothing of it accesses memory of this process then.
    outcome: OnceLock<Result<()>>,
}

impl Running {
    pub fn has_ended(&self) -> bool {
        self.outcome.get().is_some()
    }

    pub fn has_copies(&self) -> bool {
        self.copies.load(Ordering::Relaxed)
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
        let ended = self.step(&mut progress, shared);
        self.copies.store(!progress.copies.is_empty(), Ordering::Relaxed);
        if let Some(outcome) = ended {
            progress.release();
            let _ = self.outcome.set(outcome);
        }
    }

    fn step(&self, progress: &mut Progress, shared: &Shared) -> Option<Result<()>> {
        let peer = &self.list.peer;
        self.note_ends(progress, shared);
        while progress.failed.is_none() && !progress.cancelled {
            let decides = matches!(progress.direct, Direct::Unknown) && !self.list.direct.is_empty();
            let (of_rails, of_devices) = self.left(progress);
            if !decides && of_rails == 0 && of_devices == 0 {
                break;
            }
            match peer.is_open() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    progress.failed = Some(error);
                    break;
                }
            }
            if decides {
                self.decide(progress, shared);
            }
            let started = self.start_copies(progress, shared) | self.start_requests(progress, shared);
            if !started && progress.failed.is_none() {
                return None;
            }
        }
        if !progress.requests.is_empty() || !progress.copies.is_empty() {
            return None;
        }
        // Copies to the memory of a process that has ended do not fail.
        if progress.failed.is_none() && matches!(progress.direct, Direct::Devices(..)) {
            progress.failed = peer.is_open().err();
        }
        if let Some(error) = progress.failed.take() {
            return Some(Err(error));
        }
        // The notification alone needs none of this process's memory.
        progress.release();
        if progress.cancelled {
            return Some(Err(Error::Lost { agent: peer.name.clone(), why: "the transfer was cancelled".into() }));
        }
        if let Some(message) = progress.notification.take() {
            match shared.notify(peer, &message) {
                Ok(delivery) => progress.delivery = Some(delivery),
                Err(error) => return Some(Err(error)),
            }
        }
        let Some(delivery) = &progress.delivery else { return Some(Ok(())) };
        if delivery.get().is_none() {
            peer.send(&shared.session);
        }
        delivery.get().cloned()
    }
}

impl Running {
    /// Notes the requests and copies that have ended.
    fn note_ends(&self, progress: &mut Progress, shared: &Shared) {
        let Progress { requests, copies, failed, .. } = progress;
        requests.retain(|request| match request.outcome() {
            None => true,
            Some(Ok(())) => false,
            Some(Err(error)) => {
                failed.get_or_insert_with(|| shared.failed(&self.list.peer, error));
                false
            }
        });
        copies.retain_mut(|copies| match copies.outcome() {
            None => true,
            Some(Ok(())) => false,
            Some(Err(why)) => {
                failed.get_or_insert_with(|| self.not_copied(why));
                false
            }
        });
    }

    /// The error of copies between devices.
    fn not_copied(&self, text: String) -> Error {
        let List { direction, peer, direct, .. } = &*self.list;
        let operation = if *direction == Direction::Write { Operation::Put } else { Operation::Get };
        let fault = Fault { code: 0, text, retryable: false };
        let (rail, bytes) = ("copies between devices".into(), direct.iter().map(|item| item.len).sum());
        Error::of(&peer.name, TransportError::Operation { operation, pe: peer.pe, rail, bytes, fault })
    }

    /// The numbers of operations that were not started: of the rails, and of the devices.
    fn left(&self, progress: &Progress) -> (usize, usize) {
        let List { items, direct, .. } = &*self.list;
        match progress.direct {
            Direct::Unknown => (items.len() - progress.next, 0),
            Direct::Rails => (items.len() + direct.len() - progress.next, 0),
            Direct::Devices(_, next) => (items.len() - progress.next, direct.len() - next),
        }
    }

    /// Finds out who does the operations between devices.
    fn decide(&self, progress: &mut Progress, shared: &Shared) {
        progress.direct = match self.list.mappings(&shared.session, &shared.sharing) {
            Some(mappings) if mappings.is_empty() => Direct::Rails,
            Some(mappings) => Direct::Devices(mappings, 0),
            None => Direct::Unknown,
        };
    }

    /// Starts copies by devices. Returns whether any was started.
    fn start_copies(&self, progress: &mut Progress, shared: &Shared) -> bool {
        let List { direction, direct, remotes, .. } = &*self.list;
        let Direct::Devices(mappings, next) = &mut progress.direct else { return false };
        let mut started = false;
        while progress.copies.len() < COPY_BATCHES
            && let Some(device) = direct.get(*next).and_then(|item| remotes[item.remote].device)
        {
            let same = |item: &&Item| remotes[item.remote].device == Some(device);
            let batch = direct[*next..].iter().take(BATCH_COPIES).take_while(same);
            let mut count = 0;
            let mut copies = batch.filter_map(|item| {
                count += 1;
                let there = mappings[item.remote].as_ref()?.base().wrapping_add(item.at) as usize;
                let (here, len) = (item.local as usize, item.len as usize);
                Some(match direction {
                    Direction::Write => Between { to: there, from: here, len },
                    Direction::Read => Between { to: here, from: there, len },
                })
            });
            // SAFETY: this agent's memory stays registered, and the mappings stay, until the copies have ended; both
            // ends were found to be inside. The rest is `Agent::register_device`'s promise.
            match unsafe { shared.sharing.devices.copy(device, &mut copies) } {
                Ok(copies) => progress.copies.push(copies),
                Err(why) => {
                    progress.failed = Some(self.not_copied(why));
                    break;
                }
            }
            *next += count;
            started = true;
        }
        started
    }

    /// Starts a request of the rails, if there is room. Returns whether it was started.
    fn start_requests(&self, progress: &mut Progress, shared: &Shared) -> bool {
        let (left, _) = self.left(progress);
        if left == 0 || progress.requests.len() >= BATCHES {
            return false;
        }
        let parts = self.list.parts(progress.next).take(left);
        // SAFETY: the bytes are in memory that stays registered until the operations have ended; `Agent::register`'s
        // promise is that it stays mapped, and about other code that uses it.
        let started = unsafe {
            match self.list.direction {
                Direction::Write => shared.session.start_puts(parts),
                Direction::Read => shared.session.start_gets(parts),
            }
        };
        match started {
            Ok(Some((count, request))) => {
                progress.next += count;
                progress.requests.push(request);
                true
            }
            Ok(None) => false,
            Err(error) => {
                progress.failed = Some(shared.failed(&self.list.peer, error));
                false
            }
        }
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
    pub(crate) fn new(shared: &Arc<Shared>, mut list: List) -> Transfer {
        let List { direct, remotes, .. } = &mut list;
        direct.sort_by_key(|item| remotes[item.remote].device);
        Transfer { shared: Arc::clone(shared), list: Arc::new(list), running: None }
    }

    /// The number of operations that the descriptors became.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.list.items.len() + self.list.direct.len()
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
            direct: Direct::Unknown,
            requests: Vec::new(),
            copies: Vec::new(),
            notification: notification.map(<[u8]>::to_vec),
            delivery: None,
            failed: None,
            cancelled: false,
            pinned: self.list.pinned()?,
        };
        let running = Running {
            list: Arc::clone(&self.list),
            progress: Mutex::new(progress),
            copies: AtomicBool::new(false),
            outcome: OnceLock::new(),
        };
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
