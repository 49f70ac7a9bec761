//! The proxy thread, and how a waiting host thread takes its place.
//!
//! The engine must always be polled, but a core is too much for polling when nothing happens, and on a machine with
//! few cores a proxy thread that spins takes the core from the thread that waits for it. So:
//!
//! - While there is traffic the proxy thread polls. After a while without any it sleeps until a rail or a
//!   doorbell wakes it (or, where the provider has no wait object, for a short time that grows).
//! - A host thread that waits for something calls [`Driver::wait_turn`] and polls the engine itself: no switch of threads
//!   lies between the NIC and whoever waits. The proxy thread then looks only now and then whether that is still so.
//!
//! The engine's mutex hands the endpoint from one to the other, so it is driven by one thread at a time, which is what
//! `FI_THREAD_COMPLETION` asks for. Host threads never touch a completion queue of the proxy endpoint without it.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::engine::Engine;

/// How long the proxy thread polls after the last thing that happened. With a core to spare: long, because waking up takes from
/// 5 µs to, on virtual machines, 200 µs, and who asks a PE that computes should not have to wait for it.
const POLL: Duration = Duration::from_millis(5);
/// Without one: at least a little more than a round trip over TCP, so that a request-reply exchange finds it awake. What
/// peers write passes through the rail unseen, so a sleep that was cut short is what tells of it; then the thread polls for
/// longer, up to the second figure.
const SHORT_POLL: Duration = Duration::from_micros(50);
const LONGEST_SHORT_POLL: Duration = Duration::from_millis(2);
/// A sleep that was worth it.
const GOOD_SLEEP: Duration = Duration::from_micros(200);
/// How often the proxy thread looks whether host threads still drive the engine: what a peer may have to wait
/// when this PE goes from waiting to computing. Every look costs whoever has the core a switch of threads, so
/// they become rarer while host threads go on.
const LOOK: Duration = Duration::from_micros(100);
const RAREST_LOOK: Duration = Duration::from_micros(400);
/// On a core on which another thread computes, polling keeps that from running, and its time slices keep us from polling;
/// sleeping does neither, since who is woken may run at once. So where giving way cost a slice ([`SLICE`]; threads that
/// merely wait hand the core back sooner), the thread does not poll idly for a while.
const CONTENDED: Duration = Duration::from_millis(50);
const SLICE: Duration = Duration::from_micros(300);
/// What the thread asks of the scheduler for itself: the shortest it gives.
const SHORT_SLICE: Duration = Duration::from_micros(100);
/// Idle polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 16;
/// The first sleep where no wait object can wake us.
const SHORTEST_NAP: Duration = Duration::from_micros(20);
/// The longest sleep where no wait object can wake us: while something happened not long ago, and otherwise.
const LONGEST_NAP: Duration = Duration::from_micros(100);
const LONGEST_IDLE_NAP: Duration = Duration::from_millis(2);
const NOT_LONG_AGO: Duration = Duration::from_millis(200);
/// The longest sleep otherwise, where host threads use their endpoints, and where they do not: what they have left behind since
/// (see [`Driver::look_after`]) waits as long.
const IN_USE_NAP: Duration = Duration::from_millis(1);
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// Busy rounds between two looks at what host threads have left behind.
const ROUNDS_PER_ERRAND: u32 = 64;

/// The engine and what its drivers share.
pub struct Driver {
    engine: Mutex<Engine>,
    /// Host threads that drive the engine now, and how often any has begun to.
    waiting: AtomicU32,
    turns: AtomicU64,
    polls: AtomicU32,
    stop: AtomicBool,
    /// The proxy thread sleeps, although there is a core to spare.
    asleep: AtomicBool,
    /// The proxy thread sleeps for longer than what is left behind should wait.
    dozes: AtomicBool,
    /// Every rail has a wait object, so that a sleeping proxy thread misses nothing.
    wakes: bool,
    /// Devices whose requests wake nobody.
    watches: AtomicU32,
    bell: EventFd,
    started: Instant,
    errand: OnceLock<Errand>,
}

/// A device's channels under watch; ends when dropped.
pub struct Watch(Arc<Driver>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What [`Driver::look_after`] takes.
type Errand = Box<dyn Fn() -> Left + Send + Sync>;

/// What host threads have left behind, when an errand has been run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Maybe something, and host threads move it themselves so far.
    InUse,
    /// Something that is to be looked at again soon.
    Soon,
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
            wakes,
            watches: AtomicU32::new(0),
            bell,
            started: Instant::now(),
            errand: OnceLock::new(),
        })
    }

    /// The engine. Short uses only: everybody's progress waits for it.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a host thread's turn: it promises to poll until the turn ends.
    #[must_use]
    pub fn wait_turn(&self) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::Acquire);
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.expect_traffic();
        Turn(self)
    }

    /// A host thread communicates: peers may ask for something when it computes again, and should find the proxy thread awake.
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

    /// Wakes the proxy thread: something was handed to the engine that it should look at now.
    pub fn wake(&self) {
        // A full counter means that it is awake already.
        let _ = self.bell.write(1);
    }

    /// Keeps the proxy thread looking at the channels, because a device pushes to them that cannot ring their doorbell: a GPU.
    /// With a core to spare it polls all the while, else it takes the shortest naps.
    #[must_use]
    pub fn watch(self: &Arc<Driver>) -> Watch {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.wake();
        Watch(Arc::clone(self))
    }

    /// Gives the proxy thread something to look after besides the engine, once: it polls what host threads have posted and
    /// left, and says whether some of that is still on its way. Must not block. A second one is ignored.
    pub fn look_after(&self, errand: impl Fn() -> Left + Send + Sync + 'static) {
        let _ = self.errand.set(Box::new(errand));
    }

    /// A host thread leaves something behind that is to go out soon, whatever it does next.
    #[inline]
    pub fn leave_behind(&self) {
        // Either this sees that the proxy thread dozes, or that sees what was left: it says so before it looks.
        fence(Ordering::SeqCst);
        if self.dozes.load(Ordering::Relaxed) && self.dozes.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    fn run_errand(&self) -> Left {
        self.errand.get().map_or(Left::Nothing, |errand| errand())
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

    fn seconds(&self) -> u32 {
        self.started.elapsed().as_secs() as u32
    }
}

/// How the proxy thread behaves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Never sleep.
    pub spin: bool,
    /// Run on this core.
    pub core: Option<usize>,
    /// There are cores enough for the PEs' own threads and their proxy threads.
    pub spare_core: bool,
}

/// A running proxy thread. Dropping it stops and joins the thread.
pub struct Proxy {
    driver: Arc<Driver>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts the proxy thread.
    ///
    /// # Errors
    /// The system has no thread or no event descriptor left.
    pub fn start(engine: Engine, options: Options) -> std::io::Result<Proxy> {
        let driver = Arc::new(Driver::new(engine)?);
        let of_thread = Arc::clone(&driver);
        let thread =
            std::thread::Builder::new().name("symrail-proxy".into()).spawn(move || run(&of_thread, options))?;
        Ok(Proxy { driver, thread: Some(thread) })
    }

    /// The engine and its turns.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.driver.stop.store(true, Ordering::Release);
        self.driver.wake();
        if let Some(thread) = self.thread.take() {
            // The thread has no way to panic that is worth telling a second time.
            let _ = thread.join();
        }
    }
}

/// How long to poll idly.
struct Pace {
    shortest: Duration,
    longest: Duration,
    /// For how long from now on, after something happened, and until when.
    span: Duration,
    until: Instant,
}

impl Pace {
    fn new(spare_core: bool) -> Pace {
        let (shortest, longest) = if spare_core { (POLL, POLL) } else { (SHORT_POLL, LONGEST_SHORT_POLL) };
        Pace { shortest, longest, span: shortest, until: Instant::now() }
    }

    /// Something happened.
    fn go_on(&mut self) {
        self.until = Instant::now() + self.span;
    }

    /// Host threads have driven the engine: what happened to them last counts as seen by the proxy thread.
    fn take_over(&mut self) {
        self.until = Instant::now() + self.shortest;
    }

    /// Something ended a sleep.
    fn wake(&mut self, asleep: Instant) {
        self.span = if asleep.elapsed() < GOOD_SLEEP { (self.span * 2).min(self.longest) } else { self.shortest };
        self.go_on();
    }
}

fn run(driver: &Driver, options: Options) {
    prepare_thread(options);
    let (rail_fds, bells) = {
        let mut engine = driver.engine();
        let bells: Vec<_> = engine.channels().iter().map(|c| Arc::clone(c.doorbell())).collect();
        (engine.endpoint().wait_fds(), bells)
    };
    let mut pace = Pace::new(options.spare_core);
    let (mut look, mut rounds, mut idle_polls) = (LOOK, 0u32, 0u32);
    let mut nap = SHORTEST_NAP;
    let mut turns_seen = 0;
    let (mut contended, mut contended_until) = (false, pace.until);
    while !driver.stop.load(Ordering::Acquire) {
        let turns = driver.turns.load(Ordering::Relaxed);
        let others_drive = driver.waiting.load(Ordering::Acquire) > 0 || turns != turns_seen;
        turns_seen = turns;
        if others_drive && !options.spin {
            std::thread::sleep(look);
            look = (look * 2).min(RAREST_LOOK);
            pace.take_over();
            continue;
        }
        look = LOOK;
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(ROUNDS_PER_ERRAND) {
            driver.run_errand();
        }
        if driver.try_poll() > 0 {
            pace.go_on();
            nap = SHORTEST_NAP;
            continue;
        }
        idle_polls = idle_polls.wrapping_add(1);
        if options.spin || !(contended || idle_polls.is_multiple_of(POLLS_PER_LOOK)) {
            std::hint::spin_loop();
            continue;
        }
        let now = Instant::now();
        contended = now < contended_until;
        let watching = driver.watches.load(Ordering::Relaxed) > 0;
        if (now < pace.until || (watching && options.spare_core)) && !contended {
            std::thread::yield_now();
            let back = Instant::now();
            if back - now > SLICE {
                (contended, contended_until) = (true, back + CONTENDED);
            }
            continue;
        }
        let may_sleep = match driver.engine.try_lock() {
            Ok(mut engine) => {
                engine.tick(driver.seconds());
                engine.prepare_sleep()
            }
            Err(_) => false,
        };
        if may_sleep {
            driver.dozes.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let longest = match driver.run_errand() {
                _ if watching => SHORTEST_NAP,
                Left::Nothing if rail_fds.is_some() => LONGEST_SLEEP,
                Left::InUse if rail_fds.is_some() => IN_USE_NAP,
                _ => nap,
            };
            driver.dozes.fetch_and(longest > LONGEST_NAP, Ordering::Relaxed);
            let asleep = Instant::now();
            driver.asleep.store(options.spare_core && !contended, Ordering::Relaxed);
            let woken = sleep(driver, rail_fds.as_deref().unwrap_or(&[]), &bells, longest);
            driver.asleep.store(false, Ordering::Relaxed);
            // Who was woken to run an errand has no traffic to expect, and who was not woken finds out by one poll.
            let woken = woken && (driver.dozes.swap(false, Ordering::Relaxed) || longest <= LONGEST_NAP);
            idle_polls = POLLS_PER_LOOK - 1;
            let longest = if asleep - pace.until < NOT_LONG_AGO { LONGEST_NAP } else { LONGEST_IDLE_NAP };
            nap = (nap * 2).min(longest);
            if woken {
                pace.wake(asleep);
            }
        } else {
            std::thread::yield_now();
        }
        driver.engine().wake();
    }
}

/// Sleeps until a descriptor is readable (`true`) or for `longest`.
fn sleep(driver: &Driver, rails: &[RawFd], bells: &[Arc<crate::channel::Doorbell>], longest: Duration) -> bool {
    let mut fds = Vec::with_capacity(rails.len() + bells.len() + 1);
    fds.push(PollFd::new(driver.bell.as_fd(), PollFlags::POLLIN));
    fds.extend(bells.iter().map(|b| PollFd::new(b.fd(), PollFlags::POLLIN)));
    fds.extend(rails.iter().map(|&fd| {
        // SAFETY: the rails belong to the engine, which lives as long as the driver.
        PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::POLLIN)
    }));
    // Interrupted or out of memory: then this was a short sleep.
    let woken = ppoll(&mut fds, Some(TimeSpec::from(longest)), None).is_ok_and(|ready| ready > 0);
    // Nothing to read is the usual case.
    let _ = driver.bell.read();
    woken
}

fn prepare_thread(options: Options) {
    // Short sleeps are meant: the default slack of 50 µs would double them. A refusal only costs precision.
    // SAFETY: takes numbers, touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64, 0_u64, 0_u64, 0_u64) };
    ask_for_short_slices();
    let Some(core) = options.core else { return };
    let mut set = nix::sched::CpuSet::new();
    if let Err(error) = set.set(core).and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set))
    {
        tracing::warn!(core, %error, "the proxy thread stays where the scheduler puts it");
    }
}

/// Asks for the shortest time slices: who has a shorter slice than the thread that computes on its core interrupts it when
/// woken, instead of waiting for the end of its slice (sched(7), Linux 6.12 and later; no other kernel is told anything by it).
fn ask_for_short_slices() {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel fills at most `size` bytes of what it is given, and all bytes of it are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: as above; thread 0 is this one, and the structure lives through the call.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if known && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SHORT_SLICE.as_nanos() as u64;
        // SAFETY: the kernel reads a structure that lives through the call. A refusal only costs latency.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw mut attributes, 0) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use symrail_transport::endpoint::{Endpoint, Policy, Role};
    use symrail_transport::env::Settings;
    use symrail_transport::mock::{Fabric, Mischief};

    use super::*;

    fn wait_until(done: impl Fn() -> bool) -> Duration {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain");
            std::thread::yield_now();
        }
        begun.elapsed()
    }

    #[test]
    fn with_a_core_to_spare_the_thread_polls_when_there_is_traffic() {
        let rail = Fabric::new(1, Mischief::default()).open("rail").unwrap();
        let policy = Policy::new(&Settings::default(), false);
        let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], policy).unwrap();
        let options = Options { spare_core: true, ..Options::default() };
        let proxy = Proxy::start(Engine::new(endpoint, 0, 1), options).unwrap();
        let driver = proxy.driver();
        let asleep = || driver.asleep.load(Ordering::Relaxed);
        let mut awake: Vec<_> = (0..9)
            .map(|_| {
                wait_until(asleep);
                driver.expect_traffic();
                wait_until(asleep)
            })
            .collect();
        awake.sort();
        // Else it is soon asleep again.
        assert!(awake[4] > POLL / 2, "{awake:?}");
    }
}
