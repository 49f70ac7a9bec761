//! What a put of 8 bytes costs, in counts that do not depend on the machine's load: instructions, messages, and
//! acknowledgements.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use serial_test::serial;

/// Puts before each quiet, as `p-rate` has.
const WINDOW: u64 = 64;

/// A temporary folder, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("symrail-costs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

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

/// Instructions in this process's functions of these names, by callgrind, for each put of PE 0.
fn instructions(device: &str, functions: &[&str]) -> f64 {
    let folder = Scratch::new(device);
    let out = folder.0.join("callgrind");
    let out_file = format!("--callgrind-out-file={}.%P", out.display());
    let collect: Vec<String> = functions.iter().map(|function| format!("'--toggle-collect=*{function}*'")).collect();
    let mut tool = vec!["valgrind", "--tool=callgrind", &out_file];
    tool.extend(collect.iter().map(String::as_str));
    let puts = puts_under(&tool, device, &folder.0);
    let profile = std::fs::read_to_string(out.with_extension("0")).unwrap();
    let totals: f64 = profile.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap().trim().parse().unwrap();
    totals / puts as f64
}

/// The limits have a margin of a tenth. A build of tests is little optimised.
#[test]
#[serial]
fn a_put_of_a_host_and_of_a_device_takes_few_instructions() {
    if !there("valgrind") {
        return;
    }
    let (host_limit, device_limit) = if cfg!(debug_assertions) { (HOST_DEBUG, DEVICE_DEBUG) } else { (900.0, 1250.0) };
    // The put, and for a device also the engine's part.
    let host = instructions("host", &["Backend>::start_put"]);
    let device = instructions("cpu", &["Backend>::start_put", "Engine>::take_requests"]);
    println!("instructions of a put: host {host:.0}, device {device:.0}");
    assert!(host > 100.0 && host <= host_limit, "a host thread's put takes {host:.0} instructions");
    // Less than a host's would mean that a part was not counted.
    assert!(device > host && device <= device_limit, "a device's put takes {device:.0} instructions");
}

/// A host's put in a build of tests, and a device's.
const HOST_DEBUG: f64 = 1400.0;
const DEVICE_DEBUG: f64 = 2340.0;

/// System calls that send, of one PE.
fn sends(folder: &Path, pe: u32) -> u64 {
    let trace = std::fs::read_to_string(folder.join(format!("trace.{pe}"))).unwrap();
    trace.lines().filter(|line| line.contains("send") && !line.contains("= -1")).count() as u64
}

#[test]
#[serial]
fn puts_between_two_quiets_share_messages_and_acknowledgements() {
    if !there("strace") {
        return;
    }
    for device in ["host", "cpu"] {
        let folder = Scratch::new(&format!("calls-{device}"));
        let trace = format!("{}/trace.%P", folder.0.display());
        let tool = ["strace", "-f", "-qq", "-e", "trace=sendto,sendmsg,sendmmsg", "-e", "signal=none", "-o", &trace];
        let windows = puts_under(&tool, device, &folder.0) / WINDOW;
        // Joining, barriers and checks are some of both.
        let [source, target] = [0, 1].map(|pe| sends(&folder.0, pe) as f64 / windows as f64);
        println!(
            "{device}: {source:.2} system calls that send at the source of {WINDOW} puts, {target:.2} at the target"
        );
        assert!((1.0..4.0).contains(&source), "{device}: {source:.2} sends for {WINDOW} puts");
        assert!((1.0..3.0).contains(&target), "{device}: {target:.2} acknowledgements of {WINDOW} puts");
    }
}
