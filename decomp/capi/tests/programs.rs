//! Programs in C and Fortran with cuDecomp's names, on the library that C programs use: with `symrail run`, and with
//! MPI.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/support/libraries.rs"]
mod libraries;

use std::path::{Path, PathBuf};
use std::process::Command;

use libraries::{alone, build, missing, remove_settings, succeed};

/// Compiles the program, and returns it with the folder of the library.
fn compile(compiler: &str, name: &str, options: &[&str]) -> (PathBuf, PathBuf) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = build();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(options).arg("-o").arg(&program);
    if compiler.ends_with("cc") {
        command.args(["-std=c11", "-I"]).arg(here.join("include")).arg(here.join("tests/programs/pencils.c"));
    } else {
        // The compiler should not warn of unused constants of MPI's module, and of flags of one byte.
        command.args(["-std=f2018", "-Wno-c-binding-type", "-Wno-unused-parameter", "-J"]);
        let modules = program.with_extension("modules");
        std::fs::create_dir_all(&modules).unwrap();
        command.arg(&modules).arg(here.join("fortran/cudecomp.F90")).arg(here.join("tests/programs/pencils.F90"));
    }
    succeed(command.arg("-L").arg(&built).arg("-lsymrail_decomp_c"));
    (program, built)
}

/// Runs a command alone, without jobs of other tests and without a user's settings.
fn run(command: &mut Command, built: &Path) {
    remove_settings(command, &["SYMRAIL_"]);
    let _alone = alone(built);
    let said = succeed(command.env("LD_LIBRARY_PATH", built).env("SYMRAIL_TIMEOUT_S", "20"));
    assert_eq!(said.matches("verified on").count(), 1, "{said}");
}

#[test]
fn started_by_our_launcher() {
    if missing("cc") {
        return;
    }
    let (program, built) = compile("cc", "pencils", &[]);
    for way in [&["-n", "1"][..], &["-n", "4"], &["-n", "6"], &["-n", "4", "--hosts", "2", "--rails", "1"]] {
        let mut command = Command::new(built.join("symrail"));
        run(command.arg("run").args(["--timeout", "100"]).args(way).arg("--").arg(&program), &built);
    }
}

#[test]
fn in_fortran() {
    if missing("gfortran") {
        return;
    }
    let (program, built) = compile("gfortran", "pencils-fortran", &[]);
    for way in [&["-n", "4"][..], &["-n", "4", "--hosts", "2", "--rails", "1"]] {
        let mut command = Command::new(built.join("symrail"));
        run(command.arg("run").args(["--timeout", "100"]).args(way).arg("--").arg(&program), &built);
    }
}

#[test]
fn with_a_communicator_of_mpi() {
    if missing("mpicc") || missing("mpirun") {
        return;
    }
    let header = Command::new("mpicc").args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"]).output().unwrap();
    if !header.status.success() {
        println!("SKIPPED: no mpi.h on this machine (libopenmpi-dev)");
        return;
    }
    let (program, built) = compile("mpicc", "pencils-mpi", &["-DWITH_MPI"]);
    with_mpirun(&program, &built);
    if missing("mpif90") || missing("gfortran") {
        return;
    }
    let (program, built) = compile("mpif90", "pencils-fortran-mpi", &["-DSYMRAIL_WITH_MPI"]);
    with_mpirun(&program, &built);
}

fn with_mpirun(program: &Path, built: &Path) {
    let mut command = Command::new("timeout");
    command.args(["100", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4"]).arg(program);
    run(&mut command, built);
}
