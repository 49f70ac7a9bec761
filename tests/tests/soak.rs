//! Everything at once for a while. `SYMRAIL_TEST_SECONDS=1800` for a long run.
#![allow(clippy::unwrap_used)]

use symrail_tests::job::Job;
use symrail_tests::path::FOUR_IN_TURN;

/// Memory that `ofi_rxm` allocates, once, for messages over a lane that was not used before, in KiB: on a busy machine
/// a peer may take two seconds to answer, and waiting operations move to another lane.
const LANE: f64 = 6.0 * 1024.0;

#[test]
fn eight_pes_over_four_rails_lose_nothing_and_do_not_grow() {
    let seconds: u64 = std::env::var("SYMRAIL_TEST_SECONDS").map_or(10, |text| text.parse().unwrap());
    let job = Job::new("soak").env("MALLOC_ARENA_MAX", "1").env("SYMRAIL_DISABLE_P2P", "1").args([seconds]);
    let outcome = FOUR_IN_TURN.of(job, 8).limit(60 + 2 * seconds).succeed();
    let lines = |name: &'static str| outcome.out.lines().filter_map(move |line| line.strip_prefix(name));
    let rounds: u64 = lines("rounds:").next().unwrap().trim().parse().unwrap();
    println!("{rounds} rounds in {seconds} s");
    assert!(rounds >= seconds, "{rounds} rounds in {seconds} s");
    let memory: Vec<Vec<f64>> =
        lines("memory:").map(|line| line.split_whitespace().map(|kib| kib.parse().unwrap()).collect()).collect();
    assert_eq!(memory.len(), 8);
    println!(
        "further lanes of each PE, and its memory after a burst and after each tenth of the time, KiB: {memory:?}"
    );
    for numbers in memory {
        let (lanes, early, late) = (numbers[0], numbers[1], numbers[numbers.len() - 1]);
        // A short run's burst does not use all of the providers' queues.
        let allowed = if seconds < 60 { 1.05 } else { 1.01 };
        assert!(
            late <= allowed * (early + LANE * lanes),
            "grown from {early} to {late} KiB, with {lanes} further lanes"
        );
    }
}
