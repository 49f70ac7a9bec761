//! `symrail perf` as users run it: real PEs, over mapped memory and over a real wire on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use serial_test::serial;

const RUNTIME: [&str; 17] = [
    "put-bw",
    "put-lat",
    "get-bw",
    "get-lat",
    "p-rate",
    "put-rate",
    "put-pingpong",
    "amo-lat",
    "amo-rate",
    "get-rate",
    "fetch-rate",
    "signal-rate",
    "signal-lat",
    "put-signal-pingpong",
    "fence-lat",
    "alltoall-bw",
    "barrier-lat",
];
const RAW: [&str; 8] = [
    "raw-put-lat",
    "raw-get-lat",
    "raw-put-bw",
    "raw-get-bw",
    "raw-put-rate",
    "raw-put-pingpong",
    "raw-amo-lat",
    "raw-amo-rate",
];
const TINY: &[&str] = &["-b", "1", "-e", "4096", "-i", "3", "-w", "1"];
/// Longer than any test here takes, even on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A temporary file, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("symrail-perf-{}-{count}-{name}", std::process::id())))
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn symrail(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symrail"));
    let ours: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    ours.iter().filter(|name| name.to_string_lossy().starts_with("SYMRAIL_")).for_each(|name| {
        command.env_remove(name);
    });
    command.args(args).envs(env.iter().copied()).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if ended.recv_timeout(TIME_LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            // The PEs die with their launcher.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    });
    let mut stderr = child.stderr.take().unwrap();
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stderr, &mut text);
        text
    });
    let mut output = child.wait_with_output().unwrap();
    drop(done);
    watch.join().unwrap();
    output.stderr = errors.join().unwrap();
    output
}

fn perf(args: &[&str], env: &[(&str, &str)]) -> Output {
    symrail(&[&["perf"], args].concat(), env)
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], b"\n", &output.stderr].concat()).into_owned()
}

/// Runs tests with JSON and returns the records, after checks that apply to any record.
fn records(args: &[&str], env: &[(&str, &str)]) -> Vec<Value> {
    let json = Scratch::new("figures.json");
    let output = perf(&[args, &["--json", json.0.to_str().unwrap()]].concat(), env);
    assert!(output.status.success(), "{args:?}: {}", printed(&output));
    let Value::Array(records) = serde_json::from_str(&json.text()).unwrap() else { panic!("{}", json.text()) };
    for record in &records {
        let number = |name: &str| record[name].as_f64().unwrap_or_else(|| panic!("{name} in {record}"));
        for name in ["value", "p50", "p99", "iters"] {
            assert!(number(name) > 0.0 && number(name).is_finite(), "{name} in {record}");
        }
        assert!(number("warmup") >= 1.0 && number("size") >= 0.0 && number("hosts") >= 1.0, "{record}");
        for name in ["test", "device", "transport", "unit"] {
            assert!(record[name].as_str().is_some_and(|text| !text.is_empty()), "{name} in {record}");
        }
        assert!(number("batch") >= 1.0 && number("n_pes") >= 2.0 && number("load") >= 0.0, "{record}");
        let (best, worst, value) = (number("best"), number("worst"), number("value"));
        let latency = record["unit"] == "us";
        assert!(if latency { best <= worst * 1.01 } else { best >= worst * 0.99 }, "{record}");
        assert!(value >= best.min(worst) * 0.99 && value <= best.max(worst) * 1.01, "{record}");
        for name in ["host", "version", "commit", "date"] {
            assert!(record[name].as_str().is_some_and(|text| !text.is_empty()), "{name} in {record}");
        }
        assert_eq!(
            record["rail_names"].as_array().unwrap().len() as u64,
            record["rails"].as_u64().unwrap(),
            "{record}"
        );
        assert_eq!(record.as_object().unwrap().len(), 25, "{record}");
    }
    records
}

fn names(records: &[Value]) -> Vec<String> {
    let mut names: Vec<_> = records.iter().map(|record| record["test"].as_str().unwrap().to_owned()).collect();
    names.dedup();
    names
}

/// Whether there is a wire here; if not, prints that.
fn wire() -> bool {
    let there = symrail_transport::ofi::load(&symrail_transport::env::Settings::default()).is_ok();
    if !there {
        println!("SKIPPED: libfabric is not installed");
    }
    there
}

#[test]
#[serial]
fn every_test_runs_over_mapped_memory() {
    let all = records(&[&["raw-memcpy-bw"], &RUNTIME[..], TINY].concat(), &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    assert_eq!(names(&all[13..]), RUNTIME);
    assert!(all[..13].iter().all(|record| record["test"] == "raw-memcpy-bw" && record["transport"] == "copies"));
    for record in &all[13..] {
        assert_eq!((&record["transport"], &record["hosts"]), (&"mapped".into(), &1.into()), "{record}");
    }
    let sizes: Vec<_> = all.iter().filter(|record| record["test"] == "put-lat").map(|record| &record["size"]).collect();
    assert_eq!(sizes.len(), 13);
    assert_eq!((sizes[0], sizes[12]), (&1.into(), &4096.into()));
}

#[test]
#[serial]
fn every_test_runs_over_a_wire_and_without_a_runtime() {
    if !wire() {
        return;
    }
    let provider = [("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")];
    let tests = [&RAW[..], &RUNTIME, TINY, &["--rails", "2"]].concat();
    let all = records(&tests, &provider);
    assert_eq!(names(&all), [&RAW[..], &RUNTIME].concat());
    for record in &all {
        let raw = record["test"].as_str().unwrap().starts_with("raw-");
        assert_eq!((&record["transport"], &record["provider"]), (&"libfabric".into(), &"tcp;ofi_rxm".into()));
        assert_eq!((&record["hosts"], &record["rails"]), (&2.into(), &(if raw { 1 } else { 2 }).into()), "{record}");
    }
}

#[test]
#[serial]
fn the_cpu_device_runs_the_same_tests() {
    let tests = [&RUNTIME[..], TINY, &["--device", "cpu"]].concat();
    let mapped = records(&tests, &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    assert_eq!(names(&mapped), RUNTIME);
    if wire() {
        let wired = records(&[&tests[..], &["--rails", "1"]].concat(), &[]);
        assert_eq!(names(&wired), RUNTIME);
        assert!(wired.iter().all(|record| record["device"] == "cpu" && record["transport"] == "libfabric"));
    }
}

#[test]
#[serial]
fn all_is_everything_and_more_pes_may_take_part() {
    if !wire() {
        return;
    }
    let two = records(&["all", "-b", "8", "-e", "8", "-i", "2", "-w", "1", "--rails", "1"], &[]);
    assert_eq!(names(&two), [&RAW[..], &["raw-memcpy-bw"], &RUNTIME].concat());
    let three = ["all", "-n", "3", "-b", "8", "-e", "8", "-i", "2", "-w", "1"];
    let json = records(&three, &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    // The raw tests need two PEs; they print that, and the others run.
    assert_eq!(names(&json), RUNTIME);
    let output = perf(&three, &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    let text = printed(&output);
    assert!(text.contains("raw-put-lat: SKIPPED: raw tests are for 2 PEs, and there are 3"), "{text}");
}

#[test]
#[serial]
fn dispatch_and_combine_are_measured_with_both_bandwidths() {
    let tests = ["ep-dispatch", "ep-combine", "ep-ll"];
    let tiny = ["-b", "64", "-e", "64", "-i", "2", "-w", "1"];
    for more in [&["-n", "3"][..], &["--rails", "2"]] {
        if more[0] == "--rails" && !wire() {
            return;
        }
        let args = [&tests[..], &tiny, more].concat();
        assert_eq!(names(&records(&args, &[])), tests);
        let text = printed(&perf(&args, &[]));
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("# bandwidth of the algorithm ")).collect();
        assert_eq!(lines.len(), tests.len(), "{text}");
        for line in lines {
            let rates: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            assert!(rates.len() == 2 && rates.iter().all(|&rate| rate > 0.0), "{line}");
        }
    }
    let on_cpu = records(&[&tests[..], &tiny, &["--device", "cpu"]].concat(), &[]);
    assert_eq!(names(&on_cpu), tests);
    assert!(on_cpu.iter().all(|record| record["device"] == "cpu"), "{on_cpu:?}");
}

#[test]
#[serial]
fn transposes_and_halos_of_cubes_are_measured() {
    let tests = ["transpose", "halo"];
    let tiny = ["-b", "9000", "-e", "65536", "-i", "2", "-w", "1"];
    for more in [&["-n", "4"][..], &["-n", "3", "--rails", "2"]] {
        if more.contains(&"--rails") && !wire() {
            return;
        }
        let found = records(&[&tests[..], &tiny, more].concat(), &[]);
        let sizes: Vec<_> = found.iter().map(|record| record["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [8, 16, 8, 16].map(|edge| 16 * edge * edge * edge));
        assert!(found.iter().all(|record| record["p50"].as_f64().unwrap() > 0.0));
    }
}

#[test]
#[serial]
fn products_of_spread_layers_are_measured_with_what_they_hide() {
    let tests = ["ag-gemm", "gemm-rs", "gemm-ar"];
    let tiny = ["-b", "100K", "-e", "100K", "-i", "2", "-w", "1"];
    for more in [&["-n", "3"][..], &["--device", "cpu"], &["--rails", "2"]] {
        if more[0] == "--rails" && !wire() {
            return;
        }
        let json = Scratch::new("products.json");
        let output = perf(&[&tests[..], &tiny, more, &["--json", json.0.to_str().unwrap()]].concat(), &[]);
        let text = printed(&output);
        assert!(output.status.success(), "{text}");
        let found: Vec<Value> = serde_json::from_str(&json.text()).unwrap();
        assert_eq!(names(&found), tests);
        assert!(found.iter().all(|record| record["unit"] == "GFLOP/s" && record["p50"].as_f64().unwrap() > 0.0));
        let hidden = text.lines().filter(|line| line.starts_with("# 50 rows") && line.contains("overlap efficiency "));
        assert_eq!(hidden.count(), tests.len(), "{text}");
    }
}

#[test]
#[serial]
fn collectives_of_devices_are_measured() {
    let tests = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"];
    let tiny = ["-b", "1", "-e", "40", "-i", "2", "-w", "1"];
    let args = [&tests[..], &tiny, &["-n", "3"]].concat();
    let on_host = records(&args, &[]);
    assert_eq!(names(&on_host), tests);
    assert!(on_host.iter().all(|record| record["device"] == "cpu" && record["unit"] == "MB/s"), "{on_host:?}");
    if wire() {
        assert_eq!(names(&records(&[&tests[..], &tiny, &["--rails", "2", "--device", "cpu"]].concat(), &[])), tests);
    }
}

#[test]
#[serial]
fn a_busy_target_is_served() {
    if !wire() {
        return;
    }
    let args = ["get-lat", "amo-lat", "put-lat", "-b", "8", "-e", "8", "-i", "2", "--busy-target", "--rails", "1"];
    let json = Scratch::new("busy.json");
    let output = perf(&[&args[..], &["--json", json.0.to_str().unwrap()]].concat(), &[]);
    assert!(output.status.success(), "{}", printed(&output));
    let records: Vec<Value> = serde_json::from_str(&json.text()).unwrap();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| record["p50"].as_f64().unwrap() > 0.0 && record["target"] == "busy"));
}

#[test]
#[serial]
fn tables_say_what_is_in_force_and_plots_are_drawn() {
    let (plot, png) = (Scratch::new("plot.svg"), Scratch::new("plot.PNG"));
    let args = ["put-lat", "barrier-lat", "-b", "8", "-e", "16K", "-i", "5", "--plot"];
    let output = perf(&[&args[..], &[png.0.to_str().unwrap()]].concat(), &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    assert!(output.status.success(), "{}", printed(&output));
    assert!(std::fs::read(&png.0).unwrap().starts_with(b"\x89PNG\r\n"));
    let output = perf(&[&args[..], &[plot.0.to_str().unwrap()]].concat(), &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    let text = printed(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("2 PEs on 1 host, device host, path mapped"), "{text}");
    assert!(text.contains("size(B)") && text.contains("p50(us)") && text.contains("p99(us)"), "{text}");
    assert!(text.contains("data at the target checked"), "{text}");
    // Without a terminal there is no progress bar.
    assert!(!String::from_utf8_lossy(&output.stderr).contains('█'), "{text}");
    let svg = plot.text();
    assert!(svg.contains("<svg") && svg.contains("</svg>") && svg.contains("put-lat"), "{svg}");
    let words: Vec<&str> = svg.lines().map(str::trim).collect();
    for word in ["8", "512", "1K", "16K", "median (us)", "barrier-lat"] {
        assert!(words.contains(&word), "{word}: {svg}");
    }
    assert!(svg.contains("2 PEs on 1 host") && svg.contains("medians, 20"), "{svg}");
    assert!(text.contains("# -b and -e are not used by barrier-lat"), "{text}");
}

#[test]
#[serial]
fn a_plot_has_earlier_runs_beside_this_one() {
    let (json, plot) = (Scratch::new("before.json"), Scratch::new("both.svg"));
    let args = ["put-lat", "-b", "8", "-e", "64", "-i", "5"];
    let output = perf(&[&args[..], &["--json", json.0.to_str().unwrap()]].concat(), &[]);
    assert!(output.status.success(), "{}", printed(&output));
    let beside = ["--beside", json.0.to_str().unwrap()];
    let output = perf(&[&args[..], &["--plot", plot.0.to_str().unwrap()], &beside].concat(), &[]);
    assert!(output.status.success(), "{}", printed(&output));
    let (svg, run) = (plot.text(), json.0.file_stem().unwrap().to_str().unwrap());
    let words: Vec<&str> = svg.lines().map(str::trim).collect();
    for word in ["put-lat".to_owned(), format!("put-lat ({run})")] {
        assert!(words.contains(&&*word), "{word}: {svg}");
    }
}

#[test]
#[serial]
fn inside_a_launcher_it_just_runs() {
    let program = env!("CARGO_BIN_EXE_symrail");
    let args = ["run", "-n", "2", "--", program, "perf", "put-lat", "-b", "8", "-e", "8", "-i", "5"];
    let output = symrail(&args, &[("SYMRAIL_NIC_LIST", "127.0.0.2")]);
    let text = printed(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("# put-lat").count(), 1, "{text}");
    assert!(text.contains("2 PEs on 1 host"), "{text}");
}

#[test]
fn wrong_arguments_are_answered_with_right_ones() {
    for (args, words) in [
        (&["put-latency"][..], &["put-latency", "put-lat", "raw-put-lat", "all"][..]),
        (&[], &["TEST"]),
        (&["put-lat", "-b", "huge"], &["huge", "number of bytes"]),
        (&["put-lat", "-b", "64", "-e", "8"], &["64", "8", "-e"]),
        (&["put-lat", "-i", "0"], &["-i 0"]),
        (&["put-lat", "-n", "1"], &["-n 1", "2 PEs"]),
        (&["put-lat", "--device", "gpu"], &["gpu", "host", "cpu", "cuda"]),
        (&["put-lat", "--device", "cuda"], &["cuda", "host or cpu"]),
        (&["halo", "--device", "cuda"], &["cuda", "no CUDA driver"]),
        (&["transpose", "--device", "cpu"], &["--device cpu has no transpose", "use host"]),
        (&["put-bw", "--busy-target"], &["--busy-target", "get-lat", "amo-lat", "put-bw"]),
        (&["put-bw", "--idle-target"], &["--idle-target", "get-lat", "amo-lat", "put-bw"]),
        (&["get-lat", "--idle-target", "--busy-target"], &["--idle-target", "--busy-target"]),
        (&["raw-put-lat", "-n", "4"], &["raw-put-lat", "2 PEs", "4"]),
        (&["raw-put-lat", "--device", "cpu"], &["raw-put-lat", "use host"]),
        (&["put-lat", "--hosts", "3"], &["--hosts", "3"]),
        (&["put-rate", "-b", "128"], &["-b and -e are not used by put-rate", "8 bytes"]),
        (&["put-lat", "-w", "0"], &["-w 0", "1 or more"]),
        (&["put-lat", "--beside", "x.json"], &["--plot"]),
        (&["put-lat", "--plot", "x.svg", "--beside", "/nonexistent.json"], &["/nonexistent.json", "--json"]),
        (&["put-lat", "--plot", "figures.txt"], &["figures.txt", ".svg", ".png"]),
        (&["put-lat", "--plot", "x.svg", "--json", "./x.svg"], &["--json and --plot", "two files"]),
        (&["put-lat", "-b", "1T"], &["2 PEs with 2.00 TiB each", "free", "-e"]),
        (&["put-lat", "-n", "4294967295"], &["4294967295 PEs"]),
        (&["put-lat", "--rails", "0"], &["--rails"]),
    ] {
        let begun = Instant::now();
        let output = perf(args, &[]);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: no {word} in {text}");
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}

#[test]
#[serial]
fn a_setting_that_is_not_accepted_ends_all_pes() {
    let output = perf(&["put-lat", "-b", "8", "-e", "8"], &[("SYMRAIL_RAIL_POLICY", "random")]);
    let text = printed(&output);
    assert!(!output.status.success());
    assert!(text.contains("SYMRAIL_RAIL_POLICY") && text.contains("round-robin"), "{text}");
    let output = perf(&["raw-put-lat"], &[("SYMRAIL_LIBFABRIC_PROVIDER", "nothing-like-it")]);
    let text = printed(&output);
    assert!(!output.status.success() && text.contains("nothing-like-it"), "{text}");
}

/// Bytes do not move over loopback faster than memory is copied: a window ends when its last operation is complete.
#[test]
#[serial]
fn windows_of_bare_twins_end_when_they_are_complete() {
    if !wire() {
        return;
    }
    let args = ["raw-put-bw", "raw-get-bw", "raw-put-rate", "raw-amo-rate", "-b", "1M", "-e", "1M", "-i", "20"];
    let all = records(&[&args[..], &["--rails", "1"]].concat(), &[("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")]);
    for record in &all {
        let most = if record["unit"] == "MB/s" { 100_000.0 } else { 50.0 };
        assert!(record["best"].as_f64().unwrap() < most, "{record}");
        assert_eq!((&record["window"], &record["n_pes"], &record["batch"]), (&64.into(), &2.into(), &64.into()));
        assert_eq!(record["rail_names"][0], "127.0.0.2");
    }
}

#[test]
#[serial]
fn figures_are_in_their_file_as_they_come() {
    let json = Scratch::new("whole.json");
    let path = json.0.to_str().unwrap();
    let nowhere = "/nonexistent/x.json";
    for option in ["--json", "--plot"] {
        let output = perf(&["put-lat", option, if option == "--json" { nowhere } else { "/nonexistent/x.svg" }], &[]);
        let text = printed(&output);
        assert!(
            !output.status.success() && text.contains("writing /nonexistent/x") && !text.contains("# put"),
            "{text}"
        );
    }
    // A refused call leaves no file behind.
    assert_eq!(perf(&["put-lat", "--json", path, "-w", "0"], &[]).status.code(), Some(2));
    assert!(!json.0.exists());
    let mut command = Command::new(env!("CARGO_BIN_EXE_symrail"));
    command.args(["perf", "put-lat", "-n", "2", "--hosts", "1", "-i", "100000", "--json", path]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let all = || serde_json::from_str::<Vec<Value>>(&std::fs::read_to_string(&json.0).ok()?).ok();
    while all().is_none_or(|all| all.len() < 2) && begun.elapsed() < TIME_LIMIT {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        all().is_some_and(|all| all.len() >= 2 && all.iter().all(|one| one["test"] == "put-lat")),
        "{}",
        json.text()
    );
    // A stream gets the same array.
    let output = perf(&["put-lat", "-b", "8", "-e", "16", "-i", "5", "--json", "/dev/stderr"], &[]);
    let streamed: Vec<Value> = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(streamed.len(), 2);
}

#[test]
#[serial]
fn figures_that_cannot_be_printed_are_a_failure() {
    let run = |out: Stdio| {
        let args = ["perf", "put-lat", "-e", "64", "-i", "1000"];
        Command::new(env!("CARGO_BIN_EXE_symrail")).args(args).stdout(out).output().unwrap()
    };
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for (out, said) in [(Stdio::from(full), "No space left on device"), (closed.into(), "")] {
        let output = run(out);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(said) && !text.contains("panicked"), "{text}");
    }
}

#[test]
#[serial]
fn a_mapping_of_nics_that_leaves_pes_out_is_an_error_though_no_rail_is_needed() {
    if !wire() {
        return;
    }
    let env = [("SYMRAIL_NIC_LIST", "127.0.0.2"), ("SYMRAIL_NIC_PE_MAPPING", "127.0.0.2:1:1")];
    let output = perf(&["put-lat", "--hosts", "1", "-b", "8", "-e", "8", "-i", "3"], &env);
    let text = printed(&output);
    assert!(!output.status.success() && text.contains("counts that add up to at least the 2 PEs"), "{text}");
}
