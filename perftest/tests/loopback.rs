//! Jobs on a host whose loopback interface is down, or has no IPv4 address: a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::process::{Command, Stdio};

use symrail::bootstrap::uid;
use symrail::{Cmp, Runtime};

/// The role of a copy of this binary that runs as a PE, or that starts PEs by a unique id.
const ROLE: &str = "SYMRAIL_TEST_ROLE";
const LOCAL: &str = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo";

/// Not a test by itself: the body of the PEs that the tests start.
#[test]
fn pe() {
    match std::env::var(ROLE).as_deref() {
        Ok("put") => {
            let runtime = Runtime::init().unwrap_or_else(|error| panic!("{error}"));
            let (me, n) = (runtime.my_pe() as usize, runtime.n_pes());
            let words = runtime.alloc_slice::<u64>(n as usize).unwrap();
            (0..n).for_each(|pe| words.put(me, &[u64::from(pe) + 1], pe).unwrap());
            for from in 0..n as usize {
                words.wait_until(from, Cmp::Eq, me as u64 + 1).unwrap();
            }
            let rails: Vec<_> = runtime.description().rails.iter().map(|rail| rail.name.clone()).collect();
            println!("PE {me} of {n}, rails {rails:?}");
            runtime.finalize().unwrap();
        }
        Ok("unique id") => {
            let id = uid::create(None).unwrap().to_hex();
            let start = |pe: u32| {
                let variables = [(uid::UID, id.clone()), (uid::PE, pe.to_string()), (uid::N_PES, "2".into())];
                this_binary(Command::new(std::env::current_exe().unwrap()), "put").envs(variables).spawn().unwrap()
            };
            let pes = [0, 1].map(start);
            assert!(pes.into_iter().all(|mut pe| pe.wait().unwrap().success()));
        }
        _ => {}
    }
}

fn this_binary(mut command: Command, role: &str) -> Command {
    command.args(["--exact", "loopback::pe", "--nocapture"]).env(ROLE, role);
    command
}

/// A command in a network namespace of its own, after a shell line there. `None`, with the reason, where that is not
/// allowed.
fn inside(line: &str, program: &str) -> Option<Command> {
    let unshare = |line: &str| {
        let mut command = Command::new("timeout");
        command.args(["90", "unshare", "--map-root-user", "--net", "sh", "-c", line]).stdin(Stdio::null());
        command
    };
    let probe = unshare(line).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: this needs network namespaces and the right to change the addresses there: {probe:?}");
        return None;
    }
    let mut command = unshare(&format!("{line}; exec \"$0\" \"$@\""));
    command.arg(program);
    Some(command)
}

/// The exit code, the lines of output, and the errors of a job.
fn run(mut command: Command) -> (Option<i32>, Vec<String>, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout).lines().map(str::to_owned).collect(), text(&output.stderr))
}

/// The launcher with PEs that put to each other.
fn puts(line: &str, options: &[&str]) -> Option<(Option<i32>, Vec<String>, String)> {
    let mut command = inside(line, env!("CARGO_BIN_EXE_symrail"))?;
    command.arg("run").args(options).arg("--").arg(std::env::current_exe().unwrap());
    Some(run(this_binary(command, "put")))
}

fn said(out: &[String], what: &str) -> usize {
    out.iter().filter(|line| line.contains(what)).count()
}

#[test]
fn pes_of_one_host_need_no_loopback_interface() {
    for options in [&["-n", "3"][..], &["--hosts", "localhost:3"]] {
        let Some((code, out, err)) = puts("true", options) else { return };
        assert!(code == Some(0) && said(&out, " of 3, rails []") == 3, "{options:?}: {code:?} {out:?} {err}");
    }
    let Some(command) = inside("true", std::env::current_exe().unwrap().to_str().unwrap()) else { return };
    let (code, out, err) = run(this_binary(command, "unique id"));
    assert!(code == Some(0) && said(&out, " of 2, rails []") == 2, "by a unique id: {code:?} {out:?} {err}");
    // PEs that cannot be mapped need a rail.
    let Some((code, _, err)) = puts("true", &["-n", "2", "--hosts", "2"]) else { return };
    assert!(code != Some(0) && err.contains("no rail fits") && err.contains("ip link set lo up"), "{code:?} {err}");
}

#[test]
fn rails_have_addresses_that_an_interface_has() {
    let Some(mut info) = inside(LOCAL, env!("CARGO_BIN_EXE_symrail")) else { return };
    let info = String::from_utf8(info.arg("info").output().unwrap().stdout).unwrap();
    assert!(!info.contains("127.0.0.1"), "{info}");
    if !info.contains("address ::1") {
        println!("SKIPPED: the loopback interface has no IPv6 address either");
        return;
    }
    let Some((code, out, err)) = puts(LOCAL, &["-n", "2", "--hosts", "2"]) else { return };
    assert!(code == Some(0) && said(&out, " of 2, rails [\"lo\"]") == 2, "{code:?} {out:?} {err}");
}
