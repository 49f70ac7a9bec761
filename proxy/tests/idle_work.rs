//! The proxy thread handles work that host threads have left behind, whether it sleeps or always polls.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail_proxy::{Engine, IdleWork, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};

const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A proxy thread, the number of runs of its idle task, and whether the task finds work.
fn proxy(options: Options) -> (Proxy, Arc<AtomicU64>, Arc<AtomicBool>) {
    let rail = Fabric::new(1, FabricConfig::default()).open("rail").unwrap();
    let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
    let proxy = Proxy::start(Engine::new(endpoint), options).unwrap();
    let (count, more) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counts, asks) = (Arc::clone(&count), Arc::clone(&more));
    proxy.driver().set_idle_task(move || {
        counts.fetch_add(1, Ordering::Relaxed);
        if asks.load(Ordering::Relaxed) { IdleWork::Soon } else { IdleWork::Nothing }
    });
    (proxy, count, more)
}

/// The number of runs of the idle task within this time.
fn runs(count: &AtomicU64, span: Duration) -> u64 {
    let (begun, before) = (Instant::now(), count.load(Ordering::Relaxed));
    while begun.elapsed() < span {
        std::thread::yield_now();
    }
    count.load(Ordering::Relaxed) - before
}

#[test]
fn what_was_left_behind_is_looked_after() {
    for options in [Options::default(), Options { spin: true, ..Options::default() }] {
        let (_proxy, count, more) = proxy(options);
        more.store(true, Ordering::Relaxed);
        // The task runs between two sleeps, which last 2 ms at most, and not only every so many rounds.
        let begun = Instant::now();
        while runs(&count, Duration::from_millis(500)) < 20 {
            assert!(begun.elapsed() < TIME_LIMIT, "{options:?}");
        }
    }
}

/// Waits for a condition, and runs `meanwhile` repeatedly.
fn until(done: impl Fn() -> bool, meanwhile: impl Fn()) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TIME_LIMIT, "waited in vain");
        meanwhile();
        std::thread::yield_now();
    }
}

#[test]
fn what_was_left_behind_ends_a_long_absence() {
    let (proxy, count, _) = proxy(Options::default());
    let driver = proxy.driver();
    let turn = driver.wait_turn();
    // A thread that has found a driving thread several times in a row sleeps for 2 ms each time. Only a wake-up cuts
    // that short.
    for _ in 0..20 {
        let before = driver.woken();
        until(|| driver.woken() > before, || driver.leave_behind());
        let before = count.load(Ordering::Relaxed);
        until(|| count.load(Ordering::Relaxed) > before, || ());
    }
    drop(turn);
}
