//! Transposes and halos. A plan is made when an operation is first called with its parameters, and kept.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};

use symrail_decomp::{Axis, Buffer, Form, Halo, Transpose};

use crate::grid::{GridDesc, with_desc};
use crate::guard::{Failure, three};
use crate::handle::Handle;
use crate::types::{axis, element, halo_mode, transpose_mode};

/// What a plan is for: whether it is a halo's; axes; bytes of an element; halo and padding of input and output.
pub type Key = (bool, [usize; 2], bool, usize, [[usize; 3]; 4]);

fn no_stream(stream: *mut c_void) -> Result<(), Failure> {
    if stream.is_null() {
        return Ok(());
    }
    Err(Failure::unsupported("stream: arrays are in host memory, where there are no streams; pass NULL"))
}

/// What a transpose is called with, in C's order.
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
        no_stream(arrays.stream)?;
        let names = ["input_halo_extents", "output_halo_extents", "input_padding", "output_padding"];
        let mut forms = [[0; 3]; 4];
        for (i, name) in names.iter().enumerate() {
            // SAFETY: C's caller vouches for its pointers.
            forms[i] = unsafe { three(name, arrays.forms[i]) }?;
        }
        let element = element(arrays.dtype)?;
        let GridDesc { array, config, plans, works, none } = desc;
        let plan = match plans.entry((false, [from.index(), to.index()], false, element, forms)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(array.transpose(&Transpose {
                input: Form { halo: forms[0], padding: forms[2] },
                output: Form { halo: forms[1], padding: forms[3] },
                mode: transpose_mode(config.transpose_comm_backend)?,
                ..Transpose::new((from, to), element)
            })?),
        };
        let work = works.get_mut(&arrays.work.addr()).unwrap_or(none);
        // SAFETY: C's caller vouches for its buffers, and for their sizes, which cudecompGetPencilInfo tells.
        let (input, output) = unsafe {
            let input = Buffer::raw(arrays.input.cast(), plan.input_bytes());
            (input, Buffer::raw(arrays.output.cast(), plan.output_bytes()))
        };
        Ok(plan.run(input, output, work)?)
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

/// What a halo is called with: the array and the workspace, type, halo, periods, dimension, padding, stream.
type HaloCall = (*mut c_void, *mut c_void, c_int, *const i32, *const u8, i32, *const i32, *mut c_void);

fn halo(desc: *mut GridDesc, along: Axis, call: HaloCall) -> c_int {
    let (input, work, dtype, halo, periods, dim, padding, stream) = call;
    with_desc(desc, |desc| {
        no_stream(stream)?;
        // SAFETY: C's caller vouches for its pointers.
        let (halo, padding) = unsafe { (three("halo_extents", halo)?, three("padding", padding)?) };
        let dim = axis(dim)?.index();
        // SAFETY: as above: null, or a flag for each dimension.
        let periodic = !periods.is_null() && unsafe { periods.add(dim).read() } != 0;
        let element = element(dtype)?;
        let GridDesc { array, config, plans, works, none } = desc;
        let plan = match plans.entry((true, [along.index(), dim], periodic, element, [halo, padding, [0; 3], [0; 3]])) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let mode = halo_mode(config.halo_comm_backend)?;
                let form = Form { halo, padding };
                new.insert(array.halo(&Halo { axis: along, dim, periodic, form, element, fields: 1, mode })?)
            }
        };
        let work = works.get_mut(&work.addr()).unwrap_or(none);
        // SAFETY: as for transposes.
        let buffer = unsafe { Buffer::raw(input.cast(), plan.input_bytes()) };
        Ok(plan.run_in_place(buffer, work)?)
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
