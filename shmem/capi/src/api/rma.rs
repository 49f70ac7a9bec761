//! Puts and gets, blocking and nonblocking, of many elements and of one.

use std::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void,
};

use symrail::collective::LongDouble;
use symrail::{Operations, Pe};

use super::local;
use crate::fail::check;
use crate::handle::{Context, route};

/// Starts a transfer of `bytes` bytes from or to local memory, which the specification calls by this name.
#[inline]
fn transfer(
    function: &str,
    ctx: Context,
    name: &'static str,
    pointer: *const u8,
    bytes: usize,
    pe: c_int,
    start: impl FnOnce(Operations<'_>, Pe) -> symrail::Result<()>,
) {
    let (ops, pe) = route(function, ctx, pe);
    local(function, name, pointer, bytes);
    if bytes > 0 {
        check(function, start(ops, pe));
    }
}

/// # Safety (of all)
/// What C promises: the local memory is valid for so many bytes, until the next quiet if the call does not wait.
macro_rules! transfers {
    ($($call:ident($dest:ident, $source:ident): $local:ident;)*) => {$(
        #[inline]
        unsafe fn $call(function: &str, ctx: Context, $dest: *mut u8, $source: *const u8, bytes: usize, pe: c_int) {
            // SAFETY: the caller's promise.
            let start = |ops: Operations<'_>, pe| unsafe { ops.$call($dest, $source, bytes, pe) };
            transfer(function, ctx, stringify!($local), $local.cast(), bytes, pe, start);
        }
    )*};
}
transfers! {
    put(dest, source): source;
    get(dest, source): dest;
    put_nbi(dest, source): source;
    get_nbi(dest, source): dest;
}

/// The routines for elements of one type or size, by their names.
macro_rules! many {
    ($t:ty, $bytes:expr, $([$($name:literal)+] $call:ident;)*) => {
        export_ctx! {$(
            |ctx| [$($name)+] fn(dest: *mut $t, source: *const $t, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { $call(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul($bytes), pe) }
            }
        )*}
    };
}

macro_rules! typed {
    ($($n:literal, $c:literal, $t:ty;)*) => {$(
        many! {
            $t, size_of::<$t>(),
            [$n "_put"] put; [$n "_get"] get; [$n "_put_nbi"] put_nbi; [$n "_get_nbi"] get_nbi;
        }
    )*};
}
rma_types! { typed }

macro_rules! sized {
    ($($n:literal, $bytes:literal;)*) => {$(
        many! { c_void, $bytes, ["put" $n] put; ["get" $n] get; ["put" $n "_nbi"] put_nbi; ["get" $n "_nbi"] get_nbi; }
    )*};
}
sizes! { sized }
sized! { "mem", 1; }

macro_rules! one {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export_ctx! {
            |ctx| [$name "_p"] fn(dest: *mut $t, value: $t, pe: c_int) {
                // SAFETY: the source is this call's argument.
                unsafe { put(NAME, ctx, dest.cast(), (&raw const value).cast(), size_of::<$t>(), pe) }
            }
            |ctx| [$name "_g"] fn(source: *const $t, pe: c_int) -> $t {
                let mut value = std::mem::MaybeUninit::<$t>::zeroed();
                // SAFETY: the destination is this call's variable; all of its bit patterns are values.
                unsafe {
                    get(NAME, ctx, value.as_mut_ptr().cast(), source.cast(), size_of::<$t>(), pe);
                    value.assume_init()
                }
            }
        }
    )*};
}
value_types! { one }
