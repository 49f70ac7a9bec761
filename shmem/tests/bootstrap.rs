//! The bootstraps between processes: this binary starts itself again as the PEs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use symrail::bootstrap::rendezvous::{MAX_CONTRIBUTION, Shape};
use symrail::bootstrap::{self, Bootstrap, Error, launcher, uid};
use symrail_core::VariantArray;
use symrail_transport::env::{BootstrapKind, Settings};

/// The role of a copy of this binary that runs as a PE.
const ROLE: &str = "BOOTSTRAP_TEST_ROLE";

/// The contribution of PE `pe` to allgather `round`: lengths differ, and some are empty.
fn blob(pe: u32, n_pes: u32, round: u32) -> Vec<u8> {
    let length = match round {
        3 => 200_000 + pe,
        // The largest contribution, once.
        4 if n_pes == 2 && pe == 1 => MAX_CONTRIBUTION as u32,
        _ => (pe * round * 7) % 90,
    };
    (0..length).map(|at| (at.wrapping_mul(31) + pe * 7 + round) as u8).collect()
}

/// Checks everything that PEs may rely on.
fn gather_and_wait(bootstrap: &mut dyn Bootstrap) {
    let n_pes = bootstrap.n_pes();
    for round in 0..5 {
        let all = bootstrap.allgather(&blob(bootstrap.pe(), n_pes, round)).unwrap();
        assert!(all.into_iter().eq((0..n_pes).map(|pe| blob(pe, n_pes, round))), "round {round}");
        bootstrap.barrier().unwrap();
    }
}

/// Not a test by itself: the body of the PEs that the tests start.
#[test]
fn pe() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "late joiner" {
        return wait_for_the_missing();
    }
    if role == "creator" {
        let id = uid::create(None).unwrap();
        println!("id: {}", id.to_hex());
        let mut bootstrap = uid::open(id, 0, 2).unwrap();
        bootstrap.barrier().unwrap();
        drop(bootstrap);
        return println!("PE 0 has left");
    }
    let mut bootstrap = bootstrap::open(&Settings::default()).unwrap();
    match role.as_str() {
        "gather" => {
            gather_and_wait(&mut *bootstrap);
            println!("PE {} of {} is content: {}", bootstrap.pe(), bootstrap.n_pes(), bootstrap.describe());
        }
        "die" => {
            bootstrap.barrier().unwrap();
            // Without unwinding, and so without a farewell to the others.
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        "late" => {
            bootstrap.barrier().unwrap();
            std::io::stdin().read_line(&mut String::new()).unwrap();
            println!("error: {}", bootstrap.barrier().unwrap_err());
        }
        "aborted" => {
            bootstrap.barrier().unwrap();
            if std::env::var(VICTIM).unwrap().parse() == Ok(bootstrap.pe()) {
                bootstrap.abort(7, "out of heap");
                std::process::exit(7);
            }
            println!("error: {}", bootstrap.barrier().unwrap_err());
        }
        "relayed" => {
            bootstrap.barrier().unwrap();
            // A PE that dies after a step may take with it messages of the step that its relay has not forwarded.
            let second = bootstrap.barrier();
            if std::env::var(VICTIM).unwrap().parse() == Ok(bootstrap.pe()) {
                second.as_ref().unwrap();
                nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
            }
            let third = second.and_then(|()| bootstrap.allgather(b"anybody there?"));
            println!("error: {}", third.unwrap_err());
            assert!(bootstrap.lost_pes().iter().any(|lost| lost.pe.to_string() == std::env::var(VICTIM).unwrap()));
        }
        role => panic!("no role {role}"),
    }
}

/// Waits ten seconds for a PE that never arrives, and prints whether the error named it.
fn wait_for_the_missing() {
    let mut settings = Settings::default();
    settings.timeout_s = 10;
    let error = bootstrap::open(&settings).and_then(|mut bootstrap| bootstrap.barrier()).unwrap_err();
    let missing = std::env::var(VICTIM).unwrap();
    let Error::Timeout { missing: text, .. } = &error else { panic!("{error}") };
    assert!(text.split(|c: char| !c.is_ascii_digit()).any(|number| number == missing), "{error}");
    println!("error: PE {missing} is missing: {error}");
}

/// The PE that dies, for the roles of PEs that relays serve.
const VICTIM: &str = "BOOTSTRAP_TEST_VICTIM";

fn myself(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "bootstrap::pe", "--nocapture", "--test-threads=1"]).env(ROLE, role).stdin(Stdio::null());
    command
}

fn uid_pe(role: &str, id: uid::UniqueId, pe: u32, n_pes: u32) -> Command {
    let mut command = myself(role);
    command.env(uid::UID, id.to_hex()).env(uid::PE, pe.to_string()).env(uid::N_PES, n_pes.to_string());
    command
}

/// Runs all commands at once, and kills those that have not ended in 90 s.
fn run_all(commands: Vec<Command>) -> Vec<Output> {
    let (done, outputs) = mpsc::channel();
    let mut pids = Vec::new();
    for (index, mut command) in commands.into_iter().enumerate() {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        pids.push(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()));
        let done = done.clone();
        std::thread::spawn(move || done.send((index, child.wait_with_output().unwrap())));
    }
    drop(done);
    let deadline = Instant::now() + Duration::from_secs(90);
    let mut all = Vec::new();
    while all.len() < pids.len() {
        match outputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(output) => all.push(output),
            Err(error) => {
                for pid in &pids {
                    let _ = nix::sys::signal::kill(*pid, nix::sys::signal::Signal::SIGKILL);
                }
                panic!("processes did not end: {error}");
            }
        }
    }
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, output)| output).collect()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn pes_join_by_a_unique_id() {
    for n_pes in [1, 2, 16] {
        let started = Instant::now();
        let id = uid::create(None).unwrap();
        let outputs = run_all((0..n_pes).map(|pe| uid_pe("gather", id, pe, n_pes)).collect());
        println!("{n_pes} PEs by unique id: {:?}", started.elapsed());
        for (pe, output) in outputs.iter().enumerate() {
            assert!(output.status.success(), "{}", said(output));
            assert!(said(output).contains(&format!("PE {pe} of {n_pes} is content: uid: ")), "{}", said(output));
        }
    }
}

#[test]
fn a_pe_that_is_killed_is_named_to_those_who_wait() {
    let id = uid::create(None).unwrap();
    let mut child = uid_pe("die", id, 1, 2).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut bootstrap = uid::open(id, 0, 2).unwrap();
    bootstrap.barrier().unwrap();
    let started = Instant::now();
    let error = bootstrap.allgather(b"anybody there?").unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(30));
    child.wait().unwrap();
    assert!(matches!(error, Error::Peer { pe: 0, peer: 1, .. }), "{error}");
    assert!(error.to_string().contains("allgather 2 cannot complete: PE 1 died"), "{error}");
    assert_eq!(bootstrap.barrier(), Err(error), "later steps fail the same way, at once");
}

/// A job of fourteen PEs whose nodes serve four: PE 2 runs a relay for 2 to 7, in which PE 4 runs one for 4 to 7.
fn relayed(role: &str, victim: u32) -> (uid::UniqueId, Vec<Command>) {
    let id = uid::create_tree(None, Shape::FanOut(4)).unwrap();
    let pe = |pe| {
        let mut command = uid_pe(role, id, pe, 14);
        command.env(VICTIM, victim.to_string());
        command
    };
    (id, (0..14).map(pe).collect())
}

#[test]
fn a_pe_that_is_killed_is_named_to_all_even_if_it_ran_a_relay() {
    for victim in [2, 4, 7] {
        let (_id, commands) = relayed("relayed", victim);
        let started = Instant::now();
        let mut outputs = run_all(commands);
        outputs.remove(victim as usize);
        for output in outputs {
            let text = said(&output);
            assert!(output.status.success(), "{text}");
            let named = format!(" cannot complete: PE {victim} died");
            assert!(["barrier 2", "allgather 3"].iter().any(|step| text.contains(&format!("{step}{named}"))), "{text}");
        }
        assert!(started.elapsed() < Duration::from_secs(50));
    }
}

#[test]
fn an_abort_reaches_all_before_the_relay_ends_that_passes_it_on() {
    for victim in [2, 8] {
        let (_id, commands) = relayed("aborted", victim);
        let mut outputs = run_all(commands);
        outputs.remove(victim as usize);
        for output in outputs {
            let text = said(&output);
            assert!(text.contains(&format!("PE {victim} aborted the job with code 7: out of heap")), "{text}");
        }
    }
}

#[test]
fn a_pe_that_does_not_come_is_named_to_all_even_if_it_had_to_run_a_relay() {
    // Both jobs run at once, since each lasts for a time-out.
    std::thread::scope(|scope| {
        for missing in [4, 7] {
            scope.spawn(move || {
                let (_id, mut commands) = relayed("late joiner", missing);
                commands.remove(missing as usize);
                for output in run_all(commands) {
                    let text = said(&output);
                    assert!(text.contains(&format!("error: PE {missing} is missing")), "{text}");
                }
            });
        }
    });
}

#[test]
fn the_service_lives_until_the_others_have_left() {
    let id = uid::create(None).unwrap();
    let mut late = uid_pe("late", id, 1, 2);
    let mut late = late.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut bootstrap = uid::open(id, 0, 2).unwrap();
    bootstrap.barrier().unwrap();
    // It does not wait for PE 1: a wait would end when its time is over, and the service with it.
    drop(bootstrap);
    drop(late.stdin.take());
    let output = late.wait_with_output().unwrap();
    assert!(said(&output).contains("error: PE 1: barrier 2 cannot complete: PE 0 has left"), "{}", said(&output));
}

#[test]
fn the_creators_process_does_not_end_before_the_others_have_left() {
    let mut creator = myself("creator").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(creator.stdout.take().unwrap()).lines().map(Result::unwrap);
    let id = lines.find_map(|line| line.split_once("id: ").map(|(_, hex)| uid::UniqueId::from_hex(hex).unwrap()));
    let mut bootstrap = uid::open(id.unwrap(), 1, 2).unwrap();
    bootstrap.barrier().unwrap();
    // The process has nothing left to do but to wait.
    lines.find(|line| line.contains("PE 0 has left")).unwrap();
    let error = bootstrap.barrier().unwrap_err().to_string();
    assert!(error.contains("barrier 2 cannot complete: PE 0 has left"), "{error}");
    drop(bootstrap);
    assert!(creator.wait().unwrap().success());
}

#[test]
fn pes_join_through_pmix() {
    let missing = Command::new("mpirun").arg("--version").output().map_or(true, |output| !output.status.success());
    if missing {
        println!("SKIPPED: no mpirun (Debian: openmpi-bin)");
        return;
    }
    for n_pes in [1, 2, 16] {
        let started = Instant::now();
        let mut command = Command::new("mpirun");
        command.args(["--oversubscribe", "-n", &n_pes.to_string()]);
        command.args([std::env::current_exe().unwrap().to_str().unwrap(), "--exact", "bootstrap::pe", "--nocapture"]);
        command.env(ROLE, "gather").env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = run_all(vec![command]).remove(0);
        println!("{n_pes} PEs through PMIx: {:?}", started.elapsed());
        assert!(output.status.success(), "{}", said(&output));
        for pe in 0..n_pes {
            assert!(said(&output).contains(&format!("PE {pe} of {n_pes} is content: pmix: ")), "{}", said(&output));
        }
    }
}

#[test]
fn variables_that_are_set_but_empty_are_no_traces() {
    let mut command = myself("gather");
    for name in [uid::UID, launcher::ADDRESS, "PMIX_RANK", "PMIX_NAMESPACE"] {
        command.env(name, "");
    }
    let output = run_all(vec![command]).remove(0);
    assert!(said(&output).contains("PE 0 of 1 is content: single: "), "{}", said(&output));
}

#[test]
fn a_pe_that_has_lost_its_id_is_no_job_of_its_own() {
    for (name, what) in [(uid::PE, uid::UID), (uid::N_PES, uid::UID), (launcher::PE, launcher::N_PES)] {
        let mut command = myself("gather");
        command.env(uid::UID, "").env(launcher::ADDRESS, "").env(name, "0");
        let output = run_all(vec![command]).remove(0);
        assert!(!output.status.success() && said(&output).contains(&format!("{what} is not set")), "{}", said(&output));
    }
}

#[test]
fn a_bootstrap_that_is_not_there_is_an_error_and_not_a_single_pe() {
    let mut settings = Settings::default();
    for kind in BootstrapKind::VARIANTS {
        let name = match kind {
            BootstrapKind::Auto => continue,
            BootstrapKind::Launcher => "SYMRAIL_LAUNCHER_PE",
            BootstrapKind::Uid => "SYMRAIL_BOOTSTRAP_UID",
            BootstrapKind::Pmix => "PMIX_RANK",
        };
        settings.bootstrap = *kind;
        let Err(error) = bootstrap::open(&settings) else { panic!("{kind:?} was opened") };
        assert!(matches!(error, Error::Missing { .. }) && error.to_string().contains(name), "{error}");
    }
    settings.bootstrap = BootstrapKind::Auto;
    let mut alone = bootstrap::open(&settings).unwrap();
    assert_eq!((alone.pe(), alone.n_pes()), (0, 1));
    gather_and_wait(&mut *alone);
}
