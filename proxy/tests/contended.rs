//! On a core that another thread computes on, the proxy thread does not take turns with it: it sleeps, and is woken at once.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::Pid;
use std::os::fd::AsFd;
use symrail_proxy::channel::{Channel, ChannelMemory, Doorbell, Producer, Refused, Request};
use symrail_proxy::{Engine, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, Mischief};

const ROUNDS: usize = 60;
const PAUSE: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(30);

fn bind_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).unwrap();
    sched_setaffinity(Pid::from_raw(0), &set).unwrap();
}

/// The proxy thread on `core`, as on a machine that has cores to spare, and a channel to it.
fn proxy(core: usize) -> (Proxy, Producer) {
    let rail = Fabric::new(1, Mischief::default()).open("rail").unwrap();
    let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
    let mut engine = Engine::new(endpoint, 0, 1);
    let (producer, consumer) =
        Channel::over(ChannelMemory::new(16, 1).unwrap(), Arc::new(Doorbell::new().unwrap())).unwrap();
    engine.add_channel(consumer);
    let options = Options { core: Some(core), spare_core: true, ..Options::default() };
    (Proxy::start(engine, options).unwrap(), producer)
}

fn until(done: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain");
        std::thread::yield_now();
    }
    begun.elapsed()
}

#[test]
fn a_contended_proxy_thread_answers_as_soon_as_any_sleeper() {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap()).collect();
    let &[core, here, ..] = &cores[..] else {
        println!("SKIPPED: two cores are needed, one for who asks");
        return;
    };
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
    let (_proxy, producer) = proxy(core);
    let (mut of_proxy, mut of_sleeper) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind_to(core);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        scope.spawn(|| {
            bind_to(core);
            while !stop.load(Ordering::Relaxed) {
                poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::from(20u8)).unwrap();
                if bell.read().is_ok() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| {
            bind_to(here);
            for round in 1..=ROUNDS as u64 {
                std::thread::sleep(PAUSE); // what comes next finds both asleep, or in their turn
                let position = producer.push::<Refused>(&Request::Nop, || Ok(())).unwrap();
                of_proxy.push(until(|| producer.completed() > position));
                bell.write(1).unwrap();
                of_sleeper.push(until(|| answered.load(Ordering::Relaxed) == round));
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
    let [proxy, sleeper] = [&mut of_proxy, &mut of_sleeper].map(|times| {
        times.sort();
        times[ROUNDS / 2]
    });
    println!("medians: the proxy thread {proxy:?}, another that sleeps {sleeper:?}");
    assert!(proxy < 4 * sleeper + Duration::from_micros(200), "{proxy:?} against {sleeper:?}");
}
