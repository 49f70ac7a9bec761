//! No signal is visible before its data, nothing after a fence before what preceded it, and nothing is late after a
//! quiet. Each promise has a control: the same without the protection, which must be observed to fail.

use symrail_tests::job::Job;
use symrail_tests::path::{
    FOUR_BY_TWO, FOUR_IN_TURN, FOUR_STRIPED, NET, ONE_RAIL, Path, ROUND_ROBIN, SHM, STRIPED, TWO_THREADS,
    mapped_by_movers,
};

/// How often PE 1 observed the later write without the earlier one.
fn early(path: Path, what: &str, rounds: u32) -> u32 {
    early_in(path.of(Job::new("order"), 2), path.name, what, rounds)
}

#[allow(clippy::unwrap_used)]
fn early_in(job: Job, name: &str, what: &str, rounds: u32) -> u32 {
    let outcome = job.args([what, &rounds.to_string()]).limit(90).succeed();
    println!("{name}: {what}, {rounds} rounds in {:?}: {}", outcome.elapsed, outcome.out.trim());
    outcome.out.lines().find_map(|line| line.strip_prefix("early: ")).unwrap().parse().unwrap()
}

/// Whether a control fails, which takes some luck: it has several attempts.
fn goes_wrong(attempt: impl Fn() -> u32) -> bool {
    (0..30).any(|_| attempt() > 0)
}

#[test]
fn no_signal_is_early() {
    for path in [ONE_RAIL, ROUND_ROBIN, STRIPED, FOUR_IN_TURN, FOUR_STRIPED, TWO_THREADS, FOUR_BY_TWO, SHM] {
        assert_eq!(early(path, "signals", 10_000), 0, "{}", path.name);
    }
}

#[test]
fn signals_without_protection_are_early() {
    for path in [ROUND_ROBIN, FOUR_STRIPED] {
        assert!(goes_wrong(|| early(path, "signals-unordered", 2_000)), "{}: the control went well", path.name);
    }
}

#[test]
fn nothing_passes_a_fence() {
    for path in [ONE_RAIL, ROUND_ROBIN, STRIPED, FOUR_IN_TURN, TWO_THREADS, SHM] {
        assert_eq!(early(path, "fence", 1_600), 0, "{}", path.name);
    }
}

#[test]
fn what_was_put_before_a_fence_is_got() {
    for path in [ONE_RAIL, ROUND_ROBIN, STRIPED, FOUR_IN_TURN, TWO_THREADS, SHM] {
        assert_eq!(early(path, "fence-get", 1_000), 0, "{}", path.name);
    }
}

#[test]
fn without_a_fence_things_pass() {
    for path in [ROUND_ROBIN, STRIPED] {
        assert!(goes_wrong(|| early(path, "fence-missing", 800)), "{}: the control went well", path.name);
    }
}

/// Copy engines copy the data; signals and values go over the wire.
#[test]
fn copies_between_mapped_heaps_keep_their_order() {
    let early = |what, rounds| early_in(mapped_by_movers(Job::new("order"), 2), "mapped by movers", what, rounds);
    assert_eq!(early("signals", 1_000), 0);
    assert_eq!(early("fence", 400), 0);
    assert!(goes_wrong(|| early("fence-missing", 400)), "the control went well");
}

/// PE 0's findings in PE 1's memory, read without messages; and the cost of a repeated quiet.
#[allow(clippy::unwrap_used)]
fn late(path: Path, what: &str, rounds: u32) -> (u32, f64) {
    let outcome = path.of(Job::new("quiet"), 2).args([what, &rounds.to_string()]).limit(60).succeed();
    println!("{}: {what}, {rounds} rounds in {:?}: {}", path.name, outcome.elapsed, outcome.out.trim());
    let value = |name| outcome.out.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    (value("late: ").parse().unwrap(), value("cost: ").parse().unwrap())
}

#[test]
fn nothing_is_late_after_a_quiet_and_a_second_one_costs_nothing() {
    for path in [ONE_RAIL, ROUND_ROBIN, STRIPED, FOUR_STRIPED, TWO_THREADS, SHM, NET] {
        let (late, cost) = late(path, "quiet", 600);
        assert_eq!(late, 0, "{}", path.name);
        // Over shared memory a put with its quiet is fast, too.
        let limit = if path.name == SHM.name { 0.3 } else { 0.05 };
        assert!(cost < limit, "{}: a repeated quiet takes {cost} of a put and its quiet", path.name);
    }
}

#[test]
fn without_a_quiet_things_are_late() {
    for path in [ONE_RAIL, ROUND_ROBIN] {
        assert!(goes_wrong(|| late(path, "no-quiet", 300).0), "{}: the control went well", path.name);
    }
}
