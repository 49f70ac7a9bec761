//! Random collectives of random teams: see `pe calls`.
#![allow(clippy::unwrap_used)]

use symrail_tests::job::Job;
use symrail_tests::path::{FOUR_IN_TURN, MAPPED, ONE_RAIL, Path, ROUND_ROBIN, SHM};

/// `SYMRAIL_TEST_SEED=n` begins there, `SYMRAIL_TEST_SEEDS=n` runs more.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_collectives_of_random_teams_are_right() {
    let seeds = number("SYMRAIL_TEST_SEEDS").unwrap_or(4);
    let mut first = number("SYMRAIL_TEST_SEED").unwrap_or(0);
    let paths: [(Path, u32, u32); 9] = [
        (ONE_RAIL, 4, 4),
        (ONE_RAIL, 8, 2),
        (ONE_RAIL, 7, 3),
        (ONE_RAIL, 2, 2),
        (ROUND_ROBIN, 3, 3),
        (ROUND_ROBIN, 6, 2),
        (FOUR_IN_TURN, 5, 2),
        (SHM, 4, 2),
        (MAPPED, 5, 1),
    ];
    for (path, pes, hosts) in paths {
        let outcome = path.of(Job::new("calls"), pes).hosts(hosts).args([first, seeds]).limit(60 + 2 * seeds).run();
        println!("{}, {pes} PEs on {hosts} hosts, seeds from {first}: {:?}", path.name, outcome.elapsed);
        assert!(outcome.code == Some(0), "{}, {pes} PEs on {hosts} hosts, seeds from {first}: {outcome:#?}", path.name);
        first += seeds;
    }
}

#[test]
fn pes_of_a_host_that_cannot_map_each_other_get_them_right_too() {
    let seeds = number("SYMRAIL_TEST_SEEDS").unwrap_or(4);
    let first = number("SYMRAIL_TEST_SEED").unwrap_or(1000);
    for (path, pes, hosts) in [(ONE_RAIL, 5, 2), (ROUND_ROBIN, 4, 2)] {
        let job = path.of(Job::new("calls"), pes).hosts(hosts).limit(60 + 2 * seeds);
        let job = job.args([first.to_string(), seeds.to_string(), "hidden".to_owned()]);
        let outcome = job.succeed();
        println!("{}, {pes} PEs on {hosts} hosts: {:?}", path.name, outcome.elapsed);
    }
}
