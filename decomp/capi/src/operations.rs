//! Transposes and halos. The first call of an operation with certain parameters makes a plan, which is kept.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};

use symrail::kernels::cuda::Gpu;
use symrail_decomp::cuda::GpuMemory;
use symrail_decomp::{AnyPlan, Axis, Form, Halo, Transpose};

use crate::grid::{GridDesc, with_desc};
use crate::guard::{Failure, three};
use crate::handle::Handle;
use crate::types::{axis, element, halo_mode, transpose_mode};

/// The key of a plan: whether it is a halo's; axes; bytes of an element; halo and padding of input and output.
pub type Key = (bool, [usize; 2], bool, usize, [[usize; 3]; 4]);

/// Checks that the stream and the arrays are the GPU's if plans run there, and otherwise the host's.
fn check_place(desc: &GridDesc, stream: *mut c_void, arrays: [*mut c_void; 2]) -> Result<(), Failure> {
    if desc.kernels.is_some() {
        return Ok(());
    }
    let remedy = "set SYMRAIL_HEAP_KIND=device for arrays in a GPU's memory";
    if !stream.is_null() {
        return Err(Failure::unsupported(format!("stream: arrays are in host memory, so pass NULL; {remedy}")));
    }
    if arrays.iter().any(|array| Gpu::has(array.addr())) {
        return Err(Failure::unsupported(format!(
            "an array is in a GPU's memory, and the symmetric heap is not; {remedy}"
        )));
    }
    Ok(())
}

fn memory(at: *mut c_void, bytes: usize) -> GpuMemory {
    GpuMemory { at: at.expose_provenance() as u64, bytes }
}

/// The arguments of a transpose, in C's order.
struct Arrays {
    input: *mut c_void,
    output: *mut c_void,
    work: *mut c_void,
    dtype: c_int,
    forms: [*const i32; 4],
    stream: *mut c_void,
}

fn transpose(desc: *mut GridDesc, (from, to): (Axis, Axis), arrays: &Arrays) -> c_int {
    with_desc(desc, |desc| {
        check_place(desc, arrays.stream, [arrays.input, arrays.output])?;
        let names = ["input_halo_extents", "output_halo_extents", "input_padding", "output_padding"];
        let mut forms = [[0; 3]; 4];
        for (i, name) in names.iter().enumerate() {
            // SAFETY: C's caller vouches for its pointers.
            forms[i] = unsafe { three(name, arrays.forms[i]) }?;
        }
        let element = element(arrays.dtype)?;
        let GridDesc { array, config, plans, works, none, kernels } = desc;
        let plan = match plans.entry((false, [from.index(), to.index()], false, element, forms)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let wanted = Transpose {
                    input: Form { halo: forms[0], padding: forms[2] },
                    output: Form { halo: forms[1], padding: forms[3] },
                    mode: transpose_mode(config.transpose_comm_backend)?,
                    ..Transpose::new((from, to), element)
                };
                new.insert(AnyPlan::transpose(array, kernels.as_ref(), &wanted)?)
            }
        };
        let work = works.get_mut(&arrays.work.addr()).unwrap_or(none);
        let buffers = [memory(arrays.input, plan.input_bytes()), memory(arrays.output, plan.output_bytes())];
        // SAFETY: C's caller vouches for its buffers, for their sizes, which cudecompGetPencilInfo returns, and for the
        // stream.
        Ok(unsafe { plan.run(buffers, work, arrays.stream.expose_provenance()) }?)
    })
}

macro_rules! transposes {
    ($($name:ident: $from:ident, $to:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // C's interface has so many
        extern "C" fn $name(
            _handle: *mut Handle,
            desc: *mut GridDesc,
            input: *mut c_void,
            output: *mut c_void,
            work: *mut c_void,
            dtype: c_int,
            input_halo: *const i32,
            output_halo: *const i32,
            input_padding: *const i32,
            output_padding: *const i32,
            stream: *mut c_void,
        ) -> c_int {
            let forms = [input_halo, output_halo, input_padding, output_padding];
            transpose(desc, (Axis::$from, Axis::$to), &Arrays { input, output, work, dtype, forms, stream })
        }
    )*};
}

transposes! {
    cudecompTransposeXToY: X, Y;
    cudecompTransposeYToZ: Y, Z;
    cudecompTransposeZToY: Z, Y;
    cudecompTransposeYToX: Y, X;
}

/// The arguments of a halo: the array and the workspace, type, halo, periods, dimension, padding, stream.
type HaloCall = (*mut c_void, *mut c_void, c_int, *const i32, *const u8, i32, *const i32, *mut c_void);

fn halo(desc: *mut GridDesc, along: Axis, call: HaloCall) -> c_int {
    let (input, work, dtype, halo, periods, dim, padding, stream) = call;
    with_desc(desc, |desc| {
        check_place(desc, stream, [input; 2])?;
        // SAFETY: C's caller vouches for its pointers.
        let (halo, padding) = unsafe { (three("halo_extents", halo)?, three("padding", padding)?) };
        let dim = axis(dim)?.index();
        // SAFETY: as above: the pointer is null, or valid for a flag of each dimension.
        let periodic = !periods.is_null() && unsafe { periods.add(dim).read() } != 0;
        let element = element(dtype)?;
        let GridDesc { array, config, plans, works, none, kernels } = desc;
        let plan = match plans.entry((true, [along.index(), dim], periodic, element, [halo, padding, [0; 3], [0; 3]])) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let mode = halo_mode(config.halo_comm_backend)?;
                let form = Form { halo, padding };
                let wanted = Halo { axis: along, dim, periodic, form, element, fields: 1, mode };
                new.insert(AnyPlan::halo(array, kernels.as_ref(), &wanted)?)
            }
        };
        let work = works.get_mut(&work.addr()).unwrap_or(none);
        let buffer = memory(input, plan.input_bytes());
        // SAFETY: as for transposes.
        Ok(unsafe { plan.run([buffer; 2], work, stream.expose_provenance()) }?)
    })
}

macro_rules! halos {
    ($($name:ident: $axis:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // C's interface has so many
        extern "C" fn $name(
            _handle: *mut Handle,
            desc: *mut GridDesc,
            input: *mut c_void,
            work: *mut c_void,
            dtype: c_int,
            extents: *const i32,
            periods: *const u8,
            dim: i32,
            padding: *const i32,
            stream: *mut c_void,
        ) -> c_int {
            halo(desc, Axis::$axis, (input, work, dtype, extents, periods, dim, padding, stream))
        }
    )*};
}

halos! {
    cudecompUpdateHalosX: X;
    cudecompUpdateHalosY: Y;
    cudecompUpdateHalosZ: Z;
}
