//! Failures are reported to the PEs concerned, with a message, within a bounded time.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use symrail_tests::job::{Job, Outcome, built, pe, run_command};
use symrail_tests::path::{MAPPED, ONE_RAIL, Path, ROUND_ROBIN, SHM, STAGED_TCP};

/// A job that only joins and leaves, under a setting; it must fail with these words.
fn must_fail(job: &Job, words: &[&str]) -> Outcome {
    let outcome = job.clone().args(["join"]).limit(20).run();
    assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
    for word in words {
        assert!(outcome.err.contains(word), "{word:?} is not said: {outcome:#?}");
    }
    outcome
}

fn fault() -> Job {
    Job::new("fault")
}

#[test]
fn wrong_settings_are_named_with_what_is_accepted() {
    for (name, value, accepted) in [
        ("SYMRAIL_TRANSPORT", "carrier-pigeon", "auto|libfabric|ibverbs"),
        ("SYMRAIL_HEAP_SIZE", "lots", "number of bytes"),
        ("SYMRAIL_HEAP_SIZE", "12", "number of bytes"),
        ("SYMRAIL_TIMEOUT_S", "0", "1 to 86400"),
        ("SYMRAIL_RAIL_POLICY", "both", "round-robin|stripe"),
        ("SYMRAIL_DISABLE_P2P", "perhaps", "0|false|no|off"),
        ("SYMRAIL_PROXY_CHANNELS", "-3", "1 to 256"),
        ("SYMRAIL_IB_ADDR_RANGE", "10.0.0.0/99", "address/prefix"),
        ("SYMRAIL_NIC_LIST", "a,^b", "rail names"),
        ("SYMRAIL_LOG", "loud", "off|error|warn|info|debug|trace"),
    ] {
        must_fail(&fault().env(name, value), &[&format!("{name}={value}"), accepted]);
    }
}

#[test]
fn a_list_of_nics_that_fits_none_says_what_there_is() {
    let job = fault().hosts(2).env("SYMRAIL_TRANSPORT", "libfabric");
    must_fail(&job.env("SYMRAIL_NIC_LIST", "no-such-nic"), &["no-such-nic", "there are:", "lo ("]);
}

#[test]
fn a_provider_that_is_not_there_is_named() {
    let job = fault().hosts(2).env("SYMRAIL_LIBFABRIC_PROVIDER", "no-such-provider");
    let outcome = must_fail(&job, &["no-such-provider", "there are:", "tcp;ofi_rxm"]);
    // At most once by each PE.
    assert!(outcome.err.matches("there are:").count() <= 2, "{outcome:#?}");
}

#[test]
fn without_libfabric_pes_on_two_hosts_say_so_and_pes_on_one_do_not_mind() {
    let job = fault().env("SYMRAIL_LIBFABRIC_SO", "/nonexistent/libfabric.so").env("SYMRAIL_TRANSPORT", "libfabric");
    must_fail(&job.clone().hosts(2), &["/nonexistent/libfabric.so", "SYMRAIL_LIBFABRIC_SO"]);
    job.args(["join"]).succeed();
    let ops = Job::new("ops").env("SYMRAIL_LIBFABRIC_SO", "/nonexistent/libfabric.so");
    ops.env("SYMRAIL_TRANSPORT", "libfabric").args(["small"]).succeed();
}

#[test]
fn pes_that_do_not_agree_are_named_with_their_values() {
    let job = fault().hosts(2).rails(1);
    let both = ["PE 0", "PE 1"];
    let differ = |name, value| must_fail(&job.clone().env_of(1, name, value), &both);
    assert!(differ("SYMRAIL_AMO_PATH", "native").err.contains("SYMRAIL_AMO_PATH"));
    let sizes = must_fail(&job.clone().env("SYMRAIL_HEAP_SIZE", "64M").env_of(1, "SYMRAIL_HEAP_SIZE", "128M"), &both);
    assert!(sizes.err.contains("SYMRAIL_HEAP_SIZE") && sizes.err.contains(&(64 << 20).to_string()), "{}", sizes.err);
    assert!(sizes.err.contains(&(128 << 20).to_string()), "{}", sizes.err);
    let job = job.env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
    let fabrics = must_fail(&job.env_of(1, "SYMRAIL_LIBFABRIC_PROVIDER", "sockets"), &both);
    assert!(fabrics.err.contains("tcp;ofi_rxm") && fabrics.err.contains("sockets"), "{}", fabrics.err);
}

#[test]
fn wrong_calls_are_refused_in_words_and_do_no_harm() {
    for path in [MAPPED, ONE_RAIL, ROUND_ROBIN, SHM, STAGED_TCP] {
        path.of(fault(), 2).args(["refusals"]).succeed();
    }
    ONE_RAIL.of(fault(), 2).env("SYMRAIL_AMO_PATH", "native").args(["refusals"]).succeed();
}

#[test]
fn a_pe_that_exits_early_ends_the_job() {
    for path in [MAPPED, ONE_RAIL] {
        let outcome = path.of(fault(), 3).args(["exit"]).env("SYMRAIL_TIMEOUT_S", "60").run();
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        assert!(outcome.err.contains("PE 1 (pid "), "{outcome:#?}");
        // Well below one time-out.
        assert!(outcome.elapsed < Duration::from_secs(40), "{outcome:#?}");
    }
}

#[test]
fn a_pe_that_is_killed_ends_the_job() {
    for path in [MAPPED, ONE_RAIL, ROUND_ROBIN] {
        let outcome = path.of(fault(), 3).args(["kill"]).env("SYMRAIL_TIMEOUT_S", "60").run();
        assert_eq!(outcome.code, Some(137), "{outcome:#?}");
        assert!(outcome.err.contains("PE 1 (pid ") && outcome.err.contains("SIGKILL"), "{outcome:#?}");
        // Well below one time-out.
        assert!(outcome.elapsed < Duration::from_secs(40), "{outcome:#?}");
    }
}

/// Without a launcher that would end the job: PE 0 gets an error about PE 1.
fn survive(path: Path, operation: &str, death: &str) {
    let timeout_s = 3;
    let mut command = pe("fault");
    command.args(["survive", operation, death]);
    let outcome = path.of_command(command, &[("SYMRAIL_TIMEOUT_S", &timeout_s.to_string())], Duration::from_secs(90));
    let value = |name: &str| outcome.out.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let name = format!("{}: {operation}, {death}", path.name);
    println!("{name}: after {}, left in {}: {}", value("after "), value("left in "), value("error: "));
    assert!(value("error: ").contains("PE 1"), "{name}: {outcome:#?}");
    let milliseconds = |name| value(name).trim_end_matches(" ms").parse::<u64>().unwrap();
    // A wait for memory probes the peer after one time-out, and the probe has another.
    assert!(milliseconds("after ") < 2000 * timeout_s + 15_000, "{name}: {outcome:#?}");
    assert!(milliseconds("left in ") < 20_000, "{name}: {outcome:#?}");
}

#[test]
fn the_death_of_a_peer_is_told() {
    for operation in
        ["put", "put-large", "put-large-blocking", "get", "get-large", "amo", "put-signal", "wait", "barrier"]
    {
        survive(ROUND_ROBIN, operation, "kill");
    }
    survive(ONE_RAIL, "put", "kill");
    survive(SHM, "barrier", "kill");
    survive(MAPPED, "barrier", "kill");
    for operation in ["put", "put-large", "get", "put-signal"] {
        survive(STAGED_TCP, operation, "kill");
    }
}

#[test]
fn a_peer_that_hangs_is_told() {
    for operation in ["put", "put-large", "put-large-blocking", "get-large", "amo", "wait", "barrier"] {
        survive(ROUND_ROBIN, operation, "stop");
    }
    survive(MAPPED, "barrier", "stop");
    for operation in ["put-large", "get-large", "amo", "wait"] {
        survive(STAGED_TCP, operation, "stop");
    }
}

#[test]
fn mpirun_and_symrail_run_start_the_same_program() {
    if !Command::new("mpirun").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: there is no mpirun (Debian: openmpi-bin)");
        return;
    }
    Job::new("ops").args(["small"]).succeed();
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", "2"]).arg(built("pe")).args(["ops", "small"]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let outcome = run_command(command, &[], Duration::from_secs(60));
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
}

#[test]
fn a_newer_libfabric_does_every_operation() {
    let Ok(library) = std::env::var("SYMRAIL_TEST_LIBFABRIC_NEW") else {
        println!("SKIPPED: SYMRAIL_TEST_LIBFABRIC_NEW does not name a newer libfabric; scripts/setup.sh can get one");
        return;
    };
    for path in [ONE_RAIL, ROUND_ROBIN, SHM] {
        path.of(Job::new("ops"), 2).env("SYMRAIL_LIBFABRIC_SO", &library).args(["small"]).succeed();
    }
}
