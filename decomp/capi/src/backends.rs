//! The back ends: their names, and the modes of this library that they stand for.
//!
//! MPI's back ends stage all data in the workspace. NCCL's and NVSHMEM's go straight to the output where they can;
//! NVSHMEM and NVSHMEM_PL by copy engines, the others by multiprocessors. Those named _PL, and NVSHMEM_SM, unpack blocks
//! as they arrive.

use std::ffi::{CStr, c_char, c_int};

use symrail_decomp::Mode;

use crate::guard::Failure;

/// The library that a back end is named after. Options exclude a family from measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Mpi,
    Nccl,
    Nvshmem,
}

#[derive(Debug)]
pub struct Backend {
    pub number: c_int,
    pub name: &'static CStr,
    /// The name in lists of candidates.
    pub short: &'static str,
    pub family: Family,
    mode: Mode,
}

/// The operations with back ends of their own.
#[derive(Debug)]
pub struct Kind {
    /// The field of the configuration.
    pub field: &'static str,
    /// The variable that lists candidates.
    pub variable: &'static str,
    /// The back ends. The first one with a mode stands for it when it was chosen.
    pub all: &'static [Backend],
}

pub static TRANSPOSES: Kind = Kind {
    field: "transpose_comm_backend",
    variable: "CUDECOMP_AUTOTUNE_TRANSPOSE_BACKENDS",
    all: &[
        backend(8, c"NVSHMEM_SM", "NVSHMEM_SM", Family::Nvshmem, mode(true, true)),
        backend(7, c"NVSHMEM (pipelined)", "NVSHMEM_PL", Family::Nvshmem, by_engines(mode(true, true))),
        backend(5, c"NCCL (pipelined)", "NCCL_PL", Family::Nccl, mode(true, true)),
        backend(4, c"NCCL", "NCCL", Family::Nccl, mode(false, true)),
        backend(6, c"NVSHMEM", "NVSHMEM", Family::Nvshmem, by_engines(mode(false, true))),
        backend(2, c"MPI_P2P (pipelined)", "MPI_P2P_PL", Family::Mpi, mode(true, false)),
        backend(1, c"MPI_P2P", "MPI_P2P", Family::Mpi, mode(false, false)),
        backend(3, c"MPI_A2A", "MPI_A2A", Family::Mpi, mode(false, false)),
    ],
};

pub static HALOS: Kind = Kind {
    field: "halo_comm_backend",
    variable: "CUDECOMP_AUTOTUNE_HALO_BACKENDS",
    all: &[
        backend(3, c"NCCL", "NCCL", Family::Nccl, mode(true, true)),
        backend(4, c"NVSHMEM", "NVSHMEM", Family::Nvshmem, by_engines(mode(true, true))),
        backend(5, c"NVSHMEM (blocking)", "NVSHMEM_BLOCKING", Family::Nvshmem, by_engines(mode(false, true))),
        backend(1, c"MPI", "MPI", Family::Mpi, mode(true, false)),
        backend(2, c"MPI (blocking)", "MPI_BLOCKING", Family::Mpi, mode(false, false)),
    ],
};

const fn backend(number: c_int, name: &'static CStr, short: &'static str, family: Family, mode: Mode) -> Backend {
    Backend { number, name, short, family, mode }
}

const fn mode(pipelined: bool, direct: bool) -> Mode {
    Mode { pipelined, direct, engines: None }
}

const fn by_engines(mode: Mode) -> Mode {
    Mode { engines: Some(0), ..mode }
}

impl Kind {
    pub fn find(&'static self, number: c_int) -> Result<&'static Backend, Failure> {
        let found = self.all.iter().find(|backend| backend.number == number);
        let most = self.all.len();
        found.ok_or_else(|| Failure::usage(format!("{} {number}: there are 1 to {most}", self.field)))
    }
}

/// What a back end does, in words.
pub struct Way {
    pub backend: &'static Backend,
    pub on_gpu: bool,
}

impl Backend {
    /// The mode, without what makes no difference on host memory.
    pub fn mode(&self, on_gpu: bool) -> Mode {
        match on_gpu {
            true => self.mode,
            false => Mode { engines: None, ..self.mode },
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Way { backend, on_gpu } = self;
        let mode = backend.mode(*on_gpu);
        let by = match mode.engines {
            Some(_) => "copy engines move blocks between mapped peers",
            None if *on_gpu => "multiprocessors move blocks between mapped peers",
            None => "the CPU moves blocks between mapped peers",
        };
        let to = if mode.direct { "to the output where the staging rule allows it" } else { "to the workspace" };
        let when = match (mode.pipelined, on_gpu) {
            (true, false) => "as each one arrives",
            (true, true) => "as each part of large ones arrives",
            (false, _) => "when all have arrived",
        };
        write!(out, "{}: {by}, {to}; staged blocks are unpacked {when}", backend.name.to_string_lossy())
    }
}

fn name(kind: &'static Kind, number: c_int) -> *const c_char {
    kind.all.iter().find(|backend| backend.number == number).map_or(c"ERROR", |backend| backend.name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudecompTransposeCommBackendToString(backend: c_int) -> *const c_char {
    name(&TRANSPOSES, backend)
}

#[unsafe(no_mangle)]
extern "C" fn cudecompHaloCommBackendToString(backend: c_int) -> *const c_char {
    name(&HALOS, backend)
}
