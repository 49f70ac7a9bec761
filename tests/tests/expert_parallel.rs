//! Expert-parallel dispatch and combine, against references, on every kind of path.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use symrail_tests::job::{Job, pe};
use symrail_tests::path::{EVERY_KIND, MAPPED, ONE_RAIL, Path, ROUND_ROBIN, SHM, SHM_THREADS, STAGED_TCP};

/// Random cases of one kind of call.
fn check(what: &str, path: Path, pes: u32, hosts: u32, cases: u32) {
    let seed = u64::from(pes * 10 + hosts);
    let outcome =
        path.of(Job::new("ep"), pes).hosts(hosts).args([what.to_owned(), cases.to_string(), seed.to_string()]);
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

/// Each case of the table in `pe/ep/named.rs` by both ways: all PEs mapped; none; those of a host.
#[test]
fn named_shapes_equal_the_reference_with_2_3_4_and_8_ranks() {
    for (path, pes, hosts) in [
        (MAPPED, 2, 1),
        (MAPPED, 3, 1),
        (MAPPED, 4, 1),
        (MAPPED, 8, 1),
        (ROUND_ROBIN, 2, 2),
        (SHM_THREADS, 2, 2),
        (ONE_RAIL, 3, 3),
        (ROUND_ROBIN, 4, 4),
        (ONE_RAIL, 8, 8),
        (STAGED_TCP, 2, 2),
        (ONE_RAIL, 3, 2),
        (ROUND_ROBIN, 4, 2),
        (ONE_RAIL, 8, 4),
    ] {
        check("named", path, pes, hosts, 1);
    }
}

#[test]
fn both_ways_are_in_use_at_the_same_time() {
    for (path, pes, hosts, cases) in [(MAPPED, 3, 1, 10), (ROUND_ROBIN, 4, 2, 6), (STAGED_TCP, 2, 2, 3)] {
        check("both", path, pes, hosts, cases);
    }
}

#[test]
fn groups_of_a_job_have_jobs_of_their_own_at_the_same_time() {
    for (path, pes, hosts) in [(MAPPED, 4, 1), (ROUND_ROBIN, 4, 4), (ROUND_ROBIN, 4, 2)] {
        check("groups", path, pes, hosts, 2);
    }
}

#[test]
fn what_cannot_be_done_is_refused_by_name_before_anything_is_sent() {
    for (path, pes, hosts) in [(MAPPED, 3, 1), (ROUND_ROBIN, 3, 3)] {
        check("refuse", path, pes, hosts, 2);
    }
}

/// What low latency through the proxy is to cost: at most one request for a token and a rank, an acknowledgement for a
/// request at most, which is one for eight tokens and usually fewer, and no fence.
#[test]
fn low_latency_takes_few_requests_and_acknowledgements_no_fences_and_nothing_for_masked_ranks() {
    // Of hosts a block for each rank is one request, and of GPUs' kernels each of 16 parts.
    for (what, requests) in [("count", 1.0 / 128.0), ("count-parts", 16.0 / 128.0)] {
        for (path, pes, hosts) in [(ROUND_ROBIN, 2, 2), (ROUND_ROBIN, 3, 3), (SHM, 2, 2), (SHM_THREADS, 2, 2)] {
            let outcome = path.of(Job::new("ep"), pes).hosts(hosts).args([what, "1"]).limit(60).succeed();
            let lines: Vec<_> = outcome.out.lines().filter(|line| line.starts_with("crossings ")).collect();
            assert_eq!(lines.len(), pes as usize, "{outcome:#?}");
            for line in lines {
                let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
                let [crossings, writes, in_messages, acknowledgements, fences] = numbers[..] else { panic!("{line}") };
                let case = format!("{what}, {}, {pes} PEs: {line}", path.name);
                println!("{case}");
                // Barriers may have some besides.
                assert!(writes > 0.0 && writes <= crossings * requests + 4.0, "{case}");
                assert!(writes + in_messages <= crossings, "{case}");
                assert!(acknowledgements <= crossings * requests.max(0.1), "{case}");
                assert_eq!(fences, 0.0, "{case}");
            }
        }
    }
}

#[test]
fn a_token_crosses_once_for_each_host_and_is_spread_there() {
    for (path, pes, hosts) in [(ROUND_ROBIN, 4, 2), (ONE_RAIL, 6, 3), (SHM, 6, 2)] {
        let outcome = path.of(Job::new("ep"), pes).hosts(hosts).args(["cross", "1"]).limit(60).succeed();
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
        let command = pe("ep_slots");
        let outcome = path.of_command(command, &[], Duration::from_secs(30));
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
        println!("{}: {:?}", path.name, outcome.elapsed);
    }
}

#[test]
fn three_ranks_go_on_for_1000_rounds_when_the_fourth_is_killed_in_a_dispatch() {
    for (path, death) in [(MAPPED, "before"), (MAPPED, "mask"), (ROUND_ROBIN, "after"), (ROUND_ROBIN, "mask")] {
        let mut command = pe("ep_lost");
        command.arg(death);
        let outcome = path.of_command(command, &[("SYMRAIL_TIMEOUT_S", "20")], Duration::from_secs(90));
        for pe in 0..3 {
            assert!(outcome.out.contains(&format!("PE {pe} is through")), "{}, {death}: {outcome:#?}", path.name);
        }
        assert_eq!(outcome.code, Some(0), "{}, {death}: {outcome:#?}", path.name);
        println!("{}, {death}: {:?}", path.name, outcome.elapsed);
    }
}

#[test]
fn a_rank_that_dies_in_a_dispatch_is_named_also_where_another_one_hands_its_rows_on() {
    let mut command = pe("ep_lost");
    command.arg("handed-on");
    let outcome = ROUND_ROBIN.of_command(command, &[("SYMRAIL_TIMEOUT_S", "20")], Duration::from_secs(90));
    for pe in 0..3 {
        assert!(outcome.out.contains(&format!("PE {pe} is through")), "{outcome:#?}");
    }
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
}
