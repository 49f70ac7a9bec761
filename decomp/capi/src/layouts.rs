//! The structures of `include/cudecomp.h`, which are those of cuDecomp 0.7, and the check of their versions.

use std::ffi::c_int;

use symrail_decomp::Axis;

use crate::guard::Failure;

/// The beginning of each structure. The functions that set defaults write it, and the others check it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub struct_size: i64,
    pub magic: i32,
    pub version: i32,
}

/// `cudecompGridDescConfig_t`. Flags are bytes, since a program may have put any value there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    pub head: Head,
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
    pub head: Head,
    pub n_warmup_trials: i32,
    pub n_trials: i32,
    pub grid_mode: c_int,
    pub dtype: c_int,
    pub allow_uneven_decompositions: u8,
    pub disable_mpi_backends: u8,
    pub disable_nccl_backends: u8,
    pub disable_nvshmem_backends: u8,
    pub skip_threshold: f64,
    pub autotune_transpose_backend: u8,
    pub transpose_use_inplace_buffers: [u8; 4],
    pub transpose_op_weights: [f64; 4],
    pub transpose_input_halo_extents: [[i32; 3]; 4],
    pub transpose_output_halo_extents: [[i32; 3]; 4],
    pub transpose_input_padding: [[i32; 3]; 4],
    pub transpose_output_padding: [[i32; 3]; 4],
    pub autotune_halo_backend: u8,
    pub halo_extents: [i32; 3],
    pub halo_periods: [u8; 3],
    pub halo_axis: i32,
    pub halo_padding: [i32; 3],
}

/// `cudecompPencilInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PencilInfo {
    pub head: Head,
    pub shape: [i32; 3],
    pub lo: [i32; 3],
    pub hi: [i32; 3],
    pub order: [i32; 3],
    pub halo_extents: [i32; 3],
    pub padding: [i32; 3],
    pub size: i64,
}

const _: () = assert!(size_of::<Config>() == 104 && size_of::<Options>() == 320 && size_of::<PencilInfo>() == 96);

/// A structure with a head.
pub trait Layout: Sized {
    const NAME: &'static str;
    const MAGIC: i32;
    const VERSION: i32 = 1;
    const HEAD: Head = Head { struct_size: size_of::<Self>() as i64, magic: Self::MAGIC, version: Self::VERSION };

    fn head(&self) -> Head;

    /// Checks the size and the version with which a program was compiled.
    fn check(struct_size: i64, version: i32) -> Result<(), Failure> {
        let (name, Head { struct_size: size, version: known, .. }) = (Self::NAME, Self::HEAD);
        if version != known {
            return Err(Failure::usage(format!("{name}: version {version} of its layout, where {known} is known")));
        }
        if struct_size != size {
            return Err(Failure::usage(format!("{name}: {struct_size} bytes, where version {version} has {size}")));
        }
        Ok(())
    }

    /// As [`Layout::check`], for a structure that the program has filled.
    fn check_filled(&self, struct_size: i64, version: i32) -> Result<(), Failure> {
        Self::check(struct_size, version)?;
        if self.head() == Self::HEAD {
            return Ok(());
        }
        let Head { struct_size, magic, version } = self.head();
        Err(Failure::usage(format!(
            "{} has a head of {struct_size} bytes, magic {magic:#x}, version {version}: set its defaults first",
            Self::NAME
        )))
    }
}

impl Layout for Config {
    const NAME: &'static str = "config";
    const MAGIC: i32 = 0x434f_4e46;

    fn head(&self) -> Head {
        self.head
    }
}

impl Layout for Options {
    const NAME: &'static str = "options";
    const MAGIC: i32 = 0x4155_544f;

    fn head(&self) -> Head {
        self.head
    }
}

impl Layout for PencilInfo {
    const NAME: &'static str = "pencil_info";
    const MAGIC: i32 = 0x5049_4e46;

    fn head(&self) -> Head {
        self.head
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            head: Config::HEAD,
            gdims: [0; 3],
            gdims_dist: [0; 3],
            pdims: [0; 2],
            rank_order: 0,
            transpose_comm_backend: 1,
            transpose_axis_contiguous: [0; 3],
            transpose_mem_order: [[-1; 3]; 3],
            halo_comm_backend: 1,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            head: Options::HEAD,
            n_warmup_trials: 3,
            n_trials: 5,
            grid_mode: 0,
            dtype: -2,
            allow_uneven_decompositions: 1,
            disable_mpi_backends: 0,
            disable_nccl_backends: 0,
            disable_nvshmem_backends: 0,
            skip_threshold: 0.0,
            autotune_transpose_backend: 0,
            transpose_use_inplace_buffers: [0; 4],
            transpose_op_weights: [1.0; 4],
            transpose_input_halo_extents: [[0; 3]; 4],
            transpose_output_halo_extents: [[0; 3]; 4],
            transpose_input_padding: [[0; 3]; 4],
            transpose_output_padding: [[0; 3]; 4],
            autotune_halo_backend: 0,
            halo_extents: [0; 3],
            halo_periods: [0; 3],
            halo_axis: 0,
            halo_padding: [0; 3],
        }
    }
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
