//! Expert-parallel dispatch and combine, against references, on every kind of path.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;
use std::time::Duration;

use symrail_tests::job::{Job, built};
use symrail_tests::path::{EVERY_KIND, MAPPED, ONE_RAIL, Path, ROUND_ROBIN, SHM, STAGED_TCP};

/// Random cases of one kind of call.
fn check(what: &str, path: Path, pes: u32, hosts: u32, cases: u32) {
    let seed = u64::from(pes * 10 + hosts);
    let outcome =
        path.of(Job::new("pe_ep"), pes).hosts(hosts).args([what.to_owned(), cases.to_string(), seed.to_string()]);
    let outcome = outcome.limit(60).succeed();
    println!("{what}, {}, {pes} PEs on {hosts} hosts: {:?}", path.name, outcome.elapsed);
}

fn equals(what: &str) {
    for (path, pes, hosts) in EVERY_KIND {
        check(what, path, pes, hosts, if path.provider.is_none() { 40 } else { 10 });
    }
}

#[test]
fn high_throughput_equals_the_reference() {
    equals("high");
}

#[test]
fn low_latency_equals_the_reference() {
    equals("low");
}

#[test]
fn both_ways_are_in_use_at_the_same_time() {
    for (path, pes, hosts, cases) in [(MAPPED, 3, 1, 10), (ROUND_ROBIN, 4, 2, 6), (STAGED_TCP, 2, 2, 3)] {
        check("both", path, pes, hosts, cases);
    }
}

#[test]
fn what_cannot_be_done_is_refused_by_name_before_anything_is_sent() {
    for (path, pes, hosts) in [(MAPPED, 3, 1), (ROUND_ROBIN, 3, 3)] {
        check("refuse", path, pes, hosts, 2);
    }
}

#[test]
fn a_block_for_each_rank_takes_few_requests_and_acknowledgements_and_masked_ranks_take_none() {
    for (pes, hosts) in [(2, 2), (3, 3)] {
        let job = ROUND_ROBIN.of(Job::new("pe_ep"), pes).hosts(hosts).args(["count", "1"]).limit(60);
        let outcome = job.succeed();
        let lines: Vec<_> = outcome.out.lines().filter(|line| line.starts_with("crossings ")).collect();
        assert_eq!(lines.len(), pes as usize, "{outcome:#?}");
        for line in lines {
            let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [crossings, writes, acknowledgements] = numbers[..] else { panic!("{line}") };
            assert!(writes > 0.0 && writes <= crossings * 0.05, "{line}");
            assert!(acknowledgements <= crossings * 0.05, "{line}");
        }
    }
}

#[test]
fn a_token_crosses_once_for_each_host_and_is_spread_there() {
    for (path, pes, hosts) in [(ROUND_ROBIN, 4, 2), (ONE_RAIL, 6, 3), (SHM, 6, 2)] {
        let outcome = path.of(Job::new("pe_ep"), pes).hosts(hosts).args(["cross", "1"]).limit(60).succeed();
        let lines: Vec<_> = outcome.out.lines().filter(|line| line.starts_with("crossings ")).collect();
        assert_eq!(lines.len(), pes as usize, "{outcome:#?}");
        for line in lines {
            // Tokens with their headers; and returned rows, summed there.
            let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            assert!(numbers.iter().all(|crossings| (1.0..1.1).contains(crossings)), "{}: {line}", path.name);
        }
    }
}

#[test]
fn a_slot_is_used_again_when_its_rail_has_acknowledged_the_block() {
    for path in [ROUND_ROBIN, ONE_RAIL, SHM, STAGED_TCP] {
        let command = Command::new(built("pe_ep_slots"));
        let outcome = path.of_command(command, &[], Duration::from_secs(30));
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
        println!("{}: {:?}", path.name, outcome.elapsed);
    }
}

#[test]
fn three_ranks_go_on_for_1000_rounds_when_the_fourth_is_killed_in_a_dispatch() {
    for (path, death) in [(MAPPED, "before"), (MAPPED, "mask"), (ROUND_ROBIN, "after"), (ROUND_ROBIN, "mask")] {
        let mut command = Command::new(built("pe_ep_lost"));
        command.arg(death);
        let outcome = path.of_command(command, &[("SYMRAIL_TIMEOUT_S", "20")], Duration::from_secs(60));
        for pe in 0..3 {
            assert!(outcome.out.contains(&format!("PE {pe} is through")), "{}, {death}: {outcome:#?}", path.name);
        }
        assert_eq!(outcome.code, Some(0), "{}, {death}: {outcome:#?}", path.name);
        println!("{}, {death}: {:?}", path.name, outcome.elapsed);
    }
}

#[test]
fn a_rank_that_dies_in_a_dispatch_is_named_also_where_another_one_hands_its_rows_on() {
    let mut command = Command::new(built("pe_ep_lost"));
    command.arg("handed-on");
    let outcome = ROUND_ROBIN.of_command(command, &[("SYMRAIL_TIMEOUT_S", "20")], Duration::from_secs(60));
    for pe in 0..3 {
        assert!(outcome.out.contains(&format!("PE {pe} is through")), "{outcome:#?}");
    }
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
}
