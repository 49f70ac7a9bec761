//! The symmetric heap's collective calls, with peers that really access the memory.

use symrail_tests::job::Job;
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN, SHM, STAGED_TCP};

fn heap(path: Path, pes: u32, what: &str) {
    let outcome = path.of(Job::new("heap"), pes).args([what]).limit(60).succeed();
    println!("{}: {what}: {:?}", path.name, outcome.elapsed);
}

#[test]
fn it_grows_and_all_of_it_is_reached() {
    for (path, pes) in [(MAPPED, 2), (ONE_RAIL, 3), (ROUND_ROBIN, 2), (SHM, 2)] {
        heap(path, pes, "grow");
    }
}

#[test]
fn thousands_of_blocks_come_and_go() {
    for path in [MAPPED, ONE_RAIL] {
        heap(path, 3, "cycles");
    }
}

#[test]
fn calls_that_differ_are_named_and_do_nothing() {
    for path in [MAPPED, ONE_RAIL] {
        heap(path, 3, "mismatch");
    }
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    for path in [MAPPED, ONE_RAIL] {
        path.of(Job::new("heap"), 2).args(["exhausted"]).env("SYMRAIL_HEAP_SIZE", "16M").succeed();
    }
}

#[test]
fn rails_that_do_not_reach_a_heap_are_named_where_they_must() {
    let job = STAGED_TCP.of(Job::new("heap"), 2).args(["realloc"]).env("SYMRAIL_HEAP_SIZE", "16M");
    let outcome = job.env("SYMRAIL_GPUDIRECT", "on").run();
    assert_ne!(outcome.code, Some(0), "TCP cannot read what the CPU cannot");
    assert!(outcome.err.contains("rail 127.0.0.2 (tcp;ofi_rxm)"), "{}", outcome.err);
    assert!(outcome.err.contains("SYMRAIL_GPUDIRECT=off"), "{}", outcome.err);
}

#[test]
fn teams_come_and_go() {
    for path in [MAPPED, ONE_RAIL] {
        path.of(Job::new("heap"), 3).args(["teams"]).env("SYMRAIL_HEAP_SIZE", "16M").succeed();
    }
}

#[test]
fn blocks_change_their_size() {
    for path in [MAPPED, ONE_RAIL, ROUND_ROBIN] {
        heap(path, 2, "realloc");
    }
}

#[test]
fn memory_that_one_system_refuses_is_refused_to_all() {
    for path in [MAPPED, ONE_RAIL] {
        heap(path, 3, "refused");
    }
}
