//! Another user of the host gains no access, is reported, at a limited rate, and does not disturb the job. The same
//! holds for access through the ports of its rails, by libfabric as peers use it.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use symrail_tests::job::{Outcome, pe};
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, SHM};

/// The least time between the service's reports of foreign connections.
const TELLS_EVERY_S: usize = 10;

/// The lines that begin with `name`, as numbers.
fn numbers(outcome: &Outcome, name: &str) -> Vec<u64> {
    outcome.out.lines().filter_map(|line| line.strip_prefix(name)?.parse().ok()).collect()
}

fn strange(path: Path, at_least: usize) -> Outcome {
    let outcome = path.of_command(pe("stranger"), &[], Duration::from_secs(60));
    let number =
        |name: &str| outcome.out.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse::<usize>().unwrap();
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    // The paths that the job's own user can open show that there was something to refuse.
    assert!(number("ours: ") >= at_least && number("refused: ") >= number("ours: "), "{outcome:#?}");
    assert!(!outcome.out.contains("opened: "), "{outcome:#?}");
    let warnings = outcome.err.matches("rendezvous: dropped a connection").count();
    let most = 1 + outcome.elapsed.as_secs() as usize / TELLS_EVERY_S;
    assert!((1..=most).contains(&warnings), "{warnings} times: {outcome:#?}");
    outcome
}

#[test]
fn another_user_opens_nothing_floods_in_vain_and_is_told_of_once() {
    // SAFETY: takes no arguments and accesses no memory.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: to be another user for a while, a test has to be started by root");
        return;
    }
    // For each process: memory, environment, map; standard streams; heap.
    let mapped = strange(MAPPED, 14);
    let listens: Vec<_> = mapped.out.lines().filter_map(|line| line.strip_prefix("listens: ")).collect();
    assert!(listens.iter().all(|at| at.starts_with("127.")), "somebody on the network gets there: {mapped:#?}");
    let one_rail = strange(ONE_RAIL, 14);
    assert_eq!(one_rail.out.matches("listens: 127.0.0.2:").count(), 4, "{one_rail:#?}");
    assert_eq!(numbers(&one_rail, "reached: "), [0], "{one_rail:#?}");
    let (sent, dropped) = (numbers(&one_rail, "messages: ")[0], numbers(&one_rail, "dropped: ").iter().sum::<u64>());
    assert!(sent > 4 * 100 && dropped >= sent, "{dropped} of {sent} were dropped: {one_rail:#?}");
    // Once by each endpoint, and in total at its end.
    for warning in ["dropped a message that is not of this job", "dropped in all: messages"] {
        assert!((1..=4).contains(&one_rail.err.matches(warning).count()), "{warning}: {one_rail:#?}");
    }
    strange(SHM, 16);
}
