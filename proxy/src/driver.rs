//! The engine among those who drive it: host threads that wait, in turns, and the proxy thread.
//!
//! The engine's mutex hands the endpoint from one to the other, so it is driven by one thread at a time, which is what
//! `FI_THREAD_COMPLETION` asks for. Host threads never touch a completion queue of the proxy endpoint without it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};

use symrail_core::clock;

use crate::engine::Engine;

/// The engine and what its drivers share.
pub struct Driver {
    pub(crate) engine: Mutex<Engine>,
    /// Host threads that drive the engine now, and how often any has begun to.
    waiting: AtomicU32,
    turns: AtomicU64,
    polls: AtomicU32,
    pub(crate) stop: AtomicBool,
    /// The proxy thread sleeps, although there is a core to spare.
    pub(crate) asleep: AtomicBool,
    /// The proxy thread sleeps for longer than what is left behind should wait.
    pub(crate) dozes: AtomicBool,
    /// How often the proxy thread was woken.
    pub(crate) woken: AtomicU64,
    /// Every rail has a wait object, so that a sleeping proxy thread misses nothing.
    wakes: bool,
    /// Devices whose requests wake nobody.
    watches: AtomicU32,
    pub(crate) bell: EventFd,
    started: Instant,
    idle_task: OnceLock<IdleTask>,
}

/// A device's channels under watch; ends when dropped.
pub struct Watch(Arc<Driver>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What [`Driver::set_idle_task`] takes.
type IdleTask = Box<dyn Fn() -> IdleWork + Send + Sync>;

/// What host threads have left behind, when an idle task has been run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdleWork {
    /// Nothing.
    Nothing,
    /// Maybe something, and host threads move it themselves so far.
    InUse,
    /// Something that is to be checked again soon.
    Soon,
}

/// Whether host threads drive the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driven {
    No,
    /// One has, since this was last asked.
    Lately,
    Now,
}

/// A host thread's turn at driving the engine; ends when dropped.
pub struct Turn<'a>(&'a Driver);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Release);
    }
}

impl Turn<'_> {
    /// Polls the engine once, unless another thread does so right now. Returns how much happened.
    #[inline]
    pub fn poll(&self) -> usize {
        self.0.try_poll()
    }
}

impl Driver {
    /// A driver without a thread, for whoever polls himself.
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
            polls: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            dozes: AtomicBool::new(false),
            woken: AtomicU64::new(0),
            wakes,
            watches: AtomicU32::new(0),
            bell,
            started: clock::now(),
            idle_task: OnceLock::new(),
        })
    }

    /// The engine. Short uses only: everybody's progress waits for it.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        symrail_core::lock(&self.engine)
    }

    /// Begins a host thread's turn: it promises to poll until the turn ends.
    #[must_use]
    pub fn wait_turn(&self) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::Acquire);
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.expect_traffic();
        Turn(self)
    }

    /// A host thread communicates: peers may ask for something when it computes again, and should find the proxy thread
    /// awake.
    #[inline]
    pub fn expect_traffic(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Polls the engine once, unless another thread does so right now. Returns how much happened.
    #[inline]
    pub fn try_poll(&self) -> usize {
        match self.engine.try_lock() {
            Ok(mut engine) => self.poll(&mut engine),
            Err(std::sync::TryLockError::Poisoned(e)) => self.poll(&mut e.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => 0,
        }
    }

    /// Whether what arrives wakes a sleeping proxy thread. Where it does not, who waits does better to go on polling.
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.wakes
    }

    /// Wakes the proxy thread: there is something to do now, or nobody else polls any more.
    pub fn wake(&self) {
        // A full counter means that it is awake already.
        let _ = self.bell.write(1);
    }

    /// Keeps the proxy thread polling the channels, because a device pushes to them that cannot ring their doorbell:
    /// a GPU. With a core to spare it polls all the while, else it takes the shortest naps.
    #[must_use]
    pub fn watch(self: &Arc<Driver>) -> Watch {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.wake();
        Watch(Arc::clone(self))
    }

    /// Gives the proxy thread something to do besides driving the engine, once: it polls what host threads have posted
    /// and left, and says whether some of that is still on its way. Must not block. A second one is ignored.
    pub fn set_idle_task(&self, idle_task: impl Fn() -> IdleWork + Send + Sync + 'static) {
        let _ = self.idle_task.set(Box::new(idle_task));
    }

    /// A host thread leaves something behind that is to go out soon, whatever it does next.
    #[inline]
    pub fn leave_behind(&self) {
        // Either this sees that the proxy thread dozes, or that sees what was left: it says so before it checks.
        fence(Ordering::SeqCst);
        if self.dozes.load(Ordering::Relaxed) && self.dozes.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// How often something has ended a sleep of the proxy thread before its time.
    #[must_use]
    pub fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }

    pub(crate) fn run_idle_task(&self) -> IdleWork {
        self.idle_task.get().map_or(IdleWork::Nothing, |idle_task| idle_task())
    }

    /// Whether devices push to the channels that wake nobody.
    pub(crate) fn is_watching(&self) -> bool {
        self.watches.load(Ordering::Relaxed) > 0
    }

    /// Whether host threads drive the engine, or have since they had begun `seen` turns.
    pub(crate) fn driven(&self, seen: &mut u64) -> Driven {
        let turns = self.turns.load(Ordering::Relaxed);
        let lately = turns != std::mem::replace(seen, turns);
        match self.waiting.load(Ordering::Acquire) {
            0 if lately => Driven::Lately,
            0 => Driven::No,
            _ => Driven::Now,
        }
    }

    /// Polls the engine once, for whoever holds it.
    #[inline]
    pub(crate) fn poll(&self, engine: &mut Engine) -> usize {
        let events = engine.poll();
        // Counted here and not by the engine's rounds: whoever polls the engine in between must not keep the count from
        // ever being right. A load and a store do, since the engine's lock is held.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(1024) {
            engine.tick(self.seconds());
        }
        events
    }

    pub(crate) fn seconds(&self) -> u32 {
        clock::since(self.started).as_secs() as u32
    }
}
