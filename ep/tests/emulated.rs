//! Runs the kernels of `cu/` on CPU threads. The test needs no GPU and no CUDA, but a C++ compiler.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

/// Compiles and runs a program of `emulated/`.
fn do_what_they_say(name: &str) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++20", "-O1", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-pthread", "-Wall"]);
    compiler.args(["-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]);
    for folder in ["tests/emulated", "cu"] {
        compiler.arg("-I").arg(root.join(folder));
    }
    compiler.arg("-o").arg(&program).arg(root.join(format!("tests/emulated/{name}.cpp")));
    let Ok(compiled) = compiler.output() else {
        println!("SKIPPED: there is no C++ compiler");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "well\n", "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn kernels_of_high_throughput() {
    do_what_they_say("high_throughput");
}

#[test]
fn kernels_of_low_latency() {
    do_what_they_say("low_latency");
}
