//! A C program that is a runtime of two PEs, linked to the library as users' C programs are.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/support/libraries.rs"]
mod libraries;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libraries::{build, job_slot, missing, remove_settings, succeed};

/// The program, compiled against header and library; `None` where there is no C compiler.
fn program() -> Option<&'static (PathBuf, PathBuf)> {
    static PROGRAM: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            if missing("cc") {
                return None;
            }
            let here = Path::new(env!("CARGO_MANIFEST_DIR"));
            let built = build();
            let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two_pes");
            let mut cc = Command::new("cc");
            cc.args(["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]);
            cc.arg(here.join("../include")).arg("-o").arg(&program).arg(here.join("tests/programs/two_pes.c"));
            succeed(cc.arg("-L").arg(&built).arg("-lsymrail_transport"));
            Some((program, built))
        })
        .as_ref()
}

fn run(provider: &str, nics: &str, arg: &str, more: &[(&str, &str)]) {
    let Some((program, built)) = program() else { return };
    let mut command = Command::new(program);
    remove_settings(&mut command, &["SYMRAIL_"]);
    command
        .env("LD_LIBRARY_PATH", built)
        .env("SYMRAIL_TRANSPORT", "libfabric")
        .env("SYMRAIL_LIBFABRIC_PROVIDER", provider);
    if !nics.is_empty() {
        command.env("SYMRAIL_NIC_LIST", nics);
    }
    let _slot = job_slot(built);
    let said = succeed(command.arg(arg).envs(more.iter().copied()).env("SYMRAIL_TIMEOUT_S", "20"));
    assert!(said.contains("verified every operation"), "{said}");
}

#[test]
fn two_rails_driven_by_the_caller() {
    run("tcp;ofi_rxm", "127.0.0.2,127.0.0.3", "", &[]);
}

#[test]
fn two_rails_driven_by_a_thread_of_the_transport() {
    run("tcp;ofi_rxm", "127.0.0.2,127.0.0.3", "thread", &[]);
}

#[test]
fn two_rails_with_large_operations_in_stripes() {
    run("tcp;ofi_rxm", "127.0.0.2,127.0.0.3", "", &[("SYMRAIL_RAIL_POLICY", "stripe")]);
}

#[test]
fn pes_that_are_all_on_one_host_listen_on_its_loopback_interface_alone() {
    run("tcp;ofi_rxm", "", "local", &[]);
}

#[test]
fn one_rail_and_shared_memory() {
    run("tcp;ofi_rxm", "127.0.0.2", "", &[]);
    run("shm", "", "", &[]);
}

/// Programs that were compiled with the header find out by its number that the library is another one. So a change of
/// the header, comments and white space aside, is a change of the number too, or an addition that old programs do not
/// notice; then the digest here changes.
#[test]
fn the_header_of_an_interface_version_stays_as_it_was() {
    const OF_VERSIONS: &[(u32, u64)] = &[(1, 0x2e8eacc5a3d8452a)];
    let header = include_str!("../../include/symrail_transport.h");
    let number = header.split("#define SYMRAIL_TRANSPORT_ABI ").nth(1).and_then(|rest| rest.lines().next());
    let number: u32 = number.and_then(|text| text.trim().parse().ok()).unwrap();
    let mut code = String::new();
    for (index, part) in header.split("/*").enumerate() {
        code += if index == 0 { part } else { part.split_once("*/").unwrap().1 };
    }
    code.retain(|c| !c.is_whitespace());
    // FNV-1a.
    let digest = code.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |d, b| (d ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let known = OF_VERSIONS.iter().find(|(version, _)| *version == number);
    assert_eq!(known, Some(&(number, digest)), "version {number} of the header has digest {digest:#x} now");
}
