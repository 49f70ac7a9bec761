//! Strided puts and gets.

use std::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void,
};

use symrail::Strided;
use symrail::collective::LongDouble;

use super::local;
use crate::fail::{check, fail};
use crate::handle::{Context, route};

/// The shape, if the strides are valid.
pub fn shape(function: &str, dest_stride: isize, source_stride: isize, size: usize, count: usize) -> Strided {
    match (usize::try_from(dest_stride), usize::try_from(source_stride)) {
        (Ok(dest_stride @ 1..), Ok(source_stride @ 1..)) => Strided { dest_stride, source_stride, size, count },
        _ => fail(function, &format!("strides of {dest_stride} and {source_stride} elements; they start at 1")),
    }
}

unsafe fn iput(function: &str, ctx: Context, dest: *mut u8, source: *const u8, shape: Strided, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    local(function, "source", source, shape.span(shape.source_stride, 1));
    // SAFETY: what C promises.
    check(function, unsafe { ops.iput(dest, source, shape, pe) });
}

unsafe fn iget(function: &str, ctx: Context, dest: *mut u8, source: *const u8, shape: Strided, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    local(function, "dest", dest, shape.span(shape.dest_stride, 1));
    if shape.count > 0 {
        // SAFETY: what C promises.
        check(function, unsafe { ops.iget(dest, source, shape, pe) });
    }
}

/// The routines for elements of one type or size, by their names.
macro_rules! many {
    ($t:ty, $bytes:expr, $([$($name:literal)+] $call:ident;)*) => {
        export_ctx! {$(
            |ctx| [$($name)+] fn(dest: *mut $t, source: *const $t, dst: isize, sst: isize, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { $call(NAME, ctx, dest.cast(), source.cast(), shape(NAME, dst, sst, $bytes, count), pe) }
            }
        )*}
    };
}

macro_rules! typed {
    ($($n:literal, $c:literal, $t:ty;)*) => {$( many! { $t, size_of::<$t>(), [$n "_iput"] iput; [$n "_iget"] iget; } )*};
}
rma_types! { typed }

macro_rules! sized {
    ($($n:literal, $bytes:literal;)*) => {$( many! { c_void, $bytes, ["iput" $n] iput; ["iget" $n] iget; } )*};
}
sizes! { sized }
