//! The device code of collectives as a library for the CPU: a thread for each thread of each block of each PE.

use std::sync::OnceLock;

use libloading::Library;

#[path = "../../kernels/emulator/emulator.rs"]
mod emulator;

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
            let folders = ["collectives/cu", "kernels/include"];
            let built = emulator::library("collectives/tests/host/executor.cpp", &folders)?;
            // SAFETY: a library without initialisers of its own.
            Some(unsafe { Library::new(&built) }.unwrap())
        })
        .as_ref()
}
