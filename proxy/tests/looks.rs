//! While a host thread waits, the proxy thread leaves the engine to it and only looks, ever more rarely, whether that is still so.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use symrail_proxy::{Engine, Options, Proxy};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::{Fabric, Mischief};

const PATIENCE: Duration = Duration::from_secs(30);
const LOOKS: u64 = 100;
/// Between two looks, after the first few.
const RAREST: Duration = Duration::from_micros(400);

/// This process's proxy threads.
fn proxies() -> Vec<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| Some(task.ok()?.path()));
    tasks
        .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "symrail-proxy"))
        .collect()
}

/// How often a thread has slept so far.
fn sleeps(task: &Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}: waited in vain");
        std::thread::yield_now();
    }
}

#[test]
fn who_waits_has_the_engine_to_itself() {
    for spare_core in [false, true] {
        let rail = Fabric::new(1, Mischief::default()).open("rail").unwrap();
        let endpoint = Endpoint::new(Role::Proxy, 0, 1, vec![rail], Policy::new(&Settings::default(), false)).unwrap();
        let options = Options { spare_core, ..Options::default() };
        let proxy = Proxy::start(Engine::new(endpoint, 0, 1), options).unwrap();
        let rounds = || proxy.driver().engine().rounds();
        until("the thread polls", || rounds() > 0);
        until("its predecessor is gone", || proxies().len() == 1);
        let task = proxies().remove(0);

        let turn = proxy.driver().wait_turn();
        let before = sleeps(&task);
        until("it notices that it need not", || sleeps(&task) > before + 5);
        let (polled, slept, since) = (rounds(), sleeps(&task), Instant::now());
        until("it looks now and then", || sleeps(&task) >= slept + LOOKS);
        assert!(since.elapsed() >= RAREST * (LOOKS as u32 * 9 / 10), "{LOOKS} looks within {:?}", since.elapsed());
        assert_eq!(rounds(), polled, "it has polled although somebody else does");

        drop(turn);
        until("it takes over", || rounds() > polled);
    }
}
