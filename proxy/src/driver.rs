//! The driver: waiting host threads and the proxy thread drive the engine in turns.
//!
//! The engine's mutex passes the endpoint from one to the other, so one thread at a time drives it, as
//! `FI_THREAD_COMPLETION` demands. Host threads never access a completion queue of the proxy endpoint without the
//! mutex.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};

use symrail_core::clock;
use symrail_transport::endpoint::command::Finished;

use crate::engine::Engine;

/// The engine and the state that its drivers share.
pub struct Driver {
    pub(crate) engine: Mutex<Engine>,
    /// The number of host threads that drive the engine now, and of all turns that began so far.
    waiting: AtomicU32,
    turns: AtomicU64,
    /// The number of threads that wait for the engine, before which the proxy thread does not take it.
    wanted: AtomicU32,
    /// How often a host thread has taken the engine to start an operation.
    issues: AtomicU32,
    polls: AtomicU32,
    pub(crate) stop: AtomicBool,
    /// The proxy thread sleeps although it has a spare core.
    pub(crate) asleep: AtomicBool,
    /// The proxy thread sleeps, or is about to: what is started now it sends only when it wakes.
    rests: AtomicBool,
    /// The proxy thread sleeps for longer than left-behind work should wait.
    pub(crate) dozes: AtomicBool,
    /// How often the proxy thread was woken.
    pub(crate) woken: AtomicU64,
    /// Whether every rail has a wait object, so that a sleeping proxy thread misses no event.
    wakes: bool,
    /// The number of devices whose requests wake no thread.
    watches: AtomicU32,
    pub(crate) bell: EventFd,
    started: Instant,
    idle_task: OnceLock<IdleTask>,
    take_ends: OnceLock<TakeEnds>,
}

/// Keeps a device's channels watched. Dropping it ends the watch.
pub struct Watch(Arc<Driver>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The argument of [`Driver::set_idle_task`].
type IdleTask = Box<dyn Fn() -> IdleWork + Send + Sync>;
/// The argument of [`Driver::take_ends`].
type TakeEnds = Box<dyn Fn(&mut Vec<Finished>) + Send + Sync>;

/// How often a thread that wants the engine first tries to lock it before it sleeps: for the time of some polls. To wake
/// a sleeping thread costs more than most of them.
const TRIES: u32 = 1000;

/// The work that host threads have left behind, as an idle task found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdleWork {
    /// There is none.
    Nothing,
    /// There may be some, and host threads still advance it themselves.
    InUse,
    /// There is some that must be checked again soon.
    Soon,
}

/// Whether host threads drive the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driven {
    No,
    /// A host thread has driven it since the last query.
    Lately,
    Now,
}

/// A host thread's turn at driving the engine. Dropping it ends the turn.
pub struct Turn<'a>(&'a Driver);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Release);
    }
}

impl Turn<'_> {
    /// Polls the engine once, unless another thread polls it right now. Returns the number of events.
    #[inline]
    pub fn poll(&self) -> usize {
        self.0.try_poll()
    }
}

impl Driver {
    /// A driver without a thread, for callers that poll by themselves.
    ///
    /// # Errors
    /// The system has no event descriptor left.
    pub fn new(mut engine: Engine) -> std::io::Result<Driver> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let wakes = engine.endpoint().wait_fds().is_some();
        Ok(Driver {
            engine: Mutex::new(engine),
            waiting: AtomicU32::new(0),
            turns: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            issues: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            dozes: AtomicBool::new(false),
            woken: AtomicU64::new(0),
            wakes,
            watches: AtomicU32::new(0),
            bell,
            started: clock::now(),
            idle_task: OnceLock::new(),
            take_ends: OnceLock::new(),
        })
    }

    /// The engine. Callers hold the lock only briefly, because all progress waits for it.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        symrail_core::lock(&self.engine)
    }

    /// As [`Driver::engine`], before the proxy thread's next poll, between whose polls there is next to no time.
    pub(crate) fn engine_first(&self) -> MutexGuard<'_, Engine> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let soon = (0..TRIES).find_map(|_| {
            std::hint::spin_loop();
            self.try_engine()
        });
        let engine = soon.unwrap_or_else(|| self.engine());
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// As [`Driver::engine`], to start an operation, perhaps one of many. A poll of the proxy thread between two of them
    /// would cost this thread a system call or two for the mutex, and would post operations that wait to be coalesced.
    /// So the proxy thread polls rarely while operations are started.
    pub fn engine_to_issue(&self) -> MutexGuard<'_, Engine> {
        let engine = self.engine();
        // A load and a store suffice, since the engine's lock is held.
        self.issues.store(self.issues.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        engine
    }

    /// Whether a host thread has started an operation since the query before, whose count is `seen`.
    pub(crate) fn has_issued(&self, seen: &mut u32) -> bool {
        let issues = self.issues.load(Ordering::Relaxed);
        issues != std::mem::replace(seen, issues)
    }

    /// Notes whether the proxy thread sleeps, or is about to. It says so before it takes the engine for its last look:
    /// a thread that starts an operation behind that finds it set.
    pub(crate) fn rest(&self, rests: bool) {
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// Whether threads wait for the engine.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// The engine, unless another thread has it right now.
    pub(crate) fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Begins a turn of a host thread, which must poll until the turn ends.
    #[must_use]
    pub fn wait_turn(&self) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::Acquire);
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.expect_traffic();
        Turn(self)
    }

    /// Notes that a host thread communicates. When it computes again, peers may send requests, and should find the
    /// proxy thread awake.
    #[inline]
    pub fn expect_traffic(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Polls the engine once, unless another thread polls it right now. Returns the number of events.
    #[inline]
    pub fn try_poll(&self) -> usize {
        self.try_engine().map_or(0, |mut engine| self.poll(&mut engine))
    }

    /// Whether an arrival wakes a sleeping proxy thread. Where it does not, a waiting thread should keep polling.
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.wakes
    }

    /// Wakes the proxy thread: there is work now, or no other thread polls any more.
    pub fn wake(&self) {
        // A full counter means that the thread is awake already.
        let _ = self.bell.write(1);
    }

    /// Keeps the proxy thread polling the channels, because a device (a GPU) pushes to them that cannot ring their
    /// doorbell. With a spare core the thread polls all the time, otherwise it takes the shortest sleeps.
    #[must_use]
    pub fn watch(self: &Arc<Driver>) -> Watch {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.wake();
        Watch(Arc::clone(self))
    }

    /// Sets the proxy thread's task besides driving the engine. The task polls work that host threads have posted and
    /// left, and returns whether some of it is still under way. It must not block. A second task is ignored.
    pub fn set_idle_task(&self, idle_task: impl Fn() -> IdleWork + Send + Sync + 'static) {
        let _ = self.idle_task.set(Box::new(idle_task));
    }

    /// Sets what takes the ends of operations after each poll, whoever polls. A second one is ignored.
    pub(crate) fn take_ends(&self, take: impl Fn(&mut Vec<Finished>) + Send + Sync + 'static) {
        let _ = self.take_ends.set(Box::new(take));
    }

    /// Notes that a host thread leaves work behind that should be sent soon, whatever the thread does next.
    #[inline]
    pub fn leave_behind(&self) {
        // Either this thread observes that the proxy thread dozes, or the proxy thread observes the work: it announces
        // its doze before it checks.
        fence(Ordering::SeqCst);
        if self.dozes.load(Ordering::Relaxed) && self.dozes.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// The number of sleeps of the proxy thread that were cut short.
    #[must_use]
    pub fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }

    pub(crate) fn run_idle_task(&self) -> IdleWork {
        self.idle_task.get().map_or(IdleWork::Nothing, |idle_task| idle_task())
    }

    /// Whether devices push to the channels whose requests wake no thread.
    pub(crate) fn is_watching(&self) -> bool {
        self.watches.load(Ordering::Relaxed) > 0
    }

    /// Whether host threads drive the engine now, or have driven it since the turn number `seen`.
    pub(crate) fn driven(&self, seen: &mut u64) -> Driven {
        let turns = self.turns.load(Ordering::Relaxed);
        let lately = turns != std::mem::replace(seen, turns);
        match self.waiting.load(Ordering::Acquire) {
            0 if lately => Driven::Lately,
            0 => Driven::No,
            _ => Driven::Now,
        }
    }

    /// Polls the engine once. The caller holds its lock.
    #[inline]
    pub(crate) fn poll(&self, engine: &mut Engine) -> usize {
        let events = engine.poll();
        // Polls are counted here and not by the engine's rounds: other pollers of the engine must not keep the count
        // from ever reaching a multiple. A load and a store suffice, since the engine's lock is held.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(1024) {
            engine.tick(self.seconds());
        }
        if let Some(take) = self.take_ends.get() {
            take(engine.host_finished());
        }
        events
    }

    /// Whether the proxy thread sleeps, or is about to.
    pub(crate) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    /// The number of polls so far.
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    pub(crate) fn seconds(&self) -> u32 {
        clock::since(self.started).as_secs() as u32
    }
}
