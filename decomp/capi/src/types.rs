//! The structures and numbers of `include/cudecomp.h`.

use std::ffi::{CStr, c_char, c_int};

use symrail_decomp::{Axis, Mode};

use crate::guard::Failure;

/// `cudecompGridDescConfig_t`. Flags are bytes, since a program may have put any value there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    pub struct_size: i64,
    pub gdims: [i32; 3],
    pub gdims_dist: [i32; 3],
    pub pdims: [i32; 2],
    pub rank_order: c_int,
    pub transpose_comm_backend: c_int,
    pub transpose_axis_contiguous: [u8; 3],
    pub transpose_mem_order: [[i32; 3]; 3],
    pub halo_comm_backend: c_int,
}

/// `cudecompGridDescAutotuneOptions_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    pub struct_size: i64,
    pub n_warmup_trials: i32,
    pub n_trials: i32,
    pub grid_mode: c_int,
    pub dtype: c_int,
    pub allow_uneven_decompositions: u8,
    pub skip_threshold: f64,
    pub autotune_transpose_backend: u8,
    pub autotune_halo_backend: u8,
    pub halo_axis: i32,
    pub halo_extents: [i32; 3],
    pub halo_periods: [u8; 3],
    pub halo_padding: [i32; 3],
}

/// `cudecompPencilInfo_t`.
#[repr(C)]
pub struct PencilInfo {
    pub shape: [i32; 3],
    pub lo: [i32; 3],
    pub hi: [i32; 3],
    pub order: [i32; 3],
    pub halo_extents: [i32; 3],
    pub padding: [i32; 3],
    pub size: i64,
}

/// The numbers of transpose back ends with their modes. The first one with a mode stands for a mode that was chosen.
const TRANSPOSES: [(c_int, Mode, &CStr); 8] = [
    (8, mode(true, true), c"NVSHMEM_SM (direct, pipelined)"),
    (7, by_engines(mode(true, true)), c"NVSHMEM_PL (direct, pipelined; on GPUs by copy engines)"),
    (5, mode(true, true), c"NCCL_PL (direct, pipelined)"),
    (4, mode(false, true), c"NCCL (direct)"),
    (6, by_engines(mode(false, true)), c"NVSHMEM (direct; on GPUs by copy engines)"),
    (2, mode(true, false), c"MPI_P2P_PL (staged, pipelined)"),
    (1, mode(false, false), c"MPI_P2P (staged)"),
    (3, mode(false, false), c"MPI_A2A (staged)"),
];

/// The numbers of halo back ends with their modes, in the same way.
const HALOS: [(c_int, Mode, &CStr); 5] = [
    (3, mode(true, true), c"NCCL (direct, pipelined)"),
    (4, by_engines(mode(true, true)), c"NVSHMEM (direct, pipelined; on GPUs by copy engines)"),
    (5, by_engines(mode(false, true)), c"NVSHMEM (blocking) (direct; on GPUs by copy engines)"),
    (1, mode(true, false), c"MPI (staged, pipelined)"),
    (2, mode(false, false), c"MPI (blocking) (staged)"),
];

const fn mode(pipelined: bool, direct: bool) -> Mode {
    Mode { pipelined, direct, engines: None }
}

const fn by_engines(mode: Mode) -> Mode {
    Mode { engines: Some(0), ..mode }
}

fn find(table: &[(c_int, Mode, &'static CStr)], backend: c_int) -> Option<(Mode, &'static CStr)> {
    table.iter().find(|row| row.0 == backend).map(|row| (row.1, row.2))
}

pub fn transpose_mode(backend: c_int) -> Result<Mode, Failure> {
    let found = find(&TRANSPOSES, backend).map(|(mode, _)| mode);
    found.ok_or_else(|| Failure::usage(format!("transpose_comm_backend {backend}: there are 1 to 8")))
}

pub fn halo_mode(backend: c_int) -> Result<Mode, Failure> {
    let found = find(&HALOS, backend).map(|(mode, _)| mode);
    found.ok_or_else(|| Failure::usage(format!("halo_comm_backend {backend}: there are 1 to 5")))
}

/// The transpose back end for a mode.
pub fn transpose_backend(mode: Mode) -> c_int {
    backend(&TRANSPOSES, mode)
}

/// The halo back end for a mode.
pub fn halo_backend(mode: Mode) -> c_int {
    backend(&HALOS, mode)
}

fn backend(table: &[(c_int, Mode, &CStr)], mode: Mode) -> c_int {
    let of = |mode: Mode| table.iter().find(|row| row.1 == mode);
    // Some modes of host memory have only a back end with copy engines, which make no difference there.
    of(mode).or_else(|| of(by_engines(mode))).unwrap_or(&table[0]).0
}

#[unsafe(no_mangle)]
extern "C" fn cudecompTransposeCommBackendToString(backend: c_int) -> *const c_char {
    find(&TRANSPOSES, backend).map_or(c"ERROR", |(_, name)| name).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudecompHaloCommBackendToString(backend: c_int) -> *const c_char {
    find(&HALOS, backend).map_or(c"ERROR", |(_, name)| name).as_ptr()
}

/// Bytes of an element.
pub fn element(dtype: c_int) -> Result<usize, Failure> {
    match dtype {
        -1 => Ok(4),
        -2 | -3 => Ok(8),
        -4 => Ok(16),
        _ => Err(Failure::usage(format!("data type {dtype}: there are -1 to -4"))),
    }
}

pub fn axis(number: i32) -> Result<Axis, Failure> {
    let axis = usize::try_from(number).ok().and_then(|number| Axis::ALL.get(number));
    axis.copied().ok_or_else(|| Failure::usage(format!("axis {number}: there are 0, 1 and 2")))
}
