//! Products of tensor-parallel layers: their bits, their order, and their errors when a rank is lost.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use symrail_tests::job::{Job, pe};
use symrail_tests::path::{EVERY_KIND, MAPPED, ONE_RAIL, Path, ROUND_ROBIN};

fn check(path: Path, pes: u32, hosts: u32, args: &[&str]) {
    let outcome = path.of(Job::new("overlap"), pes).hosts(hosts).args(args).limit(60).succeed();
    println!("{args:?}, {}, {pes} PEs on {hosts} hosts: {:?}", path.name, outcome.elapsed);
}

#[test]
fn all_schedules_give_the_bits_of_the_unfused_form() {
    for (path, pes, hosts) in EVERY_KIND.into_iter().filter(|(path, ..)| !path.name.starts_with("staged")) {
        check(path, pes, hosts, &["equal", if path.provider.is_none() { "20" } else { "5" }]);
    }
}

#[test]
fn delays_before_any_step_change_nothing() {
    for (path, pes, hosts) in [(MAPPED, 4, 1), (ROUND_ROBIN, 4, 2)] {
        for seed in ["1", "2", "3"] {
            check(path, pes, hosts, &["equal", "4", "400", seed]);
        }
    }
}

#[test]
fn a_plan_in_the_place_of_another_one_takes_nothing_of_it() {
    check(MAPPED, 3, 1, &["again", "24", "300", "1"]);
    check(ROUND_ROBIN, 3, 3, &["again", "24", "300", "2"]);
}

#[test]
fn pieces_move_while_others_are_multiplied() {
    check(MAPPED, 3, 1, &["order"]);
    check(ROUND_ROBIN, 2, 2, &["order"]);
}

#[test]
fn what_one_rank_does_otherwise_is_an_error_by_name_on_all() {
    check(MAPPED, 3, 1, &["refuse"]);
    check(ROUND_ROBIN, 3, 3, &["refuse"]);
}

#[test]
fn a_rank_that_gives_up_ends_the_waits_of_this_round_and_of_later_ones() {
    check(MAPPED, 3, 1, &["give_up"]);
    check(ROUND_ROBIN, 3, 3, &["give_up"]);
}

#[test]
fn a_rank_that_is_killed_in_a_product_is_named_by_the_others() {
    for (path, what) in [(MAPPED, "pull"), (ONE_RAIL, "ring"), (MAPPED, "scatter"), (ROUND_ROBIN, "everywhere")] {
        let mut command = pe("overlap_lost");
        command.arg(what);
        let outcome = path.of_command(command, &[("SYMRAIL_TIMEOUT_S", "8")], Duration::from_secs(90));
        for pe in 0..3 {
            assert!(outcome.out.contains(&format!("PE {pe} is through")), "{}, {what}: {outcome:#?}", path.name);
        }
        assert_eq!(outcome.code, Some(0), "{}, {what}: {outcome:#?}", path.name);
        println!("{what}, {}: {:?}", path.name, outcome.elapsed);
    }
}
