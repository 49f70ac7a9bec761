//! Whole jobs over ibverbs, if there are RDMA devices: `scripts/roce-guest/test.sh` runs them in a guest with soft-RoCE
//! rails `rxe0` and `rxe1`, which do not reach each other, and `wire0` to `wire3`, the ends of cables.
//!
//! soft-RoCE's atomics are not atomic with the CPU's, so both IB modes are tested, and the choice of `auto`.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use symrail_tests::job::{Job, Outcome, built, pe};
use symrail_tests::path::Path;

const RAILS: (&str, &str) = ("SYMRAIL_NIC_LIST", "rxe0,rxe1");
const IBVERBS: (&str, &str) = ("SYMRAIL_TRANSPORT", "ibverbs");
/// A lost packet costs a time-out: milliseconds, not seconds.
const HASTY: (&str, &str) = ("SYMRAIL_IB_TIMEOUT", "13");
/// Every endpoint of every PE locks all of it.
const HEAP: (&str, &str) = ("SYMRAIL_HEAP_SIZE", "16M");
const BY_NIC: (&str, &str) = ("SYMRAIL_IB_MODE", "rdma-atomics");
const BY_AGENT: (&str, &str) = ("SYMRAIL_IB_MODE", "write-with-imm");

const AUTO: Path = Path { name: "auto", provider: Some("verbs"), rails: 0, env: &[IBVERBS, RAILS, HASTY, HEAP] };
const NIC: Path = Path { name: "rdma-atomics", env: &[IBVERBS, RAILS, HASTY, HEAP, BY_NIC], ..AUTO };
const AGENT: Path = Path { name: "write-with-imm", env: &[IBVERBS, RAILS, HASTY, HEAP, BY_AGENT], ..AUTO };
/// Large operations over both rails.
const STRIPED: Path = Path {
    name: "rdma-atomics, striped",
    env: &[IBVERBS, RAILS, HASTY, HEAP, BY_NIC, ("SYMRAIL_RAIL_POLICY", "stripe"), ("SYMRAIL_STRIPE_THRESHOLD", "64K")],
    ..AUTO
};
/// Heaps that the CPU cannot access; NICs move large transfers directly.
const DIRECT: Path = Path {
    name: "guarded heaps, reached by NICs",
    env: &[IBVERBS, RAILS, HASTY, HEAP, ("SYMRAIL_HEAP_KIND", "guarded"), ("SYMRAIL_GPUDIRECT", "on")],
    ..AUTO
};
/// The same, staged.
const STAGED: Path = Path {
    name: "guarded heaps, staged",
    env: &[IBVERBS, RAILS, HASTY, HEAP, ("SYMRAIL_HEAP_KIND", "guarded"), ("SYMRAIL_GPUDIRECT", "off")],
    ..AUTO
};
/// The same devices by libfabric.
const LIBFABRIC: Path = Path { name: "libfabric", provider: Some("verbs;ofi_rxm"), rails: 0, env: &[RAILS, HEAP] };

/// Whether the devices exist; prints it if not.
fn devices() -> bool {
    let there = ["rxe0", "rxe1", "wire0", "wire1", "wire2", "wire3"]
        .iter()
        .all(|device| std::path::Path::new("/sys/class/infiniband").join(device).exists());
    if !there {
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        eprintln!("{test}: SKIPPED: no soft-RoCE devices (scripts/roce-guest/test.sh has them)");
    }
    there
}

/// For how many seconds a port is down: longer than it takes to notice.
const OUTAGE_S: u64 = 4;
/// The guest's CPU is emulated.
const LIMIT: u64 = 150;

fn succeed(path: Path, pes: u32, program: &str, args: &[&str]) -> String {
    let outcome = path.of(Job::new(program), pes).args(args).limit(LIMIT).succeed();
    println!("{}, {pes} PEs, {program} {args:?}: {:?}", path.name, outcome.elapsed);
    outcome.out
}

#[test]
fn every_operation_in_both_modes_and_auto() {
    if devices() {
        succeed(AUTO, 2, "ops", &["tiny"]);
        succeed(AGENT, 3, "ops", &["brief"]);
        succeed(NIC, 2, "ops", &["tiny"]);
        succeed(NIC, 3, "ops", &["brief"]);
        succeed(STRIPED, 2, "ops", &["small"]);
    }
}

#[test]
fn every_operation_on_heaps_that_nics_reach_and_the_cpu_does_not() {
    if devices() {
        succeed(DIRECT, 2, "ops", &["tiny"]);
        succeed(DIRECT, 3, "ops", &["brief"]);
        succeed(STAGED, 2, "ops", &["brief"]);
        assert_eq!(early(DIRECT, "signals", "200"), 0);
        // One PE demands direct transfers, and the other does not even try them.
        let job = DIRECT.of(Job::new("ops"), 2).args(["tiny"]).env_of(1, "SYMRAIL_GPUDIRECT", "off");
        let outcome = job.limit(LIMIT).run();
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.err.contains("SYMRAIL_GPUDIRECT=on is not supported by PE 1"), "{}", outcome.err);
    }
}

#[test]
fn every_operation_by_libfabric_on_the_same_devices() {
    if devices() {
        succeed(LIBFABRIC, 2, "ops", &["tiny"]);
        succeed(LIBFABRIC, 3, "ops", &["brief"]);
        assert_eq!(early(LIBFABRIC, "signals", "500"), 0);
    }
}

/// Host threads and devices, to the own PE, a same-host PE and remote PEs.
#[test]
fn all_who_change_a_word_are_atomic_with_one_another() {
    if devices() {
        succeed(NIC, 3, "hammer", &["8"]);
        succeed(AGENT, 3, "hammer", &["12"]);
    }
}

fn early_in(job: &Job, what: &str, rounds: &str) -> u32 {
    let outcome = job.clone().args([what, rounds]).limit(LIMIT).succeed();
    println!("order {what} {rounds}: {:?}", outcome.elapsed);
    outcome.out.lines().find_map(|line| line.strip_prefix("early: ")).unwrap().parse().unwrap()
}

fn early(path: Path, what: &str, rounds: &str) -> u32 {
    early_in(&path.of(Job::new("order"), 2), what, rounds)
}

/// Two rails, of which the second is a slow cable: messages on the first one overtake those on the second.
#[test]
fn no_signal_of_ten_thousand_is_early_on_two_rails_of_which_one_is_slow() {
    if !devices() {
        return;
    }
    let cable = Cable::that("delay 3ms");
    let job = |path: Path| {
        let job = path.of(Job::new("order"), 2);
        job.env_of(0, RAILS.0, "rxe0,wire0").env_of(1, RAILS.0, "rxe0,wire1")
    };
    // The control takes some luck to fail.
    assert!((0..10).any(|_| early_in(&job(AUTO), "signals-unordered", "500") > 0), "the control went well");
    assert_eq!(early_in(&job(AUTO), "signals", "10000"), 0);
    assert_eq!(early_in(&job(NIC), "signals", "1000"), 0);
    assert_eq!(early_in(&job(AUTO), "fence", "160"), 0);
    drop(cable);
}

#[test]
fn no_signal_by_a_nic_is_early_on_two_rails() {
    if devices() {
        assert_eq!(early(NIC, "signals", "2000"), 0);
        assert_eq!(early(STRIPED, "signals", "500"), 0);
    }
}

#[test]
fn nothing_passes_a_fence_or_is_late_after_a_quiet() {
    if devices() {
        assert_eq!(early(NIC, "fence", "160"), 0);
        assert_eq!(early(AGENT, "fence", "320"), 0);
        for path in [NIC, AGENT] {
            assert!(succeed(path, 2, "quiet", &["quiet", "60"]).contains("late: 0"));
        }
    }
}

#[test]
fn shallow_queues_are_enough() {
    if devices() {
        let env = &[IBVERBS, RAILS, HASTY, HEAP, BY_NIC, ("SYMRAIL_IB_QUEUE_DEPTH", "16")];
        let path = Path { name: "queue depth 16", env, ..AUTO };
        succeed(path, 2, "ops", &["brief"]);
        assert_eq!(early(path, "signals", "300"), 0);
    }
}

#[test]
fn gids_by_index() {
    if devices() {
        for (name, index) in [("GID 0, link-local IPv6", "0"), ("GID 1, IPv4", "1")] {
            let job = Path { name, ..AUTO }.of(Job::new("ops"), 2).env("SYMRAIL_IB_GID_INDEX", index);
            job.args(["tiny"]).limit(LIMIT).succeed();
        }
    }
}

#[test]
fn what_does_not_exist_is_answered_with_what_does() {
    if !devices() {
        return;
    }
    for (name, value, words) in [
        ("SYMRAIL_NIC_LIST", "rxe0,mlx9_9", ["mlx9_9 of SYMRAIL_NIC_LIST", "rxe1 port 1 (active"]),
        ("SYMRAIL_IB_PORT", "2", ["SYMRAIL_IB_PORT=2", "rxe0 port 1 (active"]),
        ("SYMRAIL_IB_GID_INDEX", "200", ["SYMRAIL_IB_GID_INDEX=200 on rxe0", "0: fe80::"]),
        ("SYMRAIL_IB_PKEY_INDEX", "9", ["SYMRAIL_IB_PKEY_INDEX=9 on rxe0", "index 0 (0xffff)"]),
    ] {
        let outcome = AUTO.of(Job::new("fault"), 2).args(["join"]).env(name, value).limit(60).run();
        assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
        assert!(words.iter().all(|words| outcome.err.contains(words)), "{words:?}: {outcome:#?}");
    }
}

#[test]
fn info_shows_devices_and_gids_and_what_a_job_would_choose() {
    if !devices() {
        return;
    }
    let output = Command::new(built("symrail")).arg("info").env(RAILS.0, RAILS.1).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    for words in [
        "rxe2 port 1 (active, Ethernet, MTU 4096",
        "0: fe80::",
        "1: 10.77.1.1 RoCE v2 (rail1)",
        "transport    ibverbs",
        "rails        rxe0, rxe1",
        "rail rxe1: GID 1: 10.77.1.1",
        "IB mode write-with-imm: rxe0 has atomics that are atomic with one another",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let mapping = ("SYMRAIL_NIC_PE_MAPPING", "rxe1:1:1,rxe0:1:1");
    let output = Command::new(built("symrail")).arg("info").env(mapping.0, mapping.1).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("rails        rxe1\n"), "{page}");
}

/// Both ends of a cable, in both modes.
fn over_the_cable(name: &'static str, plan: &str) {
    for mode in [BY_NIC, BY_AGENT] {
        let env = &[IBVERBS, HEAP, ("SYMRAIL_IB_TIMEOUT", "10")];
        let job = Path { name, env, ..AUTO }.of(Job::new("ops"), 2).env(mode.0, mode.1);
        let job = job.env_of(0, "SYMRAIL_NIC_LIST", "wire0").env_of(1, "SYMRAIL_NIC_LIST", "wire1");
        let outcome = job.args([plan]).limit(LIMIT).succeed();
        println!("{name}, {mode:?}: {:?}", outcome.elapsed);
    }
}

/// The `tc` settings of both directions of the cable, until dropped.
struct Cable;

impl Cable {
    fn that(does: &str) -> Cable {
        run(&format!("tc qdisc add dev end0 root netem {does}; tc qdisc add dev end1 root netem {does}"));
        Cable
    }

    fn statistics(&self) -> String {
        run("tc -s qdisc show dev end0; tc -s qdisc show dev end1")
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // A failure is ignored: the guest ends with its tests.
        let _ = Command::new("sh").args(["-c", "tc qdisc del dev end0 root; tc qdisc del dev end1 root"]).status();
    }
}

fn run(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn two_devices_and_a_cable_also_one_that_loses_packets() {
    if !devices() {
        return;
    }
    over_the_cable("cable", "tiny");
    let cable = Cable::that("loss 5%");
    over_the_cable("cable, 5 % lost", "tiny");
    let lost = cable.statistics();
    assert!(!lost.contains("dropped 0,"), "nothing was lost, so this shows nothing: {lost}");
}

/// The type of service of each RoCE packet (UDP to port 4791 over IPv4) observed on any interface.
fn services(tap: &OwnedFd) -> Vec<u8> {
    let mut frame = [0; 64];
    let frames = std::iter::from_fn(|| {
        recv(tap.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT).ok()?;
        let roce = frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == 4791_u16.to_be_bytes();
        Some(roce.then_some(frame[15]))
    });
    frames.flatten().collect()
}

#[test]
fn the_traffic_class_is_on_the_wire() {
    if !devices() {
        return;
    }
    for (class, value) in [(0, "0"), (96, "96")] {
        let tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap();
        let job = AUTO.of(Job::new("fault"), 2).args(["join"]).env("SYMRAIL_IB_TRAFFIC_CLASS", value);
        let job = job.env_of(0, RAILS.0, "wire0").env_of(1, RAILS.0, "wire1");
        job.limit(LIMIT).succeed();
        let seen = services(&tap);
        assert!(!seen.is_empty() && seen.iter().all(|&service| service == class), "{class}: {seen:?}");
    }
}

/// Runs `pe flap`, `outage` as soon as its PEs have joined, and the PEs on until their rails are used again.
fn flap(job: &Job, outage: impl FnOnce()) -> Outcome {
    let joined = std::env::temp_dir().join(format!("symrail-flap-{}", std::process::id()));
    let running = job.clone().args([joined.display()]).limit(LIMIT).start();
    let start = Instant::now();
    while !joined.exists() {
        std::thread::sleep(Duration::from_millis(10));
        assert!(start.elapsed() < Duration::from_secs(60), "{:#?}", running.end());
    }
    outage();
    std::fs::remove_file(&joined).unwrap();
    let outcome = running.end();
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    println!("{}", outcome.out);
    outcome
}

/// The numbers that `pe flap` has printed before these words.
fn numbers_before(outcome: &Outcome, words: &str) -> Vec<u64> {
    let of = |line: &str| line.split(words).next()?.rsplit(' ').next()?.parse().ok();
    outcome.out.lines().filter(|line| line.contains(words)).filter_map(of).collect()
}

/// As many PEs have used this rail again, each for more than a probe of its connection.
fn assert_used_again(outcome: &Outcome, rail: &str, pes: usize) {
    let used = numbers_before(outcome, &format!(" work requests over {rail} after the outage"));
    assert!(used.len() == pes && used.iter().all(|&count| count >= 16), "{rail} is not used again: {outcome:#?}");
}

/// Puts, signals and AMOs continue, each performed once, while a rail's port is down and when it is up again; then the
/// rail is used again.
#[test]
fn a_port_that_goes_down_costs_nothing_and_is_used_again() {
    if !devices() {
        return;
    }
    let outcome = flap(&AGENT.of(Job::new("flap"), 2).hosts(2), || {
        run("ip link set rail0 down");
        std::thread::sleep(Duration::from_secs(OUTAGE_S)); // the outage
        run("ip link set rail0 up");
    });
    assert!(numbers_before(&outcome, " failures").iter().sum::<u64>() > 0, "nothing failed, so this shows nothing");
    assert_used_again(&outcome, "rxe0", 2);
}

/// A NIC's eight attempts, of about a second each, take longer than a cable is out.
const PATIENT: (&str, &str) = ("SYMRAIL_IB_TIMEOUT", "18");
/// How long a cable is out.
const PULLED_OUT: Duration = Duration::from_secs(2);

/// Runs `pe flap` over these devices of each PE while cables are out, and shows that no packet passed meanwhile.
fn flap_without(jacks: &[u32], mode: (&str, &str), devices: [&str; 2]) -> Outcome {
    let all =
        |state: &str| run(&jacks.iter().map(|jack| format!("ip link set jack{jack} {state};")).collect::<String>());
    let job = Path { name: "cables out", env: &[IBVERBS, PATIENT, HEAP, ("SYMRAIL_LOG", "warn")], ..AUTO };
    let job = job.of(Job::new("flap"), 2).hosts(2).env(mode.0, mode.1);
    let job = job.env_of(0, RAILS.0, devices[0]).env_of(1, RAILS.0, devices[1]);
    let outcome = flap(&job, || {
        all("down");
        std::thread::sleep(PULLED_OUT); // the outage
        all("up");
    });
    assert!(outcome.err.contains("waiting for the port"), "nobody noticed, so this shows nothing: {outcome:#?}");
    let longest = numbers_before(&outcome, " ms");
    let outage = PULLED_OUT.as_millis() as u64;
    assert!(longest.iter().any(|&ms| ms > outage / 2), "something came through, so this shows nothing: {outcome:#?}");
    outcome
}

/// A port that is down for less time than NICs retry is no reason to give up the only path.
#[test]
fn an_only_rail_waits_for_its_port() {
    if devices() {
        for mode in [BY_AGENT, BY_NIC] {
            let outcome = flap_without(&[0], mode, ["wire0", "wire1"]);
            assert_used_again(&outcome, "wire0", 1);
            assert_used_again(&outcome, "wire1", 1);
        }
    }
}

/// Nor are ports that go down together, on all rails at both ends; or on one rail at one end and on the other rail at
/// the other.
#[test]
fn of_rails_that_all_are_down_one_waits_for_its_port_and_all_are_used_again() {
    if !devices() {
        return;
    }
    for jacks in [&[0, 1, 2, 3][..], &[0, 3]] {
        let outcome = flap_without(jacks, BY_AGENT, ["wire0,wire2", "wire1,wire3"]);
        for device in ["wire0", "wire1", "wire2", "wire3"] {
            assert_used_again(&outcome, device, 1);
        }
    }
}

#[test]
fn pes_in_different_modes_are_refused_with_both_names() {
    if !devices() {
        return;
    }
    for (first, second) in [("write-with-imm", "rdma-atomics"), ("auto", "rdma-atomics")] {
        let job = AUTO.of(Job::new("fault"), 2).args(["join"]).limit(60);
        let outcome = job.env_of(0, BY_NIC.0, first).env_of(1, BY_NIC.0, second).run();
        assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
        let words = "SYMRAIL_IB_MODE differs: PE 1 has rdma-atomics, PE 0 has write-with-imm";
        assert!(outcome.err.contains(words), "{outcome:#?}");
    }
}

/// With the default retries a NIC takes half a minute to give a peer up; the time-out of the job is what counts.
#[test]
fn the_death_of_a_peer_is_told_within_the_time_out() {
    if !devices() {
        return;
    }
    let (timeout_s, grace) = (3, 34);
    for (operation, path) in [("put", AUTO), ("put-large", AUTO), ("amo", NIC), ("put-signal", NIC), ("amo", AGENT)] {
        let mut command = pe("fault");
        command.args(["survive", operation, "kill"]);
        let env = [("SYMRAIL_TIMEOUT_S", "3"), ("SYMRAIL_IB_TIMEOUT", "20")];
        let outcome = path.of_command(command, &env, Duration::from_secs(90));
        let value = |name: &str| outcome.out.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        println!("{}: {operation}: after {}: {}", path.name, value("after "), value("error: "));
        assert!(value("error: ").contains("PE 1"), "{outcome:#?}");
        let after: u64 = value("after ").trim_end_matches(" ms").parse().unwrap();
        assert!(after < 1000 * (2 * timeout_s + grace), "{outcome:#?}");
    }
}
