//! Puts and gets, blocking and not, of many and of one.

use std::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void,
};

use symrail::collective::LongDouble;

use super::not_null;
use crate::fail::check;
use crate::handle::{Context, route};

/// # Safety (of all)
/// What C promises: the local memory is valid for so many bytes.
#[inline]
unsafe fn put(function: &str, ctx: Context, dest: *mut u8, source: *const u8, bytes: usize, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    not_null(function, "source", source, bytes);
    if bytes > 0 {
        // SAFETY: the caller's promise.
        check(function, unsafe { ops.put(dest, source, bytes, pe) });
    }
}

#[inline]
unsafe fn get(function: &str, ctx: Context, dest: *mut u8, source: *const u8, bytes: usize, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    not_null(function, "dest", dest, bytes);
    if bytes > 0 {
        // SAFETY: the caller's promise.
        check(function, unsafe { ops.get(dest, source, bytes, pe) });
    }
}

#[inline]
unsafe fn put_nbi(function: &str, ctx: Context, dest: *mut u8, source: *const u8, bytes: usize, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    not_null(function, "source", source, bytes);
    if bytes > 0 {
        // SAFETY: the caller's promise, until the next quiet.
        check(function, unsafe { ops.put_nbi(dest, source, bytes, pe) });
    }
}

#[inline]
unsafe fn get_nbi(function: &str, ctx: Context, dest: *mut u8, source: *const u8, bytes: usize, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    not_null(function, "dest", dest, bytes);
    if bytes > 0 {
        // SAFETY: the caller's promise, until the next quiet.
        check(function, unsafe { ops.get_nbi(dest, source, bytes, pe) });
    }
}

macro_rules! many {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export_ctx! {
            |ctx| [$name "_put"] fn(dest: *mut $t, source: *const $t, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { put(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul(size_of::<$t>()), pe) }
            }
            |ctx| [$name "_get"] fn(dest: *mut $t, source: *const $t, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { get(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul(size_of::<$t>()), pe) }
            }
            |ctx| [$name "_put_nbi"] fn(dest: *mut $t, source: *const $t, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { put_nbi(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul(size_of::<$t>()), pe) }
            }
            |ctx| [$name "_get_nbi"] fn(dest: *mut $t, source: *const $t, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { get_nbi(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul(size_of::<$t>()), pe) }
            }
        }
    )*};
}
rma_types! { many }

macro_rules! sized {
    ($($name:literal, $bytes:literal;)*) => {$(
        export_ctx! {
            |ctx| ["put" $name] fn(dest: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { put(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul($bytes), pe) }
            }
            |ctx| ["get" $name] fn(dest: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { get(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul($bytes), pe) }
            }
            |ctx| ["put" $name "_nbi"] fn(dest: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { put_nbi(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul($bytes), pe) }
            }
            |ctx| ["get" $name "_nbi"] fn(dest: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
                // SAFETY: what C promises.
                unsafe { get_nbi(NAME, ctx, dest.cast(), source.cast(), count.saturating_mul($bytes), pe) }
            }
        }
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
