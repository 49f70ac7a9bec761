//! Joining, working and leaving in one process leaves nothing behind. `SYMRAIL_TEST_ROUNDS=1000` for a long run.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use symrail_tests::job::{Job, pe};
use symrail_tests::path::{MAPPED, ROUND_ROBIN};

#[test]
fn memory_descriptors_and_threads_do_not_grow() {
    let rounds: u64 = std::env::var("SYMRAIL_TEST_ROUNDS").map_or(40, |text| text.parse().unwrap());
    for path in [MAPPED, ROUND_ROBIN] {
        // With several arenas the allocator keeps varying amounts of free memory.
        let job = Job::new("rejoin").env("MALLOC_ARENA_MAX", "1").env("MALLOC_TRIM_THRESHOLD_", "0");
        let outcome = path.of(job, 2).args([rounds]).limit(60 + rounds).succeed();
        let figures = |name: &str| -> Vec<i64> {
            outcome.out.lines().filter_map(|line| line.strip_prefix(name)).map(|n| n.trim().parse().unwrap()).collect()
        };
        let grown = figures("grown:");
        println!("{}: {rounds} rounds, grown by {grown:?} KiB", path.name);
        assert!(grown.len() == 2 && grown.iter().all(|&kib| kib < 2048), "{}: grown by {grown:?} KiB", path.name);
        assert_eq!((figures("fds:"), figures("threads:")), (vec![0, 0], vec![0, 0]), "{}", path.name);
    }
}

#[test]
fn a_process_is_in_several_jobs_at_once() {
    for path in [MAPPED, ROUND_ROBIN] {
        let command = pe("several");
        let outcome = path.of_command(command, &[("SYMRAIL_HEAP_SIZE", "8M")], Duration::from_secs(60));
        assert_eq!(outcome.code, Some(0), "{}: {outcome:#?}", path.name);
    }
}
