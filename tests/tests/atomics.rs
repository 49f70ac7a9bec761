//! All concurrent changes of a word are atomic with one another, on every path.

use symrail_tests::job::Job;
use symrail_tests::path::{MAPPED, ONE_RAIL, ROUND_ROBIN, SHM, TWO_THREADS};

/// Four PEs on two hosts: the words' own PE, one that has them mapped, two over the wire; each with two host threads
/// and a device of two threads.
fn hammer() -> Job {
    Job::new("hammer").limit(90)
}

#[test]
fn mapped() {
    MAPPED.of(hammer(), 3).args([3000]).succeed();
}

#[test]
fn wire_and_mapped_and_own_and_devices() {
    ONE_RAIL.of(hammer(), 4).args([300]).succeed();
}

#[test]
fn two_rails() {
    ROUND_ROBIN.of(hammer(), 4).args([300]).succeed();
}

/// The two threads of each device send requests to two agents.
#[test]
fn two_proxy_threads() {
    TWO_THREADS.of(hammer(), 4).args([300]).succeed();
}

#[test]
fn shm() {
    SHM.of(hammer(), 4).args([300]).succeed();
}

#[test]
fn by_the_provider() {
    ONE_RAIL.of(hammer(), 4).args([150]).env("SYMRAIL_AMO_PATH", "native").succeed();
}

/// The native path supports everything that the other does.
#[test]
fn every_operation_with_atomics_by_the_provider() {
    for path in [ONE_RAIL, ROUND_ROBIN] {
        path.of(Job::new("ops"), 3).args(["small"]).env("SYMRAIL_AMO_PATH", "native").succeed();
    }
}
