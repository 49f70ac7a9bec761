//! Runs the kernels of `cu/` on threads of this machine. It needs a C++ compiler, but no GPU and no CUDA.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

#[test]
fn kernels_do_what_they_say_whoever_is_late() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("overlap_emulated");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++20", "-O1", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-pthread", "-Wall"]);
    compiler.args(["-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]);
    for folder in ["../collectives/tests/host", "cu", "../kernels/include"] {
        compiler.arg("-I").arg(root.join(folder));
    }
    compiler.arg("-o").arg(&program).arg(root.join("tests/emulated/overlap.cpp"));
    let Ok(compiled) = compiler.output() else {
        println!("SKIPPED: there is no C++ compiler");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "well\n", "{}", String::from_utf8_lossy(&ran.stderr));
}
