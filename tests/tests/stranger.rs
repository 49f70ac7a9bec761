//! Another user of the host gets nowhere, is heard of, but not all the time, and does not disturb the job.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use symrail_tests::job::built;
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, SHM};

/// How often the service tells of strangers at most.
const TELLS_EVERY_S: usize = 10;

fn strange(path: Path, at_least: usize) {
    let outcome = path.of_command(Command::new(built("pe_stranger")), &[], Duration::from_secs(60));
    let number =
        |name: &str| outcome.out.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse::<usize>().unwrap();
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    // What the job's own user can open shows that there was something to be refused.
    assert!(number("ours: ") >= at_least && number("refused: ") >= number("ours: "), "{outcome:#?}");
    assert!(!outcome.out.contains("opened: "), "{outcome:#?}");
    let told = outcome.err.matches("rendezvous: dropped a connection").count();
    let most = 1 + outcome.elapsed.as_secs() as usize / TELLS_EVERY_S;
    assert!((1..=most).contains(&told), "{told} times: {outcome:#?}");
}

#[test]
fn another_user_opens_nothing_floods_in_vain_and_is_told_of_once() {
    // SAFETY: takes and touches nothing.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: to be another user for a while, a test has to be started by root");
        return;
    }
    // Of each process: memory, environment, map; standard streams; heap.
    strange(MAPPED, 14);
    strange(ONE_RAIL, 14);
    strange(SHM, 16);
}
