//! A C program with two agents, linked to the library as users' C programs are, and NIXL's tests with the plugin.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/support/libraries.rs"]
mod libraries;

use std::path::Path;
use std::process::Command;

use libraries::{build, job_slot, missing, remove_settings, succeed};

fn with_rails<'c>(command: &'c mut Command, provider: &str, nics: &str) -> &'c mut Command {
    remove_settings(command, &["SYMRAIL_"]);
    if !nics.is_empty() {
        command.env("SYMRAIL_NIC_LIST", nics);
    }
    command
        .env("SYMRAIL_TRANSPORT", "libfabric")
        .env("SYMRAIL_LIBFABRIC_PROVIDER", provider)
        .env("SYMRAIL_TIMEOUT_S", "20")
}

#[test]
fn two_agents_of_a_c_program() {
    if missing("cc") {
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = build();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two_agents");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(here.join("../include"));
    cc.arg("-o").arg(&program).arg(here.join("tests/programs/two_agents.c"));
    succeed(cc.arg("-L").arg(&built).arg("-lsymrail_agent"));
    for (provider, nics) in [("tcp;ofi_rxm", "127.0.0.2,127.0.0.3"), ("shm", "")] {
        let mut command = Command::new(&program);
        with_rails(&mut command, provider, nics).env("LD_LIBRARY_PATH", &built);
        let _slot = job_slot(&built);
        let said = succeed(&mut command);
        assert!(said.contains("verified every function"), "{said}");
    }
}

/// `SYMRAIL_TEST_NIXL_SOURCES` is an unpacked release of NIXL.
#[test]
fn memory_that_was_in_use_is_deregistered_by_nixl_s_engine_later() {
    let Some(sources) = std::env::var_os("SYMRAIL_TEST_NIXL_SOURCES").map(std::path::PathBuf::from) else {
        println!("SKIPPED: SYMRAIL_TEST_NIXL_SOURCES names no release of NIXL");
        return;
    };
    let (here, built) = (Path::new(env!("CARGO_MANIFEST_DIR")), build());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nixl_engine");
    let mut compile = Command::new("c++");
    compile.args(["-std=c++20", "-O1", "-Wall", "-DSYMRAIL_VERSION=\"0\"", "-I"]).arg(here.join("../include"));
    for folder in ["api/cpp", "utils", "core/telemetry", "infra"] {
        compile.arg("-I").arg(sources.join("src").join(folder));
    }
    compile.arg("-o").arg(&program).arg(here.join("tests/programs/nixl_engine.cpp"));
    succeed(compile.arg("-L").arg(&built).arg("-lsymrail_agent"));
    succeed(Command::new(&program).env("LD_LIBRARY_PATH", &built));
}

/// NIXL's own test of its Python interface, with the plugin as its back end. `SYMRAIL_TEST_NIXL_SOURCES` is an unpacked
/// release of NIXL, and `SYMRAIL_TEST_NIXL_PYTHON` a python3 with that release's wheel, torch and pytest.
#[test]
fn nixl_s_test_of_its_python_interface() {
    let given = |name| std::env::var_os(name).map(std::path::PathBuf::from);
    let (Some(sources), Some(python)) = (given("SYMRAIL_TEST_NIXL_SOURCES"), given("SYMRAIL_TEST_NIXL_PYTHON")) else {
        println!("SKIPPED: SYMRAIL_TEST_NIXL_SOURCES and SYMRAIL_TEST_NIXL_PYTHON name no release of NIXL");
        return;
    };
    let built = build();
    let plugins = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nixl");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/nixl-plugin.sh");
    succeed(Command::new(script).arg(&sources).arg(&plugins).arg(&built));
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--backend", "SYMRAIL"]);
    pytest.arg(sources.join("test/python/test_nixl_api.py")).env("NIXL_PLUGIN_DIR", &plugins);
    let _slot = job_slot(&built);
    let said = succeed(with_rails(&mut pytest, "tcp;ofi_rxm", "lo"));
    println!("{said}");
    assert!(said.contains(" passed"), "{said}");
}
