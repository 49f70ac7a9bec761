//! Programs in C and Fortran with cuDecomp's names, on the library that C programs use: with `symrail run`, and with
//! MPI.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/support/libraries.rs"]
mod libraries;

use std::path::{Path, PathBuf};
use std::process::Command;

use libraries::{build, job_slot, missing, remove_settings, succeed};
use symrail::kernels::cuda::Gpu;

/// Compiles the program, and returns it with the folders of the library and of `symrail`.
fn compile(compiler: &str, source: &str, name: &str, options: &[&str]) -> (PathBuf, [PathBuf; 2]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = build();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let libraries = installed(&built, &program.with_extension("lib"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(options).arg("-o").arg(&program);
    if compiler == "cc" || compiler.starts_with("mpicc") {
        command.args(["-std=c11", "-I"]).arg(here.join("include")).arg(here.join("tests/programs").join(source));
    } else {
        // The compiler should not warn of unused constants of MPI's module, and of flags of one byte.
        command.args(["-std=f2018", "-Wno-c-binding-type", "-Wno-unused-parameter", "-J"]);
        let modules = program.with_extension("modules");
        std::fs::create_dir_all(&modules).unwrap();
        command.arg(&modules).arg(here.join("fortran/cudecomp.F90")).arg(here.join("tests/programs").join(source));
    }
    succeed(command.arg("-L").arg(&libraries).arg("-lcudecomp"));
    (program, [libraries, built])
}

/// A folder with the library by its names, as it is installed.
fn installed(built: &Path, folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    for name in ["libcudecomp.so", "libcudecomp.so.0"] {
        let link = folder.join(name);
        // It is there from an earlier run.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(built.join("libsymrail_decomp_c.so"), link).unwrap();
    }
    folder.to_path_buf()
}

/// Runs a command alone, without jobs of other tests and without a user's settings.
fn run(command: &mut Command, [libraries, built]: &[PathBuf; 2]) {
    let repeated = std::env::vars().filter(|(name, _)| name.starts_with("SYMRAIL_TEST_")).collect::<Vec<_>>();
    remove_settings(command, &["SYMRAIL_", "CUDECOMP_"]);
    let _slot = job_slot(built);
    let said = succeed(command.envs(repeated).env("LD_LIBRARY_PATH", libraries).env("SYMRAIL_TIMEOUT_S", "20"));
    assert_eq!(said.matches("verified on").count(), 1, "{said}");
}

/// Runs a program with `symrail run`.
fn launched(program: &Path, folders: &[PathBuf; 2], way: &[&str]) {
    let mut command = Command::new(folders[1].join("symrail"));
    run(command.arg("run").args(["--timeout", "100"]).args(way).arg("--").arg(program), folders);
}

/// One rank; several on one host; several on two.
const WAYS: [&[&str]; 3] = [&["-n", "1"], &["-n", "4"], &["-n", "4", "--hosts", "2", "--rails", "1"]];

/// Compiles a C program, and runs it with each of these options of the launcher.
fn launched_in_ways(name: &str, ways: &[&[&str]]) {
    if missing("cc") {
        return;
    }
    let (program, folders) = compile("cc", &format!("{name}.c"), name, &[]);
    for way in ways {
        launched(&program, &folders, way);
    }
}

#[test]
fn started_by_our_launcher() {
    launched_in_ways("pencils", &[WAYS[0], WAYS[1], &["-n", "6"], WAYS[2]]);
}

/// `SYMRAIL_TEST_REFUSALS` and `SYMRAIL_TEST_DESCRIPTORS` are the numbers of refused calls, and of descriptors.
#[test]
fn refused_calls_leave_nothing_behind() {
    launched_in_ways("refusals", &WAYS);
}

/// Counters tell how each back end moved blocks.
#[test]
fn back_ends_do_what_their_names_say() {
    launched_in_ways("backends", &WAYS);
}

/// `scripts/gpu.sh` runs it on machines with GPUs and without Rust.
#[test]
fn on_gpus() {
    if missing("cc") {
        return;
    }
    let (program, folders) = compile("cc", "gpu_pencils.c", "gpu_pencils", &[]);
    if Gpu::count() == 0 {
        println!("SKIPPED: no CUDA driver or no GPU on this machine");
        return;
    }
    launched(&program, &folders, WAYS[1]);
}

#[test]
fn in_fortran() {
    if missing("gfortran") {
        return;
    }
    let (program, folders) = compile("gfortran", "pencils.F90", "pencils-fortran", &[]);
    for way in [&["-n", "4"][..], &["-n", "4", "--hosts", "2", "--rails", "1"]] {
        launched(&program, &folders, way);
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
    for (source, options) in [("pencils.c", &["-DWITH_MPI"][..]), ("communicators.c", &["-DWITH_MPI"])] {
        let (program, folders) = compile("mpicc", source, &source.replace(".c", "-mpi"), options);
        with_mpirun(OPEN_MPI, &program, &folders);
    }
    if missing("mpif90") || missing("gfortran") {
        return;
    }
    let (program, folders) = compile("mpif90", "pencils.F90", "pencils-fortran-mpi", &["-DWITH_MPI"]);
    with_mpirun(OPEN_MPI, &program, &folders);
}

/// Communicators of MPICH are numbers, where those of Open MPI are addresses.
#[test]
fn with_a_communicator_of_mpich() {
    if missing("mpicc.mpich") || missing("mpirun.mpich") {
        return;
    }
    for source in ["pencils.c", "communicators.c"] {
        let (program, folders) = compile("mpicc.mpich", source, &source.replace(".c", "-mpich"), &["-DWITH_MPI"]);
        with_mpirun(&["mpirun.mpich"], &program, &folders);
    }
}

const OPEN_MPI: &[&str] = &["mpirun", "--allow-run-as-root", "--oversubscribe"];

fn with_mpirun(launcher: &[&str], program: &Path, folders: &[PathBuf; 2]) {
    let mut command = Command::new("timeout");
    command.arg("100").args(launcher).args(["-n", "4"]).arg(program);
    run(&mut command, folders);
}

/// The library exports cuDecomp's functions, whose names this list has from its interface, and needs no MPI.
#[test]
fn exports_what_programs_of_cudecomp_need() {
    if missing("nm") || missing("readelf") {
        return;
    }
    let library = build().join("libsymrail_decomp_c.so");
    let exported = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    for name in [
        "Init",
        "Init_F",
        "Finalize",
        "GridDescCreateVersioned",
        "GridDescDestroy",
        "GridDescConfigSetDefaultsVersioned",
        "GridDescAutotuneOptionsSetDefaultsVersioned",
        "GetPencilInfoVersioned",
        "GetGridDescConfigVersioned",
        "GetTransposeWorkspaceSize",
        "GetHaloWorkspaceSize",
        "GetDataTypeSize",
        "Malloc",
        "Free",
        "GetShiftedRank",
        "TransposeCommBackendToString",
        "HaloCommBackendToString",
        "TransposeXToY",
        "TransposeYToZ",
        "TransposeZToY",
        "TransposeYToX",
        "UpdateHalosX",
        "UpdateHalosY",
        "UpdateHalosZ",
    ] {
        assert!(exported.lines().any(|line| line.ends_with(&format!(" cudecomp{name}"))), "cudecomp{name}");
    }
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("[libcudecomp.so.0]") && !dynamic.contains("libmpi"), "{dynamic}");
}
