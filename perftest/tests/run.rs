//! `symrail run` as users run it. The PEs are shell lines, or this binary started again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::launched::{LIMIT, Running, run};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use symrail::bootstrap::{self, Bootstrap, launcher};
use symrail_transport::env::Settings;

/// The role of a copy of this binary that runs as a PE.
const ROLE: &str = "RUN_TEST_ROLE";
/// The PE that exits in the role `put`.
const EXITS: &str = "RUN_TEST_EXITS";

fn open() -> Box<dyn Bootstrap> {
    bootstrap::open(&Settings::default()).unwrap()
}

fn gather(bootstrap: &mut dyn Bootstrap) {
    for round in 0..3 {
        let blob = |pe: u32| format!("{round}:{}", "x".repeat(pe as usize)).into_bytes();
        let all = bootstrap.allgather(&blob(bootstrap.pe())).unwrap();
        assert!(all.into_iter().eq((0..bootstrap.n_pes()).map(blob)));
        bootstrap.barrier().unwrap();
    }
}

/// Puts to all PEs until that fails, and then ends the job, as programs in C do. Exits after some puts if that is asked
/// for.
fn put_for_ever() -> ! {
    println!("PE {} pid {}", std::env::var(launcher::PE).unwrap(), std::process::id());
    let exits = std::env::var(EXITS).ok().and_then(|pe| pe.parse().ok());
    let Ok(runtime) = symrail::Runtime::init() else { std::process::exit(1) };
    let (me, others) = (runtime.my_pe(), (0..runtime.n_pes()).filter(|pe| *pe != runtime.my_pe()));
    let others: Vec<u32> = others.collect();
    let mut left = 50;
    let mut put = || -> symrail::Result<()> {
        let bytes = vec![1; 1 << 16];
        let area = runtime.alloc_slice::<u8>(1 << 16)?;
        loop {
            others.iter().try_for_each(|pe| area.put(0, &bytes, *pe))?;
            runtime.quiet()?;
            left -= i32::from(exits == Some(me));
            if left == 0 {
                // Without destructors and exit handlers, as a program that gives up.
                // SAFETY: always allowed.
                unsafe { libc::_exit(3) };
            }
        }
    };
    let why = put().unwrap_err().to_string();
    runtime.abort(1, &why);
    std::process::exit(1);
}

/// Waits for ever; the test's launcher ends it.
fn wait_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Not a test by itself: the body of the PEs that the tests start.
#[test]
fn pe() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "put" {
        put_for_ever();
    }
    let mut bootstrap = open();
    let pe = bootstrap.pe();
    match role.as_str() {
        "gather" => {
            gather(&mut *bootstrap);
            bootstrap.finish().unwrap();
            println!("PE {pe} of {} is content: {}", bootstrap.n_pes(), bootstrap.describe());
        }
        "twice" => {
            // The secret's pipe is gone by now, and so is its descriptor.
            let fd = std::env::var(launcher::SECRET_FD).unwrap();
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
            assert!(!link.is_ok_and(|link| link.to_string_lossy().starts_with("pipe:")));
            gather(&mut *bootstrap);
            bootstrap.finish().unwrap();
            drop(bootstrap);
            let mut again = open();
            gather(&mut *again);
            again.finish().unwrap();
        }
        "wait" => {
            println!("ready");
            wait_for_ever();
        }
        "die" => {
            println!("pid {}", std::process::id());
            bootstrap.barrier().unwrap();
            if pe == 1 {
                kill(Pid::this(), Signal::SIGKILL).unwrap();
            }
            // Notices the death and fails too: the launcher must not blame this PE.
            bootstrap.barrier().unwrap();
        }
        "quit" => {
            bootstrap.barrier().unwrap();
            if pe == 1 {
                std::process::exit(0);
            }
            wait_for_ever();
        }
        "runtime" => {
            drop(bootstrap);
            let runtime = symrail::Runtime::init().unwrap();
            println!("ready");
            while runtime.barrier_all().is_ok() {}
            wait_for_ever();
        }
        "join" => {
            drop(bootstrap);
            symrail::Runtime::init().unwrap().finalize().unwrap();
        }
        "beat" => {
            drop(bootstrap);
            let runtime = symrail::Runtime::init().unwrap();
            let mut beaten = None::<Instant>;
            while runtime.barrier_all().is_ok() {
                if pe == 0 && beaten.is_none_or(|then| then.elapsed() > Duration::from_millis(100)) {
                    println!("{}", now());
                    beaten = Some(Instant::now());
                }
            }
            panic!("PE {pe} has lost another");
        }
        "abort" => {
            bootstrap.barrier().unwrap();
            if pe == 1 {
                bootstrap.abort(7, "out of heap");
            }
            wait_for_ever();
        }
        role => panic!("no role {role}"),
    }
}

/// Milliseconds of a clock that all processes share.
fn now() -> u128 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()
}

fn symrail(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symrail"));
    command.arg("run").args(options).stdin(Stdio::null());
    command
}

/// The launcher with PEs that run a shell line.
fn shell(options: &[&str], line: &str) -> Command {
    let mut command = symrail(options);
    command.args(["--", "sh", "-c", line]);
    command
}

/// The launcher with PEs that run this binary in a role.
fn role(options: &[&str], role: &str) -> Command {
    let mut command = symrail(options);
    command.arg("--").arg(std::env::current_exe().unwrap()).args(["--exact", "run::pe", "--nocapture"]).env(ROLE, role);
    command
}

/// The longest that a job may take to end when that is requested: far less than PEs of the tests sleep.
const SOON: Duration = Duration::from_secs(30);

fn is_alive(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

#[test]
fn pes_find_each_other() {
    for n in [1, 2, 16] {
        let started = Instant::now();
        let (code, out, err) = run(role(&["-n", &n.to_string()], "gather"));
        println!("{n} PEs by the launcher: {:?}", started.elapsed());
        assert_eq!((code, err.as_str()), (Some(0), ""));
        for pe in 0..n {
            let content = format!("PE {pe} of {n} is content: launcher: ");
            assert!(out.iter().any(|line| line.contains(&content)), "{out:?}");
        }
    }
}

/// The launcher in a network namespace of its own, after a shell line has changed its interfaces. `None` after a
/// message if there are no such namespaces.
fn in_namespace(setup: &str, launcher: &Command) -> Option<Command> {
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &format!("{setup}\nexec \"$@\""), "sh"]).stdin(Stdio::null());
    command.arg(launcher.get_program()).args(launcher.get_args());
    command.envs(launcher.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let probe = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).output();
    if probe.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(command);
    }
    println!("SKIPPED: no network namespaces for this user, or no ip (Debian: iproute2): {probe:?}");
    None
}

#[test]
fn pes_of_a_host_need_no_ipv4() {
    let only_ipv6 = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo";
    for hosts in [&[][..], &["--hosts", "localhost:2"]] {
        let command = role(&[&["-n", "2"], hosts].concat(), "gather");
        let Some(command) = in_namespace(only_ipv6, &command) else { return };
        let (code, out, err) = run(command);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out:?}");
        assert!(out.iter().any(|line| line.contains("PE 1 of 2, rendezvous at [::1]:")), "{out:?}");
    }
    // Another address of this host.
    let other = "ip link set lo up && ip addr add 10.9.9.9/32 dev lo && ip addr del 127.0.0.1/8 dev lo && \
                 ip -6 addr flush dev lo";
    let Some(command) = in_namespace(other, &role(&["-n", "2"], "gather")) else { return };
    let (code, out, err) = run(command);
    assert!(code == Some(0) && out.iter().any(|line| line.contains("rendezvous at 10.9.9.9:")), "{out:?} {err}");
}

#[test]
fn an_unknown_name_of_the_nic_list_is_warned_of_once_a_host() {
    for (options, hosts) in [(&["-n", "3"][..], 1), (&["-n", "4", "--hosts", "2"], 2)] {
        let mut command = role(options, "join");
        command.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
        command.env("SYMRAIL_NIC_LIST", "127.0.0.2,no-such-nic");
        let (code, out, err) = run(command);
        let warnings = err.lines().filter(|line| line.contains("has no no-such-nic on this host")).count();
        assert_eq!((code, warnings), (Some(0), hosts), "{options:?}: {out:?}\n{err}");
    }
}

#[test]
fn own_names_and_addresses_are_reached_without_ssh() {
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let hosts = format!("127.0.0.1:1,[::1]:1,LOCALHOST:1,{own}.:1");
    let (code, out, err) = run(shell(&["--hosts", &hosts, "--ssh", "no-such-ssh"], "echo here"));
    assert_eq!((code, out.len()), (Some(0), 4), "{err}");
}

#[test]
fn the_same_binary_works_under_mpirun() {
    if !Command::new("mpirun").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no mpirun (Debian: openmpi-bin)");
        return;
    }
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", "2"]).arg(std::env::current_exe().unwrap()).stdin(Stdio::null());
    command.args(["--exact", "run::pe", "--nocapture"]).env(ROLE, "gather");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let (code, out, err) = run(command);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.iter().any(|line| line.contains("PE 1 of 2 is content: pmix: ")), "{out:?}");
}

#[test]
fn a_process_may_finalize_and_initialize_again() {
    let (code, _, err) = run(role(&["-n", "3"], "twice"));
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

#[test]
fn a_pe_that_is_killed_ends_the_job_and_is_blamed() {
    let started = Instant::now();
    let (code, out, err) = run(role(&["-n", "4"], "die"));
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert_eq!(code, Some(137), "{err}");
    let blame = err.lines().find(|line| line.starts_with("symrail run: ")).unwrap();
    let words = ["symrail run: PE 1 (pid ", "was killed by signal 9 (SIGKILL); not by symrail run", "dmesg"];
    assert!(words.iter().all(|words| blame.contains(words)), "{err}");
    let pids: Vec<&str> = out.iter().filter_map(|line| line.split_once("pid ")).map(|(_, pid)| pid).collect();
    assert_eq!(pids.len(), 4, "{out:?}");
    assert!(!pids.iter().any(|pid| is_alive(pid)));
}

/// The number of kills; runs of a hundred have named the killed PE each time.
fn kills() -> u32 {
    std::env::var("SYMRAIL_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// The launcher's first message, if there is any.
fn first_message(err: &str) -> &str {
    err.lines().find_map(|line| line.strip_prefix("symrail run: ")).unwrap_or_default()
}

/// How PEs of the role `put` reach each other: mapped, over one rail, or over several.
const PATHS: [&[&str]; 5] =
    [&[], &["--hosts", "2"], &["--hosts", "2", "--rails", "1"], &["--hosts", "2", "--rails", "2"], &["--hosts", "3"]];

#[test]
fn a_pe_that_is_killed_at_any_moment_is_named_first() {
    let seed = std::env::var("SYMRAIL_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let mut state = seed.unwrap_or_else(|| u64::from(random()) + 1);
    println!("SYMRAIL_TEST_SEED={state}");
    let mut below = |limit: u64| {
        // Of Numerical Recipes; the high bits are the better ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for round in 0..kills() {
        let options = PATHS[round as usize % PATHS.len()];
        let n = if options == ["--hosts", "3"] { 3 + below(2) } else { 2 + below(3) };
        let victim = below(n);
        let (count, begins) = (n.to_string(), format!("PE {victim} pid "));
        let running = Running::start(role(&[&["-n", &count], options].concat(), "put"));
        let pid: String = (0..n).find_map(|_| said_pid(&running, &begins)).unwrap();
        // While PEs load libraries, while they join, and while they put.
        let moment = Duration::from_millis(below(1500));
        std::thread::sleep(moment);
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
        let (code, _, err) = running.end(SOON);
        let expected = format!("PE {victim} (pid {pid}) was killed by signal 9 (SIGKILL)");
        let named = code == Some(137) && first_message(&err).starts_with(&expected);
        assert!(named, "round {round}: {n} PEs {options:?}, after {moment:?}, {expected}: {code:?}\n{err}");
    }
}

/// The rest of the next line that begins in this way, among those up to the next that tells of a process id.
fn said_pid(running: &Running, begins: &str) -> Option<String> {
    loop {
        let line = running.line();
        // The test harness may have begun the line.
        if let Some((_, rest)) = line.split_once(begins) {
            return Some(rest.to_owned());
        }
        if line.contains(" pid ") {
            return None;
        }
    }
}

#[test]
fn a_pe_that_exits_or_crashes_in_the_midst_of_others_puts_is_named_first() {
    let agents: &[&str] = &["--hosts", "localhost:1,127.0.0.1:2"];
    for options in PATHS.into_iter().chain([agents]) {
        let options = [&["-n", "3"], options].concat();
        let mut command = role(&options, "put");
        command.env(EXITS, "1");
        let (code, _, err) = run(command);
        let first = first_message(&err);
        let named = first.starts_with("PE 1 ") && first.ends_with(" exited with code 3");
        assert!(code == Some(3) && named, "{options:?}: {code:?}\n{err}");
        let running = Running::start(role(&options, "put"));
        let pid = (0..3).find_map(|_| said_pid(&running, "PE 2 pid ")).unwrap();
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGILL).unwrap();
        let (code, _, err) = running.end(SOON);
        let first = first_message(&err);
        let named = first.starts_with("PE 2 ") && first.contains("killed by signal 4 (SIGILL)");
        assert!(code == Some(132) && named, "{options:?}: {code:?}\n{err}");
    }
}

#[test]
fn pes_that_do_not_heed_sigterm_are_killed_with_all_they_started() {
    let started = Instant::now();
    let line = r#"trap "" TERM; if [ $SYMRAIL_LAUNCHER_PE = 1 ]; then exit 5; fi; sleep 600 & wait; wait"#;
    let (code, _, err) = run(shell(&["-n", "3"], line));
    assert_eq!(code, Some(5));
    assert!(err.contains("PE 1 (pid ") && err.contains("exited with code 5"), "{err}");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[test]
fn what_a_pe_left_in_its_group_goes_with_the_job() {
    let started = Instant::now();
    assert_eq!(run(shell(&["-n", "2"], "sleep 600 & exit 0")).0, Some(0));
    assert!(started.elapsed() < SOON);
}

#[test]
fn a_pe_that_quits_without_finalizing_is_told_of() {
    let (code, _, err) = run(role(&["-n", "2"], "quit"));
    assert_eq!(code, Some(1));
    assert!(err.contains("PE 1 (pid ") && err.contains("exited with code 0 without finalizing"), "{err}");
}

#[test]
fn a_pe_that_never_joins_is_not_waited_for() {
    let exe = std::env::current_exe().unwrap();
    let line = format!("[ $SYMRAIL_LAUNCHER_PE = 1 ] || exec {} --exact run::pe --nocapture", exe.display());
    // Served by the launcher itself, and through an agent.
    for hosts in [&["-n", "2"], &["--hosts", "localhost:2"]] {
        let mut command = shell(hosts, &line);
        command.env(ROLE, "gather");
        let started = Instant::now();
        let (code, _, err) = run(command);
        assert!(started.elapsed() < SOON);
        assert_eq!(code, Some(101));
        assert!(err.contains("PE 1 has left") || err.contains("peer: 1"), "{err}");
        assert!(err.contains("symrail run: PE 0 ") && err.contains("exited with code 101"), "{err}");
    }
}

#[test]
fn an_abort_ends_the_job_with_its_code() {
    let (code, _, err) = run(role(&["-n", "3"], "abort"));
    assert_eq!((code, err.as_str()), (Some(7), "symrail run: PE 1 aborted the job with code 7: out of heap\n"));
}

#[test]
fn programs_that_cannot_be_started_are_named() {
    let (code, _, err) = run({
        let mut command = symrail(&["-n", "2"]);
        command.args(["--", "no-such-program-anywhere"]);
        command
    });
    assert_eq!(code, Some(127));
    assert!(err.contains("PE 0: no-such-program-anywhere cannot be started"), "{err}");
}

#[test]
fn what_makes_no_sense_is_refused_once_and_before_anything_is_started() {
    let refused: [(&[&str], &str); 8] = [
        (&["-n", "0"], "1..=1048576"),
        (&["-n", "2", "-n", "3"], "cannot be used multiple times"),
        (&["-n", "2", "--timeout", "0"], "0 is not in 1.."),
        (&["-n", "2", "--host", "2"], "unexpected argument '--host'"),
        (&["-n", "2", "--hosts", "3"], "cannot be spread over 3 hosts"),
        (&["-q", "2"], "unexpected argument '-q'"),
        (&["-n", "2", "-x", "NOBODY_SETS_THIS"], "-x: NOBODY_SETS_THIS"),
        (&[], "-n <N>"),
    ];
    for (options, why) in refused {
        let (code, out, err) = run(shell(options, "echo started"));
        assert_eq!((code, out.len()), (Some(2), 0), "{options:?}: {err}");
        assert!(err.contains(why), "{options:?}: {err}");
    }
    let mut command = shell(&["-np", "3", "--timeout", "18446744073709551615"], "echo started");
    command.env("SYMRAIL_HEAPSIZE", "1G").env_remove("SYMRAIL_LOG");
    let (code, out, err) = run(command);
    assert_eq!((code, out.len()), (Some(0), 3), "{err}");
    assert_eq!(err.matches("did you mean SYMRAIL_HEAP_SIZE?").count(), 1, "{err}");
    let mut command = role(&["-n", "3"], "gather");
    command.env("SYMRAIL_TRANSPORT", "0");
    let (code, out, err) = run(command);
    assert_eq!((code, out.len()), (Some(2), 0), "{err}");
    assert_eq!(err, "symrail run: SYMRAIL_TRANSPORT=0: not accepted; use auto|libfabric|ibverbs\n");
}

#[test]
fn output_that_nobody_takes_ends_the_pes_or_fails_the_job() {
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let mut endless = symrail(&["-n", "2", "--prefix"]);
    endless.args(["--", "yes"]).stdout(closed).stderr(Stdio::null());
    let begun = Instant::now();
    let mut child = endless.spawn().unwrap();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("it goes on for nobody");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(code, Some(141), "as the PEs by themselves: SIGPIPE");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = shell(&["-n", "1", "--prefix"], "echo lost; sleep 0.1").stdout(full).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("output of the PEs could not be written: No space left"), "{err}");
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

#[test]
fn output_passes_unchanged_or_in_whole_prefixed_lines() {
    let plain = output(shell(&["-n", "1"], r"printf 'a\n\377b'; printf 'c\n' >&2"));
    assert_eq!((plain.stdout.as_slice(), plain.stderr.as_slice()), (&b"a\n\xffb"[..], &b"c\n"[..]));

    let line = "for i in 1 2 3 4 5 6 7 8 9; do printf $SYMRAIL_LAUNCHER_PE; printf \"$SYMRAIL_LAUNCHER_PE\\n\"; done";
    let prefixed = output(shell(&["-n", "4", "--prefix"], line));
    let text = String::from_utf8(prefixed.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> = (0..4).flat_map(|pe| vec![format!("[{pe}] {pe}{pe}"); 9]).collect();
    assert_eq!(lines, expected);
}

#[test]
fn a_slow_reader_gets_all_output() {
    let mut running = symrail(&["-n", "2", "--prefix"]);
    running.args(["--", "seq", "10000"]);
    let mut child = running.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    // Each PE's output fits into its pipe, so the PEs end at once; the total does not fit into ours, and waits there
    // for longer than the launcher's limit for a stream on which nothing arrives.
    let mut first = [0; 4];
    out.read_exact(&mut first).unwrap();
    std::thread::sleep(Duration::from_millis(3500));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(rest.lines().count(), 20_000);
}

#[test]
fn standard_input_goes_to_pe_0() {
    let mut command = shell(&["-n", "2"], "cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"hello");
}

#[test]
fn hosts_and_rails_reach_the_pes() {
    let line = "echo $SYMRAIL_LAUNCHER_PE/$SYMRAIL_LAUNCHER_N_PES $SYMRAIL_FAKE_HOST $SYMRAIL_NIC_LIST $SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE";
    let mut command = shell(&["-n", "4", "--hosts", "2", "--rails", "2"], line);
    command.env_remove("SYMRAIL_NIC_LIST").env_remove("SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE");
    let (code, mut out, _) = run(command);
    out.sort();
    assert_eq!(code, Some(0));
    assert_eq!(
        out,
        [
            "0/4 host0 127.0.0.2,127.0.0.3 2",
            "1/4 host0 127.0.0.2,127.0.0.3 2",
            "2/4 host1 127.0.0.2,127.0.0.3 2",
            "3/4 host1 127.0.0.2,127.0.0.3 2"
        ]
    );
    let mut command = shell(&["-n", "1", "--rails", "2"], line);
    command.env("SYMRAIL_NIC_LIST", "eth1").env_remove("SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE");
    assert!(run(command).1[0].ends_with(" eth1 2"));
    let mut command = shell(&["-n", "1", "--rails", "2"], line);
    command.env("SYMRAIL_NIC_LIST", "").env("SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE", "");
    assert!(run(command).1[0].ends_with(" 127.0.0.2,127.0.0.3 2"), "empty counts as unset");
}

#[test]
fn bound_pes_have_cores_of_their_own() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let (code, out, err) = run(shell(&["-n", &cores.to_string(), "--bind"], "nproc"));
    assert_eq!((code, out), (Some(0), vec!["1".to_owned(); cores]), "{err}");
}

#[test]
fn ctrl_c_ends_the_job_and_a_second_one_kills() {
    // No shell: dash may lose a SIGINT that arrives while it forks.
    let running = Running::start(role(&["-n", "2"], "wait"));
    for _ in 0..2 {
        while !running.line().contains("ready") {}
    }
    let started = Instant::now();
    kill(running.pid(), Signal::SIGINT).unwrap();
    let (code, _, err) = running.end(LIMIT);
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("passing SIGINT on") && !err.contains("was killed"), "{err}");

    let line = r#"trap "echo heard" INT; trap "" TERM; echo ready; while :; do sleep 0.1; done"#;
    let running = Running::start(shell(&["-n", "2"], line));
    assert_eq!([running.line(), running.line()], ["ready", "ready"]);
    let first = Instant::now();
    kill(running.pid(), Signal::SIGINT).unwrap();
    assert_eq!([running.line(), running.line()], ["heard", "heard"]);
    kill(running.pid(), Signal::SIGINT).unwrap();
    // The launcher kills by itself 2 s after the first, and a busy machine may be too late for the second.
    let in_time = first.elapsed() < Duration::from_secs(1);
    let (code, _, err) = running.end(LIMIT);
    assert_eq!(code, Some(130), "{err}");
    assert!(!in_time || err.contains("SIGINT again: killing the PEs"), "{err}");
    assert!(started.elapsed() < SOON, "{err}");
}

/// The number of interrupts; runs with a hundred of each have ended their jobs.
fn interrupts() -> u32 {
    std::env::var("SYMRAIL_TEST_INTERRUPTS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

fn random() -> u32 {
    std::time::UNIX_EPOCH.elapsed().unwrap().subsec_micros()
}

/// Waits until a process blocks a signal, as the launcher does first. Before that it ends by the signal alone.
fn await_blocked(process: Pid, signal: Signal) {
    let started = Instant::now();
    let blocks = |line: &str| {
        let mask = line.strip_prefix("SigBlk:")?;
        Some(u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal as u32 - 1) & 1 != 0)
    };
    loop {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        if status.lines().find_map(blocks) == Some(true) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{signal} is not blocked:\n{status}");
        std::thread::yield_now();
    }
}

#[test]
fn an_interrupt_at_any_moment_ends_the_job() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        for round in 0..interrupts() {
            let hosts = if round % 2 == 0 { "1" } else { "3" };
            let running = Running::start(role(&["-n", "3", "--hosts", hosts], "runtime"));
            await_blocked(running.pid(), signal);
            // While the launcher starts PEs, while PEs load libraries and join, and while they run.
            std::thread::sleep(Duration::from_millis(50 + u64::from(random() % 1000)));
            kill(running.pid(), signal).unwrap();
            let (code, _, err) = running.end(SOON);
            assert_eq!(code, Some(128 + signal as i32), "{err}");
            assert!(!err.contains("panicked"), "{err}");
        }
    }
}

#[test]
fn a_process_that_ignores_an_interrupt_is_killed() {
    let running = Running::start(shell(&["-n", "2"], r#"trap "" INT TERM; echo ready; while :; do sleep 0.1; done"#));
    assert_eq!([running.line(), running.line()], ["ready", "ready"]);
    kill(running.pid(), Signal::SIGTERM).unwrap();
    let (code, _, err) = running.end(LIMIT);
    assert_eq!(code, Some(143), "{err}");
    assert!(err.contains("killing 2 PEs that have not ended"), "{err}");
}

#[test]
fn signals_that_are_ignored_stay_so() {
    let mut command = Command::new("sh");
    let line = "echo ready; kill -INT $PPID; kill -INT $$; echo alive";
    let script = format!("trap '' INT; exec {} run -n 1 -- sh -c '{line}'", env!("CARGO_BIN_EXE_symrail"));
    command.args(["-c", &script]).stdin(Stdio::null());
    let (code, out, err) = run(command);
    assert_eq!((code, out, err.as_str()), (Some(0), vec!["ready".to_owned(), "alive".to_owned()], ""));
}

#[test]
fn a_job_that_is_stopped_goes_on_when_it_is_continued() {
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    // A shell that has started a command with vfork cannot stop until that command has executed its program: so none is
    // used.
    let running = Running::start(shell(&["-n", "2"], "echo $$; exec sleep 600"));
    let pids = [running.line(), running.line(), running.pid().to_string()];
    let all_are = |stopped: bool| {
        let deadline = Instant::now() + LIMIT;
        while !pids.iter().all(|pid| (state(pid) == Some('T')) == stopped) {
            assert!(Instant::now() < deadline, "{:?}", pids.each_ref().map(|pid| state(pid)));
            std::thread::yield_now();
        }
    };
    kill(running.pid(), Signal::SIGTSTP).unwrap();
    all_are(true);
    kill(running.pid(), Signal::SIGCONT).unwrap();
    all_are(false);
    kill(running.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(running.end(LIMIT).0, Some(143));
}

#[test]
fn a_job_may_be_stopped_for_longer_than_its_time_out() {
    let start = |hosts| {
        let mut command = role(&["-n", "3", "--hosts", hosts], "beat");
        command.env("SYMRAIL_TIMEOUT_S", "3");
        Running::start(command)
    };
    let jobs = [start("1"), start("3")];
    let beats_after = |job: &Running, then| {
        let beat = |line: String| line.rsplit(' ').next().and_then(|number| number.parse::<u128>().ok());
        while beat(job.line()).is_none_or(|beat| beat <= then) {}
    };
    jobs.iter().for_each(|job| beats_after(job, 0));
    jobs.iter().for_each(|job| kill(job.pid(), Signal::SIGTSTP).unwrap());
    std::thread::sleep(Duration::from_secs(7));
    let continued = now();
    jobs.iter().for_each(|job| kill(job.pid(), Signal::SIGCONT).unwrap());
    for job in jobs {
        // A PE that had been given up would be missing within seconds.
        beats_after(&job, continued + 7000);
        kill(job.pid(), Signal::SIGTERM).unwrap();
        let (code, _, err) = job.end(LIMIT);
        assert_eq!(code, Some(143), "{err}");
    }
}

#[test]
fn the_launcher_listens_while_it_starts_pes() {
    let (code, _, err) = run(shell(&["-n", "100000", "--timeout", "1"], "exec sleep 600"));
    assert_eq!(code, Some(124), "{err}");
    let (code, _, err) = run(shell(&["-n", "100000"], "exit 7"));
    assert_eq!(code, Some(7), "{err}");
    let running = Running::start(shell(&["-n", "100000"], "echo ready; exec sleep 600"));
    assert_eq!(running.line(), "ready");
    kill(running.pid(), Signal::SIGINT).unwrap();
    assert_eq!(running.end(LIMIT).0, Some(130));
}

#[test]
fn user_signals_are_passed_on() {
    let running = Running::start(shell(
        &["-n", "2"],
        r#"trap "echo usr1; exit 0" USR1; echo ready; while :; do sleep 0.1; done"#,
    ));
    assert_eq!([running.line(), running.line()], ["ready", "ready"]);
    kill(running.pid(), Signal::SIGUSR1).unwrap();
    let (code, out, _) = running.end(LIMIT);
    assert_eq!((code, out), (Some(0), vec!["usr1".to_owned(); 2]));
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    let running = Running::start({
        let mut command = symrail(&["-n", "3"]);
        // One PE is the program, one has a shell between, one has also left its session.
        let line = r#"echo ready; case $SYMRAIL_LAUNCHER_PE in
            0) exec sleep 600;; 1) sleep 600; true;; *) setsid -w sleep 600; true;; esac"#;
        command.args(["--", "sh", "-c", line]);
        command
    });
    assert_eq!([running.line(), running.line(), running.line()], ["ready", "ready", "ready"]);
    kill(running.pid(), Signal::SIGKILL).unwrap();
    // Their output ends when the last of them is gone.
    assert_eq!(running.end(SOON).0, None);
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    let started = Instant::now();
    let (code, _, err) = run(shell(&["-n", "2", "--timeout", "1"], "exec sleep 600"));
    assert_eq!(code, Some(124), "{err}");
    assert!(err.contains("time-out") && started.elapsed() < SOON, "{err}");
}
