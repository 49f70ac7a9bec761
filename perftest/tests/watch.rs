//! Observing a running job from outside: `symrail top`, and the trace that a job writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use serial_test::serial;

const TIME_LIMIT: Duration = Duration::from_secs(60);

fn symrail(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symrail"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SYMRAIL_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// A job that ends with this value: its PEs die with their launcher.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Job {
    /// A job of two PEs that puts over these rails, if any are named, until it is dropped.
    fn puts(rails: &[&str]) -> Job {
        let mut perf = symrail(&[&["perf", "put-lat", "-b", "8", "-e", "8", "-i", "1000000000000"], rails].concat());
        Job(perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Its PEs that run by now.
    fn pes(&self) -> Vec<String> {
        let launcher = self.0.id();
        let path = format!("/proc/{launcher}/task/{launcher}/children");
        std::fs::read_to_string(path).unwrap_or_default().split_whitespace().map(String::from).collect()
    }
}

fn wire() -> bool {
    let there = symrail_transport::ofi::load(&symrail_transport::env::Settings::default()).is_ok();
    if !there {
        println!("SKIPPED: libfabric is not installed");
    }
    there
}

fn top(args: &[&str]) -> Output {
    symrail(&[&["top"], args].concat()).output().unwrap()
}

#[test]
#[serial]
fn top_shows_what_a_running_job_does() {
    if !wire() {
        return;
    }
    let job = Job::puts(&["--rails", "1"]);
    let begun = Instant::now();
    let shown = loop {
        assert!(begun.elapsed() < TIME_LIMIT, "nothing was shown");
        let pids = job.pes();
        if pids.len() < 2 {
            std::thread::yield_now();
            continue;
        }
        let output = top(&["-n", "1", "-d", "0.3", "--pid", &pids.join(",")]);
        let text = String::from_utf8(output.stdout).unwrap();
        let puts = |line: &&str| line.split_whitespace().nth(4).and_then(|cell| cell.chars().next()) != Some('0');
        // Only some work requests are timed, so the first samples may have none of these.
        let busy = |line: &&str| line.contains("0/2") && line.contains("host") && !line.ends_with('-');
        if text.lines().filter(busy).any(|line| puts(&line)) {
            break text;
        }
    };
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("2 PEs of 1 job on this host; tcp"), "{shown}");
    // The job and its two PEs have totals.
    assert_eq!(lines.iter().filter(|line| line.contains(" all ")).count(), 3, "{shown}");
    assert!(["PE", "rail", "puts/s", "failed", "p99"].iter().all(|heading| lines[1].contains(heading)), "{shown}");
    // Host endpoint and proxy endpoint of both PEs, on one rail.
    assert_eq!(lines.iter().filter(|line| line.contains("127.0.0.2")).count(), 4, "{shown}");
    let busy = lines.iter().find(|line| line.contains("0/2") && line.contains("host")).unwrap();
    assert!(busy.contains(" us") || busy.contains(" ms"), "it takes some microseconds: {shown}");
}

/// A process that holds a PE's file counts as no PE: neither a forked child, nor a reader.
#[test]
#[serial]
fn top_shows_neither_itself_nor_children_nor_other_users() {
    let job = Job::puts(&[]);
    let link = |pid: &str| {
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let named = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:symrail-figures"))
        };
        links.map(|link| link.path()).find(named)
    };
    let shown = || -> Vec<String> {
        let text = String::from_utf8(top(&["-n", "1", "-d", "0.05"]).stdout).unwrap();
        text.lines().skip(3).filter_map(|line| line.split_whitespace().nth(1)).map(String::from).collect()
    };
    // `top` shows PEs of other jobs, too: its success does not mean that it has found these PEs.
    let begun = Instant::now();
    let mut pes = Vec::new();
    while pes.len() < 2 || !pes.iter().all(|pe| shown().contains(pe)) {
        assert!(begun.elapsed() < TIME_LIMIT, "no job");
        std::thread::yield_now();
        pes = job.pes();
    }
    // Like a child: another process with the same file.
    let held = std::fs::File::open(link(&pes[0]).unwrap()).unwrap();
    let child = Job(Command::new("sleep").arg("60").stdin(held).spawn().unwrap());
    let pids = shown();
    assert!(pes.iter().all(|pe| pids.contains(pe)), "{pids:?}");
    assert!(!pids.contains(&child.0.id().to_string()), "{pids:?}");
    // Other users' PEs are shown on request, to users that may inspect them.
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0 {
        let mut other = symrail(&["top", "-n", "1", "-d", "0.05"]);
        std::os::unix::process::CommandExt::uid(&mut other, 65534);
        let output = other.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

const BYTES: &str = "symrail_posted_bytes_total";

/// The values of a counter of a job's host endpoints, by PE.
fn values(metrics: &str, name: &str) -> Vec<f64> {
    let of = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains("endpoint=\"host\"");
    metrics.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}

#[test]
#[serial]
fn metrics_of_a_running_job_are_served_and_written() {
    if !wire() {
        return;
    }
    let job = Job::puts(&["--rails", "1"]);
    let begun = Instant::now();
    let (pids, text) = loop {
        assert!(begun.elapsed() < TIME_LIMIT, "no metrics");
        let pids = job.pes().join(",");
        let text = String::from_utf8(top(&["--prometheus", "-", "-n", "1", "--pid", &pids]).stdout).unwrap();
        if values(&text, BYTES).iter().any(|bytes| *bytes > 0.0) {
            break (pids, text);
        }
        std::thread::yield_now();
    };
    assert!(text.ends_with("# EOF\n") && text.contains("fabric=\"tcp"), "{text}");
    assert!(values(&text, "symrail_failed_work_requests_total").iter().all(|failed| *failed == 0.0), "{text}");
    // Over HTTP, the counters soon are larger.
    let mut server = symrail(&["top", "--prometheus", "0", "--pid", &pids]);
    let mut server = Job(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.0.stdout.take().unwrap()), &mut line).unwrap();
    let address = line.trim().strip_prefix("metrics at http://").and_then(|at| at.strip_suffix("/metrics")).unwrap();
    let sum = |metrics: &str| values(metrics, BYTES).iter().sum::<f64>();
    loop {
        assert!(begun.elapsed() < TIME_LIMIT, "the counters do not grow");
        let mut client = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut client, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut client, &mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
        if sum(&answer) > sum(&text) {
            break;
        }
    }
}

#[test]
fn metrics_without_a_job_are_empty_and_a_place_that_cannot_be_used_is_named() {
    let output = top(&["--prometheus", "-", "-n", "1", "--pid", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("# EOF\n"), "{text}");
    assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
    for (place, why) in [("/nowhere/symrail.prom", "/nowhere/symrail.prom"), ("/dev/null", "not a regular file")] {
        let output = top(&["--prometheus", place, "-n", "1"]);
        assert_eq!(output.status.code(), Some(1), "{place}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
    assert_eq!(top(&["--prometheus", "65536"]).status.code(), Some(2));
}

#[test]
fn top_without_a_job_says_so() {
    // Process 1 is no PE.
    let output = top(&["-n", "1", "--pid", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no PE runs on this host"));
    for delay in ["0", "-1", "x", "1e9"] {
        assert_eq!(top(&[&format!("--delay={delay}")]).status.code(), Some(2), "{delay}");
    }
}

/// A temporary file, removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn traced(path: &Path) -> Output {
    let mut perf =
        symrail(&["perf", "put-lat", "get-lat", "-b", "8", "-e", "8", "-i", "50", "-w", "1", "--rails", "2"]);
    perf.env("SYMRAIL_TRACE", path).output().unwrap()
}

#[test]
#[serial]
fn a_trace_has_the_work_requests_of_all_pes() {
    if !wire() {
        return;
    }
    let file = Scratch(std::env::temp_dir().join(format!("symrail-watch-{}.json", std::process::id())));
    // The second run overwrites the file.
    for _ in 0..2 {
        let output = traced(&file.0);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let events: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
    let of = |pe: u64, what: &str| {
        let wanted =
            |e: &&Value| e["pid"] == pe && e["name"] == what && e["args"]["bytes"] == 8 && e["args"]["pe"] == 1 - pe;
        events.iter().filter(|e| e["ph"] == "X").filter(wanted).count()
    };
    // 50 iterations, a warm-up, and the check of the data: once, not twice.
    assert!((51..80).contains(&of(0, "read")), "{}", of(0, "read"));
    let named = |pe: u64| events.iter().any(|e| e["name"] == "process_name" && e["args"]["name"] == format!("PE {pe}"));
    assert!(named(0) && named(1));
    let ends: Vec<f64> = events.iter().filter_map(|e| Some(e["ts"].as_f64()? + e["dur"].as_f64()?)).collect();
    let starts: Vec<f64> = events.iter().filter_map(|e| e["ts"].as_f64()).collect();
    let span = ends.iter().fold(0.0, |a: f64, &b| a.max(b)) - starts.iter().fold(f64::MAX, |a, &b| a.min(b));
    assert!((1.0..60e6).contains(&span), "{span} us");
}

#[test]
#[serial]
fn a_trace_that_cannot_be_written_is_told_and_does_no_harm() {
    if !wire() {
        return;
    }
    let output = traced(Path::new("/nowhere/at/all.json"));
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("there will be no trace"));
}
