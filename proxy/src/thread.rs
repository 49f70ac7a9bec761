//! The proxy thread, and how a waiting host thread takes its place.
//!
//! Some thread must always poll the engine. But polling without events wastes a core, and on a machine with few cores a
//! spinning proxy thread takes the core from the thread that waits for it. So:
//!
//! - While there is traffic the proxy thread polls. After a while without any it sleeps until a rail or a doorbell
//!   wakes it (or, where the provider has no wait object, for a short time that grows).
//! - A waiting host thread calls [`Driver::wait_turn`] and polls the engine itself, so no context switch lies between
//!   the NIC and the waiting thread. Meanwhile the proxy thread only checks at intervals whether that thread still
//!   polls.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::driver::{Driven, Driver, IdleWork};
use crate::engine::Engine;
use crate::poll_backoff::{PassiveInterval, PollBackoff};
use crate::scheduling::prepare_thread;

/// On a core that another thread computes on, the two starve each other: polling keeps that thread from running, and
/// its time slices keep the proxy thread from polling. Sleeping avoids both, since a woken thread may run at once. So
/// when a yield has cost a slice ([`SLICE`]; a merely waiting thread returns the core sooner), the proxy thread does
/// not poll without events for this time.
const CONTENDED: Duration = Duration::from_millis(50);
const SLICE: Duration = Duration::from_micros(300);
/// Polls without an event between two checks of the clock.
const POLLS_PER_CHECK: u32 = 16;
/// The first sleep where no wait object can wake the thread.
const FIRST_TIMED_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep where no wait object can wake the thread: after a recent event, and otherwise.
const LONGEST_TIMED_SLEEP: Duration = Duration::from_micros(100);
const LONGEST_IDLE_SLEEP: Duration = Duration::from_millis(2);
const NOT_LONG_AGO: Duration = Duration::from_millis(200);
/// The longest sleep otherwise: where host threads use their endpoints, and where they do not. Work that they leave
/// behind later (see [`Driver::set_idle_task`]) may wait as long.
const IN_USE_SLEEP: Duration = Duration::from_millis(1);
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// How long the thread leaves the engine to a host thread that starts operations, after one poll. What was started last
/// waits as long if the host thread computes from then on.
const ISSUING: Duration = Duration::from_micros(100);
/// Busy rounds between two runs of the idle task.
const ROUNDS_PER_IDLE_TASK: u32 = 64;

/// The behaviour of the proxy thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Whether it never sleeps.
    pub spin: bool,
    /// The core to run on.
    pub core: Option<usize>,
    /// Whether there are cores enough for the PEs' own threads and their proxy threads.
    pub spare_core: bool,
    /// The thread's number among the PE's proxy threads, from 0.
    pub number: usize,
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
        let name = match options.number {
            0 => "symrail-proxy".into(),
            number => format!("symrail-proxy{number}"),
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&of_thread, options))?;
        Ok(Proxy { driver, thread: Some(thread) })
    }

    /// A proxy without a thread: only waiting threads drive the engine.
    ///
    /// # Errors
    /// The system has no event descriptor left.
    #[cfg(feature = "simulation")]
    pub fn without_thread(engine: Engine) -> std::io::Result<Proxy> {
        Ok(Proxy { driver: Arc::new(Driver::new(engine)?), thread: None })
    }

    /// Lets the thread end, soon after it returns.
    pub fn stop(&self) {
        self.driver.stop.store(true, Ordering::Release);
        self.driver.wake();
    }

    /// Whether the thread has ended.
    #[cfg(test)]
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The driver of the engine.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // The thread's own panic message is enough.
            let _ = thread.join();
        }
    }
}

fn run(driver: &Driver, options: Options) {
    prepare_thread(options.core);
    let (rail_fds, bells) = {
        let mut engine = driver.engine();
        let bells: Vec<_> = engine.channels().iter().map(|c| Arc::clone(c.doorbell())).collect();
        (engine.endpoint().wait_fds(), bells)
    };
    let begun = Instant::now();
    let (mut poll_backoff, mut passive) = (PollBackoff::new(options.spare_core, begun), PassiveInterval::new());
    let (mut rounds, mut idle_polls) = (0u32, 0u32);
    let mut timed = FIRST_TIMED_SLEEP;
    let (mut turns_seen, mut issues_seen) = (0, 0);
    let (mut contended, mut contended_until) = (false, begun);
    while !driver.stop.load(Ordering::Acquire) {
        let driven = driver.driven(&mut turns_seen);
        if driven != Driven::No && !options.spin {
            // The driving host thread polls its own context. This thread polls the other contexts.
            let rarely = driven == Driven::Now && !driver.is_watching();
            driver.dozes.store(rarely && passive.is_long(), Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let left = driver.run_idle_task();
            sleep(driver, &[], &[], passive.next(rarely && left < IdleWork::Soon));
            driver.dozes.store(false, Ordering::Relaxed);
            poll_backoff.take_over(Instant::now());
            continue;
        }
        passive.end();
        if driver.has_issued(&mut issues_seen) && !options.spin {
            driver.try_poll();
            driver.run_idle_task();
            sleep(driver, &[], &[], ISSUING);
            poll_backoff.take_over(Instant::now());
            continue;
        }
        if driver.is_wanted() {
            std::hint::spin_loop();
            continue;
        }
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(ROUNDS_PER_IDLE_TASK) {
            driver.run_idle_task();
        }
        if driver.try_poll() > 0 {
            poll_backoff.go_on(Instant::now());
            timed = FIRST_TIMED_SLEEP;
            continue;
        }
        idle_polls = idle_polls.wrapping_add(1);
        let each = contended && !poll_backoff.slept_in_vain();
        if options.spin || !(each || idle_polls.is_multiple_of(POLLS_PER_CHECK)) {
            std::hint::spin_loop();
            continue;
        }
        let now = Instant::now();
        contended = now < contended_until;
        let watching = driver.is_watching();
        if (poll_backoff.goes_on(now) || (watching && options.spare_core)) && !contended {
            std::thread::yield_now();
            let back = Instant::now();
            if back - now > SLICE {
                (contended, contended_until) = (true, back + CONTENDED);
            }
            continue;
        }
        driver.rest(true);
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
            let longest = match driver.run_idle_task() {
                _ if watching => FIRST_TIMED_SLEEP,
                IdleWork::Nothing if rail_fds.is_some() => LONGEST_SLEEP,
                IdleWork::InUse if rail_fds.is_some() => IN_USE_SLEEP,
                _ => timed,
            };
            driver.dozes.fetch_and(longest > LONGEST_TIMED_SLEEP, Ordering::Relaxed);
            let asleep = Instant::now();
            driver.asleep.store(options.spare_core && !contended, Ordering::Relaxed);
            let woken = sleep(driver, rail_fds.as_deref().unwrap_or(&[]), &bells, longest);
            driver.asleep.store(false, Ordering::Relaxed);
            // A wake-up to run an idle task announces no traffic. Without a wake-up one poll shows whether there is
            // any.
            let woken = woken && (driver.dozes.swap(false, Ordering::Relaxed) || longest <= LONGEST_TIMED_SLEEP);
            let longest =
                if poll_backoff.idle_for(asleep) < NOT_LONG_AGO { LONGEST_TIMED_SLEEP } else { LONGEST_IDLE_SLEEP };
            timed = (timed * 2).min(longest);
            poll_backoff.wake(woken, asleep, Instant::now());
            idle_polls = if poll_backoff.slept_in_vain() { 0 } else { POLLS_PER_CHECK - 1 };
        } else {
            std::thread::yield_now();
        }
        driver.engine().wake();
        driver.rest(false);
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
    driver.woken.fetch_add(woken.into(), Ordering::Relaxed);
    // Nothing to read is the usual case.
    let _ = driver.bell.read();
    woken
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use symrail_transport::endpoint::{Endpoint, Policy, Role};
    use symrail_transport::env::Settings;
    use symrail_transport::mock::{Fabric, FabricConfig};

    use super::*;
    use crate::poll_backoff::POLL;

    fn wait_until(done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain");
            std::thread::yield_now();
        }
    }

    #[test]
    fn with_a_core_to_spare_the_thread_polls_when_there_is_traffic() {
        let rail = Fabric::new(1, FabricConfig::default()).open("rail").unwrap();
        let policy = Policy::new(&Settings::default(), false);
        let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], policy).unwrap();
        let options = Options { spare_core: true, ..Options::default() };
        let proxy = Proxy::start(Engine::new(endpoint), options).unwrap();
        let driver = proxy.driver();
        let asleep = || driver.asleep.load(Ordering::Relaxed);
        let median = || {
            let mut awake: Vec<_> = (0..9)
                .map(|_| {
                    wait_until(asleep);
                    let (begun, woken) = (Instant::now(), driver.woken());
                    driver.expect_traffic();
                    wait_until(|| driver.woken() > woken);
                    wait_until(asleep);
                    begun.elapsed()
                })
                .collect();
            awake.sort();
            awake[4]
        };
        // Else it is soon asleep again, as it is also while other threads want its core.
        assert!((0..20).any(|_| median() > POLL / 2), "it does not poll");
    }
}
