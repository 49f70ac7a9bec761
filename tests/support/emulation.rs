//! The device code of collectives as a library for the CPU: a thread for each thread of each block of each PE.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

/// The struct `Call` of executor.cpp.
#[repr(C)]
pub struct Call {
    pub plan: u64,
    pub input: u64,
    pub output: u64,
    pub part: u64,
    pub chunk: u64,
    pub how: u64,
    pub blocks: u64,
    pub threads: u64,
    pub pe: u64,
    pub timeout_ns: u64,
    pub apart: *const u64,
}

/// The library, compiled once; `None` without a C++ compiler.
pub fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            if Command::new("c++").arg("--version").output().is_err() {
                println!("SKIPPED: there is no c++");
                return None;
            }
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libexecutor.so");
            let mut cxx = Command::new("c++");
            cxx.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-pthread"]);
            cxx.args(["-shared", "-fPIC", "-o"]).arg(&built);
            for folder in ["collectives/tests/host", "collectives/cu", "kernels/include"] {
                cxx.arg("-I").arg(root.join(folder));
            }
            let said = cxx.arg(root.join("collectives/tests/host/executor.cpp")).output().unwrap();
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
            // SAFETY: a library without initialisers of its own.
            Some(unsafe { Library::new(&built) }.unwrap())
        })
        .as_ref()
}
