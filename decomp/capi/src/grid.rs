//! Grid descriptors: their creation, their properties, and workspaces.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use symrail_decomp::cuda::GpuKernels;
use symrail_decomp::halo::shifted;
use symrail_decomp::{AnyPlan, Decomposition, Form, Grid, RankOrder, Round, Tuning, Workspace, tune_on};

use crate::guard::{Failure, extents, given, guarded, three};
use crate::handle::Handle;
use crate::operations::Key;
use crate::types::{
    Config, Options, PencilInfo, axis, element, halo_backend, halo_mode, transpose_backend, transpose_mode,
};

/// Bytes of the smallest type. Sizes in elements include the rounding for elements of any type.
const SMALLEST: usize = 4;

/// `cudecompGridDesc_t`.
pub struct GridDesc {
    pub array: Decomposition,
    pub config: Config,
    /// The plans. All ranks together make a plan when they first run it.
    pub plans: HashMap<Key, AnyPlan>,
    /// The kernels of the handle.
    pub kernels: Option<GpuKernels>,
    /// The workspaces by their addresses. These are addresses of the GPU if arrays are there.
    pub works: HashMap<usize, Workspace>,
    /// An empty workspace, which stands in for an argument that is no workspace.
    pub none: Workspace,
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescConfigSetDefaults(config: *mut Config) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let config = unsafe { given("config", config) }?;
        *config = Config {
            struct_size: size_of::<Config>() as i64,
            gdims: [0; 3],
            gdims_dist: [0; 3],
            pdims: [0; 2],
            rank_order: 0,
            transpose_comm_backend: 8,
            transpose_axis_contiguous: [0; 3],
            transpose_mem_order: [[-1; 3]; 3],
            halo_comm_backend: 3,
        };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescAutotuneOptionsSetDefaults(options: *mut Options) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        let options = unsafe { given("options", options) }?;
        *options = Options {
            struct_size: size_of::<Options>() as i64,
            n_warmup_trials: 3,
            n_trials: 5,
            grid_mode: 0,
            dtype: -2,
            allow_uneven_decompositions: 1,
            skip_threshold: 0.0,
            autotune_transpose_backend: 0,
            autotune_halo_backend: 0,
            halo_axis: 0,
            halo_extents: [0; 3],
            halo_periods: [0; 3],
            halo_padding: [0; 3],
        };
        Ok(())
    })
}

/// The grid of a configuration.
fn grid_of(config: &Config) -> Result<Grid, Failure> {
    let whole = extents("gdims", config.gdims)?;
    let distributed = extents("gdims_dist", config.gdims_dist)?;
    let [rows, columns, _] = extents("pdims", [config.pdims[0], config.pdims[1], 0])?;
    let ranks = match config.rank_order {
        0 | 1 => RankOrder::RowMajor,
        2 => RankOrder::ColumnMajor,
        other => return Err(Failure::usage(format!("rank_order {other}: there are 0, 1 and 2"))),
    };
    let mut grid = Grid { ranks, ..Grid::new(whole, [rows, columns]) };
    if distributed.iter().all(|&extent| extent > 0) {
        grid.distributed = distributed;
    }
    let contiguous = grid.axis_contiguous().memory;
    for (axis, memory) in grid.memory.iter_mut().enumerate() {
        if config.transpose_axis_contiguous[axis] != 0 {
            *memory = contiguous[axis];
        }
        if config.transpose_mem_order[axis] != [-1; 3] {
            *memory = extents("transpose_mem_order", config.transpose_mem_order[axis])?;
        }
    }
    Ok(grid)
}

/// The parameters of the measurement for transposes, or for halos.
fn tuning_of(options: &Options, halos: bool) -> Result<Tuning, Failure> {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let round = if halos {
        let halo = extents("halo_extents", options.halo_extents)?;
        let form = Form { halo, padding: extents("halo_padding", options.halo_padding)? };
        Round::Halos { axis: axis(options.halo_axis)?, form, periodic: options.halo_periods.map(|flag| flag != 0) }
    } else {
        Round::Transposes
    };
    Ok(Tuning {
        round,
        processes: None,
        mode: None,
        // The back ends have no name for a size from which on copy engines move blocks.
        crossover: false,
        element: element(options.dtype)?,
        fields: 1,
        warmup: count(options.n_warmup_trials),
        rounds: count(options.n_trials),
        uneven: options.allow_uneven_decompositions != 0,
        skip: options.skip_threshold,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescCreate(
    handle: *mut Handle,
    desc: *mut *mut GridDesc,
    config: *mut Config,
    options: *const Options,
) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers, and for the handle.
        let (handle, to, config, options) = unsafe {
            (given("handle", handle)?, given("grid_desc", desc)?, given("config", config)?, options.as_ref())
        };
        if config.struct_size != size_of::<Config>() as i64 {
            return Err(Failure::usage("config: call cudecompGridDescConfigSetDefaults first"));
        }
        let modes = [transpose_mode(config.transpose_comm_backend)?, halo_mode(config.halo_comm_backend)?];
        let mut grid = grid_of(config)?;
        let mut team = handle.team()?;
        if let Some(options) = options {
            if options.struct_size != size_of::<Options>() as i64 {
                return Err(Failure::usage("options: call cudecompGridDescAutotuneOptionsSetDefaults first"));
            }
            let by_halos = match options.grid_mode {
                0 => false,
                1 => true,
                other => return Err(Failure::usage(format!("grid_mode {other}: there are 0 and 1"))),
            };
            let choose_backend = [options.autotune_transpose_backend, options.autotune_halo_backend];
            // The process grid is chosen first, by the operation that `grid_mode` selects.
            for halos in [by_halos, !by_halos] {
                let choose_grid = grid.processes == [0, 0];
                let choose_backend = choose_backend[usize::from(halos)] != 0;
                if !choose_grid && !choose_backend {
                    continue;
                }
                let processes = (!choose_grid).then_some(grid.processes);
                let mode = (!choose_backend).then_some(modes[usize::from(halos)]);
                let tuning = Tuning { processes, mode, ..tuning_of(options, halos)? };
                let (same_team, tuned) = tune_on(handle.kernels.as_ref(), &handle.heap, team, grid, &tuning)?;
                team = same_team;
                grid = tuned.grid;
                config.pdims = grid.processes.map(|number| number as i32);
                match halos {
                    _ if !choose_backend => {}
                    false => config.transpose_comm_backend = transpose_backend(tuned.mode),
                    true => config.halo_comm_backend = halo_backend(tuned.mode),
                }
            }
        }
        let array = Decomposition::new(&handle.heap, team, grid)?;
        let none = array.workspace(0)?;
        let (plans, works) = (HashMap::new(), HashMap::new());
        let made = GridDesc { array, config: *config, plans, kernels: handle.kernels.clone(), works, none };
        *to = Box::into_raw(Box::new(made));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGridDescDestroy(_handle: *mut Handle, desc: *mut GridDesc) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for the descriptor, which it does not use again.
        let GridDesc { array, plans, works, none, .. } = unsafe {
            given("grid_desc", desc)?;
            *Box::from_raw(desc)
        };
        // All ranks free plans and workspaces in the same order: that of their keys and addresses, which are symmetric.
        let mut plans: Vec<_> = plans.into_iter().collect();
        plans.sort_by_key(|(key, _)| *key);
        plans.into_iter().try_for_each(|(_, plan)| plan.give_up(&array))?;
        let mut works: Vec<_> = works.into_iter().collect();
        works.sort_by_key(|(at, _)| *at);
        works.into_iter().try_for_each(|(_, work)| array.give_back(work))?;
        Ok(array.give_back(none)?)
    })
}

/// Calls `body` with a descriptor.
pub fn with_desc(desc: *mut GridDesc, body: impl FnOnce(&mut GridDesc) -> Result<(), Failure>) -> c_int {
    // SAFETY: C's caller vouches for the descriptor.
    guarded(|| body(unsafe { given("grid_desc", desc) }?))
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetGridDescConfig(_handle: *mut Handle, desc: *mut GridDesc, config: *mut Config) -> c_int {
    with_desc(desc, |desc| {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("config", config) }? = desc.config;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetPencilInfo(
    _handle: *mut Handle,
    desc: *mut GridDesc,
    info: *mut PencilInfo,
    along: i32,
    halo: *const i32,
    padding: *const i32,
) -> c_int {
    with_desc(desc, |desc| {
        // SAFETY: C's caller vouches for its pointers.
        let (info, halo, padding) =
            unsafe { (given("pencil_info", info)?, three("halo_extents", halo)?, three("padding", padding)?) };
        let pencil = desc.array.pencil(axis(along)?, Form { halo, padding });
        let shape = pencil.shape();
        *info = PencilInfo {
            shape: pencil.order.map(|dim| shape[dim] as i32),
            lo: pencil.order.map(|dim| pencil.from[dim] as i32),
            hi: pencil.order.map(|dim| pencil.to[dim] as i32 - 1),
            order: pencil.order.map(|dim| dim as i32),
            halo_extents: halo.map(|width| width as i32),
            padding: padding.map(|width| width as i32),
            size: pencil.len() as i64,
        };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetTransposeWorkspaceSize(_handle: *mut Handle, desc: *mut GridDesc, size: *mut i64) -> c_int {
    with_desc(desc, |desc| {
        // SAFETY: C's caller vouches for its pointers.
        let size = unsafe { given("workspace_size", size) }?;
        // The most elements of all types: with the smallest type, rounding needs the most elements.
        let elements = |bytes| desc.array.transpose_workspace_bytes(bytes, 1).div_ceil(bytes);
        *size = [SMALLEST, 8, 16].map(elements).into_iter().max().unwrap_or(0) as i64;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetHaloWorkspaceSize(
    _handle: *mut Handle,
    desc: *mut GridDesc,
    along: i32,
    halo: *const i32,
    size: *mut i64,
) -> c_int {
    with_desc(desc, |desc| {
        // SAFETY: C's caller vouches for its pointers.
        let (size, halo) = unsafe { (given("workspace_size", size)?, three("halo_extents", halo)?) };
        let shape = desc.array.pencil(axis(along)?, Form { halo, padding: [0; 3] }).shape();
        let face = |dim: usize| shape.iter().product::<usize>() / shape[dim].max(1) * halo[dim];
        // Two faces are sent and two arrive, each rounded up to 256 bytes.
        let elements = |dim| 4 * (face(dim) + 256 / SMALLEST);
        *size = (0..3).map(elements).max().unwrap_or(0) as i64;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetDataTypeSize(dtype: c_int, size: *mut i64) -> c_int {
    guarded(|| {
        // SAFETY: C's caller vouches for its pointers.
        *unsafe { given("dtype_size", size) }? = element(dtype)? as i64;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompMalloc(
    _handle: *mut Handle,
    desc: *mut GridDesc,
    buffer: *mut *mut c_void,
    bytes: usize,
) -> c_int {
    with_desc(desc, |desc| {
        // SAFETY: C's caller vouches for its pointers.
        let buffer = unsafe { given("buffer", buffer) }?;
        let work = desc.array.workspace(bytes)?;
        let at =
            desc.kernels.as_ref().map_or(work.base().addr(), |kernels| kernels.device().address(work.base()) as usize);
        *buffer = std::ptr::with_exposed_provenance_mut(at);
        desc.works.insert(at, work);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompFree(_handle: *mut Handle, desc: *mut GridDesc, buffer: *mut c_void) -> c_int {
    with_desc(desc, |desc| {
        let not_there = || Failure::usage("buffer: it is not from cudecompMalloc with this descriptor");
        let work = desc.works.remove(&buffer.addr()).ok_or_else(not_there)?;
        // Rounds that were enqueued may still use it.
        let kernels = desc.kernels.as_ref().map(|kernels| kernels.device().gpu());
        kernels.map_or(Ok(()), |gpu| gpu.synchronize()).map_err(symrail_decomp::Error::from)?;
        Ok(desc.array.give_back(work)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudecompGetShiftedRank(
    _handle: *mut Handle,
    desc: *mut GridDesc,
    along: i32,
    dim: i32,
    displacement: i32,
    periodic: u8,
    rank: *mut i32,
) -> c_int {
    with_desc(desc, |desc| {
        // SAFETY: C's caller vouches for its pointers.
        let to = unsafe { given("shifted_rank", rank) }?;
        let (along, dim) = (axis(along)?, axis(dim)?.index());
        let found = shifted(desc.array.grid(), desc.array.rank(), along, dim, displacement.into(), periodic != 0);
        *to = found.map_or(-1, |rank| rank as i32);
        Ok(())
    })
}
