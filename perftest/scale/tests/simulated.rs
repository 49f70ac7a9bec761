//! Hundreds and thousands of simulated PEs: tests of structure and counters, which are the same in every run.
#![allow(clippy::unwrap_used)]

use symrail_scale::memory::Counting;
use symrail_scale::{Options, Report, Row, Work, join, simulate};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PARTNERS: u32 = 64;

/// Collectives twice: the first ones connect.
fn everything() -> Vec<Work> {
    let (sum, broadcast) = (Work::Sum, Work::Broadcast(1 << 20));
    let first = [Work::Ring, Work::AllToAll(PARTNERS), Work::Team, Work::Barrier, Work::Barrier];
    first.into_iter().chain([sum.clone(), sum, broadcast.clone(), broadcast]).collect()
}

fn simulated(pes: u32, seed: u64, works: &[Work]) -> Report {
    let report = simulate(&Options { seed, ..Options::new(pes, pes / 64) }, works).unwrap();
    for Row { work, failed, .. } in &report.rows {
        assert!(failed.is_empty(), "{work}: {:?}", failed.first());
    }
    report
}

/// The last row of a work.
fn row<'a>(report: &'a Report, work: &Work) -> &'a Row {
    let name = format!("{work:?}");
    report.rows.iter().rfind(|row| row.work == name).unwrap()
}

#[test]
fn messages_grow_with_the_logarithm_and_times_are_near_those_of_their_messages() {
    for (pes, seed) in [(256, 0), (256, 1), (1024, 0)] {
        let report = simulated(pes, seed, &everything());
        let rounds = u64::from(pes.next_power_of_two().trailing_zeros());
        for work in [Work::Barrier, Work::Sum, Work::Broadcast(1 << 20)] {
            let row = row(&report, &work);
            let bound = row.bound.unwrap() as f64;
            assert!(row.took as f64 <= 1.3 * bound, "{pes} PEs, {work:?}: {} ns for {bound}", row.took);
            assert!(row.most_messages <= 3 * rounds, "{pes} PEs, {work:?}: {} messages", row.most_messages);
        }
        assert_eq!(row(&report, &Work::Ring).most_messages, 1);
        assert_eq!(row(&report, &Work::Ring).most_connections, 2);
        let partners = row(&report, &Work::AllToAll(PARTNERS));
        assert!(partners.most_connections <= 2 * PARTNERS, "{}", partners.most_connections);
        assert!(partners.most_messages <= 4 * u64::from(PARTNERS), "{}", partners.most_messages);
    }
}

#[test]
fn a_peer_that_is_never_addressed_costs_64_bytes_at_most() {
    let joined = [256, 1024].map(|pes| simulated(pes, 0, &[]).joined.mean);
    let each = (joined[1] - joined[0]) as f64 / f64::from(1024 - 256);
    // Without the allocator nothing would be counted.
    assert!((16.0..=64.0).contains(&each), "{each} bytes");
}

#[test]
fn a_seed_brings_the_same_run_again() {
    let works = [Work::Team, Work::Barrier, Work::Sum];
    let run = |seed| simulated(128, seed, &works).rows.iter().map(|row| (row.took, row.messages)).collect::<Vec<_>>();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn joining_takes_a_few_messages_of_each_pe_and_less_than_two_seconds() {
    for pes in [256, 1024, 4096] {
        let joining = join(&Options::new(pes, pes / 64), false);
        assert!(joining.failed.is_empty() && joining.stuck == 0, "{:?}, {}", joining.failed.first(), joining.stuck);
        assert!(joining.took < 2_000_000_000, "{} ns", joining.took);
        // A hello and a redirect for each level, and two messages for each step; a PE that runs a relay also has those
        // of 32 children.
        let each = joining.messages / u64::from(pes);
        assert!(each <= 16 + 6 * u64::from(joining.height), "{each} messages a PE");
        assert!(joining.most_messages <= 33 * 16 + u64::from(pes) * 5 / 2, "{} messages", joining.most_messages);
    }
}

#[test]
fn a_pe_that_dies_while_joining_is_named() {
    for (pes, seed) in [(256, 0), (1024, 2), (4096, 0)] {
        let options = Options { seed, ..Options::new(pes, pes / 64) };
        let (healthy, joining) = (join(&options, false), join(&options, true));
        assert_eq!(joining.stuck, 0, "{pes} PEs");
        assert_eq!(joining.failed.len() + joining.dead.len(), pes as usize);
        for (pe, why) in &joining.failed {
            assert!(joining.dead.iter().any(|dead| names(why, *dead)), "PE {pe} of {pes}: {why}");
        }
        // A time-out, and the relays' answers about missing PEs.
        assert!(joining.took <= (options.timeout_s + 2) * 1_000_000_000, "{} ns", joining.took);
        assert!(joining.messages <= 2 * healthy.messages, "{} messages", joining.messages);
    }
}

/// Whether an error names this PE.
fn names(why: &str, pe: u32) -> bool {
    let word = pe.to_string();
    why.contains("PE") && why.split(|c: char| !c.is_ascii_digit()).skip(1).any(|number| number == word)
}

/// Every other PE ends with an error that names a dead PE, or without an error.
fn dead_are_named(works: &[Work], all_fail: bool) {
    let work = works.last().unwrap();
    let options = Options { dies_in: Some(work.clone()), ..Options::new(256, 4) };
    let (healthy, report) = (simulated(256, 0, works), simulate(&options, works).unwrap());
    let (healthy, row) = (row(&healthy, work), row(&report, work));
    assert_eq!(row.dead.len(), 2);
    for (pe, why) in &row.failed {
        assert!(row.dead.iter().any(|dead| names(why, *dead)), "PE {pe}: {why}, and {:?} died", row.dead);
    }
    assert!(!row.failed.is_empty());
    if all_fail {
        assert_eq!(row.failed.len(), 254);
    }
    // Time-outs count started seconds, and are checked four times a second.
    assert!(row.took <= (options.timeout_s + 2) * 1_000_000_000, "{} ns", row.took);
    let most = healthy.messages * 2;
    assert!(row.messages <= most, "{} messages, {most} at most", row.messages);
}

#[test]
fn a_pe_that_dies_in_a_barrier_is_named() {
    dead_are_named(&[Work::Barrier], true);
}

#[test]
fn a_pe_that_dies_while_others_connect_is_named() {
    dead_are_named(&[Work::Ring, Work::AllToAll(PARTNERS)], false);
}
