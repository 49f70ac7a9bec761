//! Blocks from all to all: their cost, and their arrival.
#![allow(clippy::unwrap_used)]

use symrail_tests::job::{Job, Outcome};
use symrail_tests::path::{FOUR_IN_TURN, NET, ONE_RAIL, Path, ROUND_ROBIN, SHM, STRIPED};

const ROUNDS: u64 = 40;

fn exchange(path: Path, pes: u32, hosts: u32) -> Outcome {
    let outcome = path.of(Job::new("blocks"), pes).hosts(hosts).args([ROUNDS]).limit(100).succeed();
    println!("{}, {pes} PEs on {hosts} hosts: {:?}", path.name, outcome.elapsed);
    outcome
}

/// The writes and messages of all PEs for a call.
fn posted(outcome: &Outcome, call: &str) -> (u64, u64) {
    let of_this = outcome.out.lines().filter_map(|line| line.strip_prefix(call)?.strip_prefix(": "));
    let numbers = of_this.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<u64>>());
    numbers.fold((0, 0), |sum, numbers| (sum.0 + numbers[0], sum.1 + numbers[1]))
}

/// Checks that a call needs so many writes, of all PEs together, and only a few messages.
fn takes(outcome: &Outcome, kind: &str, writes: u64) {
    for bytes in [8, 4104, 65536] {
        let (written, messages) = posted(outcome, &format!("{kind} {bytes}"));
        assert_eq!(written, writes * ROUNDS, "{kind} of {bytes} bytes\n{}", outcome.out);
        assert!(messages < ROUNDS, "{kind} of {bytes} bytes: {messages} messages");
    }
}

#[test]
fn each_takes_one_write_and_nothing_else() {
    for path in [ONE_RAIL, NET] {
        let outcome = exchange(path, 4, 4);
        // The calls are between barriers, whose flags are writes, too: 2 of each PE. Every fourth broadcast in a row
        // has one more.
        let barrier = 4 * 2;
        takes(&outcome, "alltoall", 4 * 3 + barrier);
        takes(&outcome, "fcollect", 4 * 3 + barrier);
        takes(&outcome, "broadcast", 3 + barrier + barrier / 4);
    }
}

#[test]
fn several_pes_of_a_host_send_packets() {
    let outcome = exchange(ONE_RAIL, 4, 2);
    // A packet of each PE to the other host. One flag of each host.
    let barrier = 2;
    takes(&outcome, "alltoall", 4 + barrier);
    takes(&outcome, "fcollect", 4 + barrier);
}

#[test]
fn they_come_over_other_rails_too() {
    for (path, pes, hosts) in
        [(ONE_RAIL, 4, 2), (ROUND_ROBIN, 3, 3), (STRIPED, 4, 2), (FOUR_IN_TURN, 3, 3), (SHM, 3, 3)]
    {
        exchange(path, pes, hosts);
    }
}

#[test]
fn pes_with_one_rail_and_with_several_follow_one_plan() {
    for hosts in [4, 2] {
        let job = Job::new("blocks").pes(4).hosts(hosts).rails(2).args([ROUNDS]).limit(100);
        let job = job.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
        let outcome = job.env_of(1, "SYMRAIL_NIC_LIST", "127.0.0.2").succeed();
        println!("{hosts} hosts: {:?}", outcome.elapsed);
    }
}
