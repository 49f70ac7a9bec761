//! How many proxy threads PEs have, and that each of them works: see `pe threads`.

use symrail_tests::job::{Job, Outcome};
use symrail_tests::path::{FOUR_BY_TWO, Path, TWO_THREADS};

const THREADS: &str = "SYMRAIL_PROXY_THREADS";

fn work(path: Path, threads: usize, change: impl Fn(Job) -> Job) -> Outcome {
    change(path.of(Job::new("threads"), 2)).args([threads]).succeed()
}

#[test]
fn each_proxy_thread_does_its_share() {
    for path in [TWO_THREADS, FOUR_BY_TWO] {
        work(path, 2, |job| job);
    }
    work(FOUR_BY_TWO, 4, |job| job.env(THREADS, "4"));
}

#[test]
fn all_have_as_many_as_the_pe_that_asks_for_the_fewest() {
    work(FOUR_BY_TWO, 2, |job| job.env_of(1, THREADS, "4"));
    work(FOUR_BY_TWO, 1, |job| job.env_of(0, THREADS, "1"));
    // One PE has another number of rails.
    let job = Job::new("threads").hosts(2).rails(2).args([1]).env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
    job.env(THREADS, "2").env_of(1, "SYMRAIL_NIC_LIST", "127.0.0.2").succeed();
}

#[test]
fn more_than_there_is_use_for_are_not_taken_and_that_is_told() {
    let outcome = work(TWO_THREADS, 2, |job| job.env(THREADS, "7"));
    assert!(outcome.err.contains("7 were asked for, but there are 2 rails"), "{outcome:#?}");
    let outcome = work(TWO_THREADS, 1, |job| job.env("SYMRAIL_PROXY_CHANNELS", "1"));
    assert!(outcome.err.contains("2 were asked for, but SYMRAIL_PROXY_CHANNELS is 1"), "{outcome:#?}");
    let outcome = work(TWO_THREADS, 1, |job| job.env("SYMRAIL_AMO_PATH", "native"));
    assert!(outcome.err.contains("2 were asked for, but one NIC performs all AMOs"), "{outcome:#?}");
}
