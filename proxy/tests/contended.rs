//! On a core that another thread computes on, the proxy thread does not alternate with it. It sleeps, and each request
//! wakes it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use symrail_proxy::channel::{Channel, ChannelMemory, Doorbell, Producer, Refused, Request};
use symrail_proxy::{Engine, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};

const ROUNDS: u64 = 60;
const PAUSE: Duration = Duration::from_millis(1);
const TIME_LIMIT: Duration = Duration::from_secs(30);

fn bind_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).unwrap();
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

/// The proxy thread on `core`, configured as on a machine with spare cores, and a channel to it.
fn proxy(core: usize) -> (Proxy, Producer) {
    let rail = Fabric::new(1, FabricConfig::default()).open("rail").unwrap();
    let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
    let mut engine = Engine::new(endpoint);
    let (producer, consumer) =
        Channel::over(ChannelMemory::new(16, 1).unwrap(), Arc::new(Doorbell::new().unwrap())).unwrap();
    engine.add_channel(consumer);
    let options = Options { core: Some(core), spare_core: true, ..Options::default() };
    (Proxy::start(engine, options).unwrap(), producer)
}

fn until(done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TIME_LIMIT, "waited in vain");
        std::thread::yield_now();
    }
}

#[test]
fn a_contended_proxy_thread_sleeps_and_is_woken_by_requests() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap()).collect();
    let &[core, here, ..] = &cores[..] else {
        println!("SKIPPED: two cores are needed, one for who asks");
        return;
    };
    let stop = AtomicBool::new(false);
    let (proxy, producer) = proxy(core);
    let woken = std::thread::scope(|scope| {
        scope.spawn(|| {
            bind_to(core);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let asking = scope.spawn(|| {
            bind_to(here);
            let before = proxy.driver().woken();
            for _ in 0..ROUNDS {
                std::thread::sleep(PAUSE); // the next request finds it asleep, or polling in the other's slice
                let position = producer.push::<Refused>(&Request::Nop, || Ok(())).unwrap();
                until(|| producer.completed() > position);
            }
            stop.store(true, Ordering::Relaxed);
            proxy.driver().woken() - before
        });
        asking.join().unwrap()
    });
    // With spare cores it would poll for 5 ms behind each request, and few requests would wake it.
    println!("{woken} of {ROUNDS} requests woke it");
    assert!(woken >= ROUNDS / 8, "{woken} of {ROUNDS} requests woke it");
}
