//! Barriers of devices, of all PEs and of teams, go host by host.
#![allow(clippy::unwrap_used)]

use symrail_tests::job::Job;
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN, SHM};

/// More than the few requests besides, so that one request more a round shows.
const ROUNDS: u64 = 100;

/// Runs barriers of `pes` devices on `hosts` hosts. A barrier may cost all of them together this many requests: one a
/// round for each host.
fn barriers(path: Path, pes: u32, hosts: u32, requests: &[(&str, u64)]) {
    let job = path.of(Job::new("barriers"), pes).hosts(hosts).args([ROUNDS]);
    let outcome = job.succeed();
    println!("{}, {pes} PEs on {hosts} hosts: {:?}", path.name, outcome.elapsed);
    for (name, requests) in requests {
        let of_this = outcome.out.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let all: u64 = of_this.map(|count| count.parse::<u64>().unwrap()).sum();
        // Each team exists twice. A few requests concern the lanes themselves.
        let expected = requests * ROUNDS * if *name == "all" { 1 } else { 2 };
        assert!(
            (expected..=expected + 40).contains(&all),
            "{name}: {all} requests, {expected} expected\n{}",
            outcome.out
        );
    }
}

#[test]
fn mapped() {
    barriers(MAPPED, 4, 1, &[("all", 0), ("reversed", 0), ("even", 0), ("odd", 0)]);
}

#[test]
fn four_on_two_hosts() {
    for path in [ONE_RAIL, SHM] {
        barriers(path, 4, 2, &[("all", 2), ("reversed", 2), ("even", 2), ("odd", 2)]);
    }
}

#[test]
fn five_on_two_hosts() {
    barriers(ROUND_ROBIN, 5, 2, &[("all", 2), ("reversed", 2), ("even", 2), ("odd", 2)]);
}

#[test]
fn five_on_three_hosts() {
    barriers(ONE_RAIL, 5, 3, &[("all", 6), ("even", 6)]);
}

#[test]
fn each_pe_on_a_host_of_its_own() {
    barriers(ROUND_ROBIN, 4, 4, &[("all", 8), ("reversed", 8), ("even", 2), ("odd", 2)]);
}
