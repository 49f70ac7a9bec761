//! PEs that do not do the same at the same time: see `pe apart`.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use symrail_tests::job::Job;
use symrail_tests::path::{MAPPED, ONE_RAIL};

fn apart() -> Job {
    Job::new("apart")
}

#[test]
fn calls_that_differ_are_told_to_all() {
    for path in [MAPPED, ONE_RAIL] {
        path.of(apart(), 2).env("SYMRAIL_CHECK_COLLECTIVES", "1").args(["differ"]).limit(30).succeed();
    }
}

#[test]
fn pes_that_wait_in_different_teams_are_told() {
    for path in [MAPPED, ONE_RAIL] {
        let job = path.of(apart(), 3).env("SYMRAIL_CHECK_COLLECTIVES", "1").env("SYMRAIL_TIMEOUT_S", "5");
        let outcome = job.args(["teams"]).limit(60).succeed();
        let line_of = |pe: u32| outcome.out.lines().find(|line| line.starts_with(&format!("PE {pe}: "))).unwrap();
        assert!((0..3).all(|pe| line_of(pe).contains("barrier_all")), "{outcome:#?}");
        assert!((0..3).all(|pe| line_of(pe).contains("sync in a team of 2 PEs, 0 to 1")), "{outcome:#?}");
    }
}

#[test]
fn threads_that_take_memory_at_once_neither_hang_nor_share_it() {
    let job = MAPPED.of(apart(), 2).args(["threads"]).limit(30);
    job.clone().succeed();
    job.env("SYMRAIL_CHECK_COLLECTIVES", "1").succeed();
}

#[test]
fn a_late_pe_is_waited_for_and_named() {
    for (path, joins_late) in [(MAPPED, "join"), (ONE_RAIL, "")] {
        let outcome = path.of(apart(), 2).env("SYMRAIL_TIMEOUT_S", "2").args(["late", joins_late]).limit(90).succeed();
        for wait in ["a barrier", "finalize"] {
            let warning = format!("PE 0 has waited in {wait} for ");
            assert_eq!(outcome.err.matches(&warning).count(), 1, "{outcome:#?}");
        }
        assert!(outcome.err.contains("PE 1 does not wait for anybody"), "{outcome:#?}");
        let joining = outcome.err.contains("PE 0 has waited in who is where (step 1) for 2 s and goes on");
        assert!(joining || joins_late.is_empty(), "{outcome:#?}");
    }
}

#[test]
fn a_pe_that_leaves_alone_is_named_at_once() {
    for path in [MAPPED, ONE_RAIL] {
        let outcome = path.of(apart(), 2).env("SYMRAIL_TIMEOUT_S", "120").args(["leave"]).limit(90).run();
        assert!(outcome.out.contains("PE 1 does not answer: it has left the job without finalizing"), "{outcome:#?}");
        assert!(outcome.err.contains("symrail run: PE 1 left the job without finalizing"), "{outcome:#?}");
        // Well below one time-out.
        assert!(outcome.elapsed < Duration::from_secs(60), "{outcome:#?}");
    }
}

#[test]
fn forked_children_do_no_harm() {
    for path in [MAPPED, ONE_RAIL] {
        path.of(apart(), 2).args(["fork"]).limit(30).succeed();
    }
}
