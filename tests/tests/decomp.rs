//! Transposes, halos and all-to-all plans between processes: every byte of every output.

use symrail_tests::job::Job;
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN, mapped_by_movers};

fn job(path: Path, pes: u32, hosts: u32, what: &str) {
    let job = path.of(Job::new("decomp"), pes).hosts(hosts);
    let outcome = job.env("SYMRAIL_HEAP_SIZE", "96M").args([what]).limit(100).succeed();
    println!("{what}, {}, {pes} PEs on {hosts} hosts: {:?} {}", path.name, outcome.elapsed, outcome.out);
}

#[test]
fn all_process_grids_when_mapped() {
    job(MAPPED, 8, 1, "small");
}

#[test]
fn all_process_grids_over_rails() {
    job(ONE_RAIL, 4, 4, "small");
    job(ROUND_ROBIN, 6, 2, "small");
}

/// Blocks of one round go to a peer that is mapped and to one over rails, where they are counted.
#[test]
fn all_process_grids_of_two_hosts_with_two_pes_each() {
    job(ONE_RAIL, 4, 2, "small");
}

#[test]
fn a_larger_array() {
    job(MAPPED, 4, 1, "large");
    job(ONE_RAIL, 4, 2, "large");
}

#[test]
fn plans_run_at_once_and_teams_share_a_heap() {
    job(MAPPED, 4, 1, "plans");
    job(ONE_RAIL, 4, 3, "plans");
    job(ONE_RAIL, 4, 2, "plans");
}

/// Blocks of successive rounds go to different places. `scripts/netns-rails.sh flap 60 pencils` fails rails meanwhile.
#[test]
fn rounds_follow_each_other() {
    job(ROUND_ROBIN, 2, 2, "rounds");
    job(ONE_RAIL, 4, 2, "rounds");
}

#[test]
fn what_one_does_wrong_is_an_error_on_all() {
    job(MAPPED, 4, 1, "misuse");
    job(ONE_RAIL, 4, 3, "misuse");
}

#[test]
fn a_pe_that_makes_no_call_is_not_waited_for_without_end() {
    for (path, hosts) in [(MAPPED, 1), (ONE_RAIL, 2)] {
        let job = path.of(Job::new("decomp"), 2).hosts(hosts).env("SYMRAIL_HEAP_SIZE", "96M");
        let _ = job.env("SYMRAIL_TIMEOUT_S", "2").args(["late"]).limit(60).succeed();
    }
}

#[test]
fn memory_that_one_pe_lacks_is_an_error_on_all() {
    job(MAPPED, 2, 1, "memory");
    job(ONE_RAIL, 2, 2, "memory");
}

#[test]
fn heaps_that_the_cpu_cannot_touch_are_refused() {
    let job = mapped_by_movers(Job::new("decomp"), 2).env("SYMRAIL_HEAP_SIZE", "96M");
    let _ = job.args(["device"]).succeed();
}
