//! Runs the kernels of `cu/collectives.cu` on threads of this machine. That needs a C++ compiler, but no GPU and no
//! CUDA.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

#[test]
fn kernels_of_collectives_do_what_they_say() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("collectives");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++20", "-O1", "-fwrapv", "-fno-strict-aliasing", "-pthread", "-Wall", "-Werror"]);
    compiler.args(["-Wno-unknown-pragmas", "-Wno-unused-function"]);
    for folder in ["tests/emulated", "include"] {
        compiler.arg("-I").arg(root.join(folder));
    }
    compiler.arg("-o").arg(&program).arg(root.join("tests/emulated/collectives.cpp"));
    let Ok(compiled) = compiler.output() else {
        println!("SKIPPED: there is no C++ compiler");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "well\n", "{}", String::from_utf8_lossy(&ran.stderr));
}
