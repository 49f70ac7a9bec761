//! A lost PE is lost alone: operations that need it fail in time and name it, and the other PEs continue.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use symrail_tests::job::{Outcome, built, pe};
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN};

const LIMIT: Duration = Duration::from_secs(120);
/// A busy machine stops a healthy PE for a second or two.
const TIMEOUT: (&str, &str) = ("SYMRAIL_TIMEOUT_S", "3");

fn check(outcome: &Outcome) {
    for pe in 0..3 {
        assert!(outcome.out.contains(&format!("PE {pe} is through")), "{outcome:#?}");
    }
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
}

fn lose(path: Path, death: &str) {
    lose_within(path, death, TIMEOUT);
}

fn lose_within(path: Path, death: &str, timeout: (&str, &str)) {
    let mut command = pe("lost");
    command.arg(death);
    check(&path.of_command(command, &[timeout], LIMIT));
}

#[test]
fn three_pes_go_on_when_the_fourth_is_killed() {
    lose(ROUND_ROBIN, "kill");
}

#[test]
fn operations_to_a_pe_that_has_left_fail_long_before_their_time_out() {
    for path in [ONE_RAIL, ROUND_ROBIN] {
        lose_within(path, "leave", ("SYMRAIL_TIMEOUT_S", "40"));
    }
}

#[test]
fn three_pes_go_on_when_the_fourth_hangs() {
    lose(ONE_RAIL, "stop");
}

#[test]
fn three_pes_go_on_when_the_fourth_hangs_behind_two_rails() {
    lose(ROUND_ROBIN, "stop");
}

#[test]
fn a_wait_for_a_mapped_pe_ends_when_it_is_killed() {
    let mut command = pe("lost");
    command.arg("unwired");
    let no_wire = [("SYMRAIL_LIBFABRIC_SO", "/nowhere/libfabric.so"), ("SYMRAIL_IBV_SO", "/nowhere/libibverbs.so")];
    check(&MAPPED.of_command(command, &[TIMEOUT, no_wire[0], no_wire[1]], LIMIT));
}

#[test]
fn three_pes_go_on_when_the_host_of_the_fourth_vanishes() {
    let alone = ["--map-root-user", "--net"];
    let probe = "ip link add hub type bridge && ip link add cable type veth peer name far && bridge link && nsenter --net=/proc/self/ns/net true";
    let possible = Command::new("unshare").args(alone).args(["sh", "-c", probe]).output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: network namespaces with bridges and veth cables need root or user namespaces: {possible:?}");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(alone).arg(built("pe")).args(["lost", "vanish"]);
    check(&ONE_RAIL.of_command(command, &[TIMEOUT, ("SYMRAIL_NIC_LIST", "10.92.0.1")], LIMIT));
}
