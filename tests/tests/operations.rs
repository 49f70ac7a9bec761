//! Every operation, on every path from PE to PE.

use symrail_tests::job::Job;
use symrail_tests::path::{
    MAPPED, NET, ONE_RAIL, Path, ROUND_ROBIN, SHM, SOCKETS, STAGED_SHM, STAGED_TCP, STAGED_THREADS, STRIPED,
    TWO_THREADS, mapped_by_movers,
};

/// The paths on which all operations run, with 2 PEs.
fn every_operation(path: Path, plan: &str) {
    succeed(path.of(Job::new("ops"), 2), path.name, plan);
}

/// One path of each kind with 3 PEs, of which two share a host. Each has run with all sizes between two PEs.
#[test]
fn three_pes_of_which_two_share_a_host() {
    for path in [MAPPED, ROUND_ROBIN, SHM, STAGED_TCP] {
        succeed(path.of(Job::new("ops"), 3), path.name, "small");
    }
}

fn succeed(job: Job, name: &str, plan: &str) {
    let outcome = job.args([plan]).limit(120).succeed();
    println!("{name}: {:?}", outcome.elapsed);
}

#[test]
fn mapped() {
    every_operation(MAPPED, "full");
}

#[test]
fn tcp_one_rail() {
    every_operation(ONE_RAIL, "full");
}

#[test]
fn tcp_two_rails_in_turn() {
    every_operation(ROUND_ROBIN, "full");
}

#[test]
fn tcp_two_proxy_threads() {
    every_operation(TWO_THREADS, "small");
}

#[test]
fn tcp_two_rails_striped() {
    every_operation(STRIPED, "full");
}

#[test]
fn shm() {
    every_operation(SHM, "full");
}

#[test]
fn heaps_that_nobody_can_touch_over_tcp() {
    every_operation(STAGED_TCP, "full");
}

#[test]
fn heaps_that_nobody_can_touch_by_two_proxy_threads() {
    every_operation(STAGED_THREADS, "small");
}

#[test]
fn heaps_that_nobody_can_touch_over_shm() {
    every_operation(STAGED_SHM, "full");
}

/// On one host copy engines map them and copy between them, as GPUs do.
#[test]
fn heaps_that_nobody_can_touch_but_movers_of_peers() {
    for (pes, plan) in [(2, "full"), (3, "small")] {
        succeed(mapped_by_movers(Job::new("ops"), pes), "mapped by movers", plan);
    }
}

#[test]
fn net() {
    every_operation(NET, "full");
}

#[test]
fn sockets() {
    every_operation(SOCKETS, "tiny");
}
