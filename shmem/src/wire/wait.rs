//! How a host thread waits, and how it detects that waiting threads share their cores.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use symrail_core::clock;
use symrail_proxy::{Driver, Turn};

use super::WireContext;
use crate::error::{Error, Result};
use crate::interrupt::InterruptPoll;

/// Rounds of polling the host endpoint, of several polls each, before a waiting thread also drives the engine. They
/// take about the time of a round trip, which driving the engine would lengthen; PEs that wait for each other's answers
/// would all wait longer.
const ALONE: u32 = 3;
/// Polls between two checks of the clock, and checks between two of the time-outs.
const POLLS_PER_CHECK: u32 = 16;
const CHECKS_PER_TICK: u32 = 64;
/// How long a thread polls without progress (a few round trips) before it yields, and then how often it yields.
const BEFORE_YIELD: Duration = Duration::from_micros(20);
const BETWEEN_YIELDS: Duration = Duration::from_micros(50);
/// How long a thread waits by polling. After that the proxy thread takes over and the waiting thread sleeps, each time
/// for this part of the time that it has waited. The end of a sleep takes the core from the proxy thread, which matters
/// while the proxy thread moves data.
const BEFORE_SLEEPS: Duration = Duration::from_millis(10);
const PART: u32 = 32;
const LONGEST_SLEEP: Duration = Duration::from_millis(4);
/// A yield that takes at least this long has let another thread run, which soon waited itself.
const OTHERS_RAN: Duration = Duration::from_micros(3);
/// A yield that takes at least this long has let a computing thread run: the core comes back when its time slice is
/// over.
const COMPUTES: Duration = Duration::from_micros(500);
/// Successive yields without another thread's run after which a thread is taken to have its core for itself.
const YIELDS_ALONE: u32 = 32;

/// One host thread's waiting: polls, then yields, then (for memory) sleeps; and counts time-outs.
pub(crate) struct Wait<'a> {
    context: WireContext<'a>,
    /// The driver of the engine that it polls.
    driver: &'a Driver,
    turn: Option<Turn<'a>>,
    polls: u32,
    checks: u32,
    idle_since: Option<Instant>,
    yielded: Option<Instant>,
    /// The thread has begun to sleep; never for a thread that waits for its own operations.
    sleeps: bool,
    may_sleep: bool,
    /// Operations on other contexts must make progress too.
    of_all: bool,
    /// Set after some polling: the check that may end the wait. Waits for memory call the check themselves.
    interrupt_poll: Option<InterruptPoll<'a>>,
}

impl<'a> Wait<'a> {
    /// For a thread that waits for its own operations.
    pub fn for_operations(context: WireContext<'a>) -> Wait<'a> {
        Wait {
            context,
            driver: context.wire().driver(),
            turn: None,
            polls: 0,
            checks: 0,
            idle_since: None,
            yielded: None,
            sleeps: false,
            may_sleep: false,
            of_all: false,
            interrupt_poll: None,
        }
    }

    /// For a thread that waits for an operation that it has handed to a proxy thread's engine.
    pub fn for_engine(context: WireContext<'a>, thread: usize) -> Wait<'a> {
        Wait { driver: &context.wire().drivers[thread], ..Wait::for_operations(context) }
    }

    /// For a thread that waits for memory to change.
    pub fn for_memory(context: WireContext<'a>) -> Wait<'a> {
        // If nothing wakes the proxy thread, the waiting thread had better continue to poll.
        Wait { may_sleep: context.wire().driver().wakes(), of_all: true, ..Wait::for_operations(context) }
    }

    /// Called after the caller's own poll of its endpoint has found nothing: polls the engine, or yields.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn step(&mut self) -> Result<()> {
        if self.polls < ALONE {
            self.polls += 1;
            std::hint::spin_loop();
            return Ok(());
        }
        self.drive();
        if self.polls.is_multiple_of(POLLS_PER_CHECK) { self.ask() } else { Ok(()) }
    }

    /// Waits until a poll of the caller's endpoint returns a value.
    ///
    /// # Errors
    /// Those of the poll, and of [`Wait::step`].
    pub fn until<R>(mut self, mut poll: impl FnMut() -> Result<Option<R>>) -> Result<R> {
        loop {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            self.step()?;
        }
    }

    fn ask(&mut self) -> Result<()> {
        let wire = self.context.wire();
        let interrupt_poll = self.interrupt_poll.get_or_insert_with(|| InterruptPoll::new(wire.interrupt.get()));
        let what = "an operation or a quiet";
        interrupt_poll
            .ended()
            .map_or(Ok(()), |waited| Err(Error::Interrupted { waiting: wire.me, what, waited, missing: Vec::new() }))
    }

    /// Drives the endpoints, or yields. Returns whether there was progress.
    pub fn drive(&mut self) -> bool {
        if self.sleeps {
            let waited = self.idle_since.map_or(BEFORE_SLEEPS, clock::since);
            std::thread::sleep((waited / PART).min(LONGEST_SLEEP));
            // An acknowledgement may be overdue: the lane that has lost it fails only by this clock.
            self.context.tick();
            return self.context.poll_host(true) > 0;
        }
        self.polls = self.polls.wrapping_add(1);
        let checks_clock = self.polls.is_multiple_of(POLLS_PER_CHECK);
        if checks_clock && self.of_all {
            self.context.wire().poll_contexts();
        }
        let turn = self.turn.get_or_insert_with(|| self.driver.wait_turn());
        let moved = turn.poll() + self.context.poll_host(checks_clock) > 0;
        if moved {
            self.idle_since = None;
            return true;
        }
        if checks_clock {
            self.check_clock();
        }
        let cores = &self.context.wire().shared_cores;
        if cores.are_there() {
            cores.yield_now();
        }
        false
    }

    fn check_clock(&mut self) {
        let now = clock::now();
        let idle = now - *self.idle_since.get_or_insert(now);
        self.checks = self.checks.wrapping_add(1);
        if self.checks.is_multiple_of(CHECKS_PER_TICK) {
            self.context.tick();
        }
        if self.may_sleep && idle > BEFORE_SLEEPS {
            self.turn = None;
            self.sleeps = true;
            // No thread drives the engine until the proxy thread has noticed.
            self.driver.wake();
        } else if idle > BEFORE_YIELD && self.yielded.is_none_or(|then| now - then > BETWEEN_YIELDS) {
            self.yielded = Some(self.context.wire().shared_cores.yield_now());
        }
    }
}

/// Whether a PE's waiting threads share cores, as their yields show.
///
/// If waiting PEs share cores, each polls in vain while the PE that it waits for needs the core; a thread that yields
/// after each such poll gets its answer sooner. A thread that has a core for itself, or shares it with computing
/// threads, would only lose by that.
#[derive(Debug, Default)]
pub(super) struct SharedCores {
    shared: AtomicBool,
    /// Successive yields that let no other thread run.
    short: AtomicU32,
}

impl SharedCores {
    /// Whether to yield after each poll without progress.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Yields. Returns the time after it.
    pub fn yield_now(&self) -> Instant {
        let before = clock::now();
        std::thread::yield_now();
        let back = clock::now();
        self.learn(back.saturating_duration_since(before));
        back
    }

    /// Learns from the duration of a yield.
    fn learn(&self, took: Duration) {
        let short = if took < OTHERS_RAN { self.short.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.short.store(short, Ordering::Relaxed);
        let shared = took < COMPUTES && short < YIELDS_ALONE && (self.are_there() || short == 0);
        self.shared.store(shared, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use symrail_transport::mock::FabricConfig;

    use symrail_transport::amo::AmoOp;
    use symrail_transport::endpoint::command::{Command, Signal, Source};

    use super::*;
    use crate::wire::tests::{deaf_world, world};

    #[test]
    fn a_long_wait_for_memory_leaves_the_core_to_others() {
        let world = world(FabricConfig::default());
        // As if arrivals woke the proxy thread, which they do not here.
        let mut wait = Wait { may_sleep: true, ..Wait::for_memory(world.on_wire()) };
        let (begun, mut polls) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_millis(400) {
            wait.drive();
            polls += u32::from(begun.elapsed() > Duration::from_millis(100));
        }
        // Each sleep takes a part of the time waited so far; a polling thread polls thousands of times.
        assert!(polls < 200, "{polls}");
    }

    #[test]
    fn operations_grow_old_while_their_thread_sleeps() {
        let world = deaf_world();
        let signal = Signal { offset: 0, value: 1, op: AmoOp::Add };
        let command = Command::PutSignal { dest: 0, source: Source::Stable(std::ptr::null()), len: 0, signal };
        // SAFETY: no bytes are put.
        let put = unsafe { world.on_wire().track(1, command) }.unwrap();
        let mut wait = Wait { may_sleep: true, ..Wait::for_memory(world.on_wire()) };
        let begun = Instant::now();
        let failed = loop {
            wait.drive();
            if let Some(end) = world.on_wire().take_end(&put) {
                break end.is_err();
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the time-out of a second has not come");
        };
        assert!(failed && wait.sleeps);
    }

    #[test]
    fn a_thread_that_leaves_the_engine_wakes_the_proxy() {
        let world = world(FabricConfig::default());
        let driver = world.on_wire().wire().driver();
        let wait = |done: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !done() {
                assert!(begun.elapsed() < Duration::from_secs(30), "waited in vain");
                std::thread::yield_now();
            }
        };
        for _ in 0..10 {
            let woken = driver.woken();
            let mut waiting = Wait { may_sleep: true, ..Wait::for_memory(world.on_wire()) };
            while !waiting.sleeps {
                waiting.drive();
            }
            let rounds = driver.engine().rounds();
            // The proxy thread does not notice by itself some time later.
            wait(&|| driver.woken() > woken);
            wait(&|| driver.engine().rounds() > rounds);
        }
    }

    #[test]
    fn yields_tell_who_else_runs() {
        let cores = SharedCores::default();
        let micros = Duration::from_micros;
        cores.learn(micros(1));
        assert!(!cores.are_there(), "nobody else ran");
        cores.learn(micros(40));
        assert!(cores.are_there(), "somebody ran, and waited again soon");
        (1..YIELDS_ALONE).for_each(|_| cores.learn(micros(0)));
        assert!(cores.are_there(), "others may just be busy");
        cores.learn(micros(0));
        assert!(!cores.are_there(), "nobody else runs any more");
        cores.learn(micros(40));
        cores.learn(micros(3000));
        assert!(!cores.are_there(), "who ran computes");
    }
}
