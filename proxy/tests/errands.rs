//! The proxy thread looks after what host threads have left behind, whether it sleeps or always polls.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail_proxy::{Engine, Left, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, Mischief};

const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy thread, what it has been asked to do, and how often it has done so.
fn proxy(options: Options) -> (Proxy, Arc<AtomicU64>, Arc<AtomicBool>) {
    let rail = Fabric::new(1, Mischief::default()).open("rail").unwrap();
    let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
    let proxy = Proxy::start(Engine::new(endpoint, 0, 1), options).unwrap();
    let (count, more) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counts, asks) = (Arc::clone(&count), Arc::clone(&more));
    proxy.driver().look_after(move || {
        counts.fetch_add(1, Ordering::Relaxed);
        if asks.load(Ordering::Relaxed) { Left::Soon } else { Left::Nothing }
    });
    (proxy, count, more)
}

/// How often the errand is run within this long.
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
        // Between two naps, which are of 2 ms at most; not only every so many rounds.
        let begun = Instant::now();
        while runs(&count, Duration::from_millis(500)) < 20 {
            assert!(begun.elapsed() < PATIENCE, "{options:?}");
        }
    }
}

#[test]
fn what_was_left_behind_ends_a_long_absence() {
    let (proxy, count, _) = proxy(Options::default());
    let turn = proxy.driver().wait_turn();
    // Who has found one at it several times in a row looks every 2 ms; being told makes it look at once.
    let times = (0..200).map(|_| {
        runs(&count, Duration::from_millis(3));
        let (begun, before) = (Instant::now(), count.load(Ordering::Relaxed));
        proxy.driver().leave_behind();
        while count.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        begun.elapsed()
    });
    let mut all: Vec<_> = times.collect();
    all.sort();
    assert!(all[100] < Duration::from_micros(700), "{all:?}");
    drop(turn);
}
