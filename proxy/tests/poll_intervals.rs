//! While a host thread waits, the proxy thread leaves the engine to it and only checks, ever more rarely, whether it
//! still drives. There is only one test, since it looks up the only proxy thread of its process.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use symrail_proxy::{Engine, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, FabricConfig};

const TIME_LIMIT: Duration = Duration::from_secs(30);
const LOOKS: u64 = 100;
/// The time between two checks, after the first few.
const RAREST: Duration = Duration::from_millis(2);

/// This process's proxy threads.
fn proxies() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| Some(task.ok()?.path()));
    tasks
        .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "symrail-proxy"))
        .collect()
}

/// The number of a thread's sleeps so far.
fn sleeps(task: &Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < TIME_LIMIT, "{what}: waited in vain");
        std::thread::yield_now();
    }
}

fn start(spare_core: bool) -> Proxy {
    let rail = Fabric::new(1, FabricConfig::default()).open("rail").unwrap();
    let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
    Proxy::start(Engine::new(endpoint), Options { spare_core, ..Options::default() }).unwrap()
}

fn a_waiting_thread_has_the_engine_to_itself(proxy: &Proxy, task: &Path) {
    let rounds = || proxy.driver().engine().rounds();
    let turn = proxy.driver().wait_turn();
    let before = sleeps(task);
    until("it notices that it need not", || sleeps(task) > before + 5);
    let (polled, slept, since) = (rounds(), sleeps(task), Instant::now());
    until("it looks now and then", || sleeps(task) >= slept + LOOKS);
    assert!(since.elapsed() >= RAREST * (LOOKS as u32 * 9 / 10), "{LOOKS} looks within {:?}", since.elapsed());
    assert_eq!(rounds(), polled, "it has polled although somebody else does");

    drop(turn);
    until("it takes over", || rounds() > polled);
}

/// A PE that mostly computes should not make peers wait for long.
fn threads_that_wait_now_and_then_are_checked_more_often(proxy: &Proxy, task: &Path) {
    let ten_looks = || {
        let (slept, since) = (sleeps(task), Instant::now());
        until("it looks now and then", || {
            drop(proxy.driver().wait_turn());
            sleeps(task) >= slept + 10
        });
        since.elapsed()
    };
    // Other processes may have the core most of the time. Rare checks are never as close to one another.
    until("ten looks that are close to one another", || ten_looks() < RAREST * 10 / 2);
}

#[test]
fn looks_are_as_rare_as_they_may_be() {
    for spare_core in [false, true] {
        let proxy = start(spare_core);
        until("the thread polls", || proxy.driver().engine().rounds() > 0);
        until("its predecessor is gone", || proxies().len() == 1);
        let task = proxies().remove(0);
        a_waiting_thread_has_the_engine_to_itself(&proxy, &task);
        threads_that_wait_now_and_then_are_checked_more_often(&proxy, &task);
    }
}
