//! What a put of 8 bytes costs, in counts that do not depend on the machine's load: instructions, system calls, reads of
//! completion queues, messages, and acknowledgements.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use serial_test::serial;

/// Puts before each quiet, as `p-rate` has.
const WINDOW: u64 = 64;

/// Whether a program and libfabric are there; if not, prints what is missing.
fn there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let wire = symrail_transport::ofi::load(&symrail_transport::env::Settings::default()).is_ok();
    if !found || !wire {
        println!("SKIPPED: {} is not installed", if found { "libfabric" } else { program });
    }
    found && wire
}

/// Runs windows of puts over one rail, each PE under a tool, whose words contain `%P` for the PE's number. Returns the
/// number of puts.
fn puts_under(tool: &[&str], device: &str, folder: &Path) -> u64 {
    let (program, json) = (env!("CARGO_BIN_EXE_symrail"), folder.join("figures.json"));
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SYMRAIL_")) {
        command.env_remove(name);
    }
    command.env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
    command.args(["run", "-n", "2", "--hosts", "2", "--rails", "1", "--timeout", "100", "--", "sh", "-c"]);
    let tool = tool.join(" ").replace("%P", "$SYMRAIL_LAUNCHER_PE");
    let test = "perf p-rate -b 8 -e 8 -i 200 -w 20";
    command.arg(format!("exec {tool} {program} {test} --device {device} --json {}", json.display()));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    let records: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    ["iters", "warmup"].iter().map(|name| records[0][name].as_f64().unwrap() as u64).sum()
}

/// Counts of PE 0 per put, by callgrind, in functions of some names and what they call unless said otherwise.
#[derive(Debug)]
struct Counts {
    instructions: f64,
    /// Those of all threads, wherever they are.
    system_calls: f64,
    /// Polls of a rail, each of which reads its completion queue once.
    polls: f64,
}

impl Counts {
    /// Those of the first of three jobs that takes no more than this many instructions, or of the last one. Once in a
    /// job, when it gets no processor for a while, a pool of libfabric's may grow inside of a put, which costs as much
    /// as some thousand puts.
    fn within(limit: f64, device: &str, functions: &[&str]) -> Counts {
        let mut counts = Counts::of(device, functions);
        for _ in 1..3 {
            if counts.instructions <= limit {
                break;
            }
            counts = Counts::of(device, functions);
        }
        counts
    }

    fn of(device: &str, functions: &[&str]) -> Counts {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("callgrind");
        let out_file = format!("--callgrind-out-file={}.%P", out.display());
        let collect: Vec<String> =
            functions.iter().map(|function| format!("'--toggle-collect=*{function}*'")).collect();
        let mut tool = vec!["valgrind", "--tool=callgrind", "--collect-systime=yes", &out_file];
        tool.extend(collect.iter().map(String::as_str));
        let puts = puts_under(&tool, device, folder.path()) as f64;
        let profile = std::fs::read_to_string(out.with_extension("0")).unwrap();
        let words = |name: &str| profile.lines().find_map(|line| line.strip_prefix(name)).unwrap().split_whitespace();
        let total = |event: &str| -> f64 {
            let at = words("events: ").position(|name| name == event).unwrap();
            words("totals: ").nth(at).unwrap().parse::<f64>().unwrap() / puts
        };
        let polls = calls(&profile, "Rail>::poll") as f64 / puts;
        Counts { instructions: total("Ir"), system_calls: total("sysCount"), polls }
    }
}

/// The number of calls of functions whose name contains this, in a profile of callgrind's, from callers that have called
/// them while it collected. A name is written once, with a number that stands for it from then on; the line behind a
/// number of calls has their place and what they cost.
fn calls(profile: &str, function: &str) -> u64 {
    let (mut numbers, mut called) = (HashSet::new(), false);
    let (mut lines, mut calls) = (profile.lines(), 0);
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn="));
        if let Some((number, name)) = name.and_then(|name| name.split_once(')')) {
            if name.contains(function) {
                numbers.insert(number);
            }
            called = line.starts_with("cfn=") && numbers.contains(number);
        } else if let Some(count) = line.strip_prefix("calls=").filter(|_| called) {
            let cost = lines.next().and_then(|line| line.split(' ').nth(1)).map_or(0, |cost| cost.parse().unwrap());
            if cost > 0 {
                calls += count.split(' ').next().unwrap().parse::<u64>().unwrap();
            }
        }
    }
    calls
}

/// The limits have a margin of a tenth, in a build of tests of a twentieth.
#[test]
#[serial]
fn a_put_of_a_host_and_of_a_device_takes_few_instructions() {
    if !there("valgrind") {
        return;
    }
    let (host_limit, device_limit) = if cfg!(debug_assertions) { (HOST_DEBUG, DEVICE_DEBUG) } else { (570.0, 870.0) };
    // The put, and for a device also the engine's part.
    let host = Counts::within(host_limit, "host", &["Backend>::start_put"]);
    let device = Counts::within(device_limit, "cpu", &["Backend>::start_put", "Engine>::take_requests"]);
    println!("a put: host {host:.2?}, device {device:.2?}");
    let [of_host, of_device] = [host.instructions, device.instructions];
    assert!(of_host > 100.0 && of_host <= host_limit, "a host thread's put takes {of_host:.0} instructions");
    // Less than a host's would mean that a part was not counted.
    assert!(of_device > of_host && of_device <= device_limit, "a device's put takes {of_device:.0} instructions");
    for counts in [&host, &device] {
        assert!(counts.polls * WINDOW as f64 <= 1.0, "puts read completion queues: {counts:.2?} each");
    }
    // A device's engine runs in other threads, too, whose calls are among its own.
    assert!(host.system_calls * WINDOW as f64 <= 2.0, "a host's puts call the system: {host:.2?} each");
}

/// A host's put in a build of tests, whose program is not optimized, and a device's.
const HOST_DEBUG: f64 = 1420.0;
const DEVICE_DEBUG: f64 = 1800.0;

/// System calls of one PE that have sent bytes, and that have received some. Whether others find nothing to do depends
/// on time.
fn transfers(folder: &Path, pe: u32) -> [u64; 2] {
    let trace = std::fs::read_to_string(folder.join(format!("trace.{pe}"))).unwrap();
    let moved =
        |line: &&str| line.rsplit(" = ").next().and_then(|n| n.trim().parse::<i64>().ok()).is_some_and(|n| n > 0);
    ["send", "recv"].map(|call| trace.lines().filter(moved).filter(|line| line.contains(call)).count() as u64)
}

#[test]
#[serial]
fn puts_between_two_quiets_share_messages_and_acknowledgements() {
    if !there("strace") {
        return;
    }
    for device in ["host", "cpu"] {
        let folder = tempfile::tempdir().unwrap();
        let trace = format!("{}/trace.%P", folder.path().display());
        let calls = "trace=sendto,sendmsg,sendmmsg,recvfrom,recvmsg";
        let tool = ["strace", "-f", "-qq", "-e", calls, "-e", "signal=none", "-o", &trace];
        let windows = (puts_under(&tool, device, folder.path()) / WINDOW) as f64;
        // Joining, barriers and checks are some of all.
        let [source, target] = [0, 1].map(|pe| transfers(folder.path(), pe).map(|count| count as f64 / windows));
        println!("{device}: system calls that send and receive for {WINDOW} puts: {source:.2?}, target {target:.2?}");
        let ([puts, acknowledged], [received, acknowledges]) = (source, [target[1], target[0]]);
        assert!((1.0..4.0).contains(&puts), "{device}: {puts:.2} sends for {WINDOW} puts");
        assert!((1.0..3.0).contains(&acknowledges), "{device}: {acknowledges:.2} acknowledgements of {WINDOW} puts");
        assert!(acknowledged < 4.0, "{device}: the source receives {acknowledged:.2} times for {WINDOW} puts");
        assert!(received < 6.0, "{device}: the target receives {received:.2} times for {WINDOW} puts");
    }
}
