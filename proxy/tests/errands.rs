//! The proxy thread looks after what host threads have left behind, busy or idle.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail_proxy::channel::{Channel, Producer, PushError, Request};
use symrail_proxy::{Engine, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, Mischief};

const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy thread, what it has been asked to do, and how often it has done so.
fn proxy(options: Options) -> (Proxy, Producer, Arc<AtomicU64>, Arc<AtomicBool>) {
    let rail = Fabric::new(1, Mischief::default()).open("rail").unwrap();
    let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
    let mut engine = Engine::new(endpoint, 0, 1);
    let (producer, consumer) = Channel::new(64, 0).unwrap();
    engine.add_channel(consumer);
    let proxy = Proxy::start(engine, options).unwrap();
    let (count, more) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counts, asks) = (Arc::clone(&count), Arc::clone(&more));
    proxy.driver().look_after(move || {
        counts.fetch_add(1, Ordering::Relaxed);
        asks.load(Ordering::Relaxed)
    });
    (proxy, producer, count, more)
}

/// How often the errand is run while `meanwhile` is called again and again for this long.
fn runs(count: &AtomicU64, span: Duration, mut meanwhile: impl FnMut()) -> u64 {
    let (begun, before) = (Instant::now(), count.load(Ordering::Relaxed));
    while begun.elapsed() < span {
        meanwhile();
    }
    count.load(Ordering::Relaxed) - before
}

#[test]
fn while_idle() {
    for options in [Options::default(), Options { spin: true, ..Options::default() }] {
        let (_proxy, _producer, count, more) = proxy(options);
        more.store(true, Ordering::Relaxed);
        // Between two naps, which are of 2 ms at most; not only every so many rounds.
        let begun = Instant::now();
        while runs(&count, Duration::from_millis(500), std::thread::yield_now) < 20 {
            assert!(begun.elapsed() < PATIENCE, "{options:?}");
        }
    }
}

#[test]
fn while_busy() {
    let (_proxy, producer, count, _more) = proxy(Options::default());
    // There is always a request to take, so that the thread never comes to rest.
    let busy = || {
        while !matches!(producer.try_push(&Request::Nop), Err(PushError::Full { .. })) {}
    };
    let begun = Instant::now();
    while runs(&count, Duration::from_millis(20), busy) == 0 {
        assert!(begun.elapsed() < PATIENCE, "never while requests came");
    }
}
