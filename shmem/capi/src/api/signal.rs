//! Puts with a signal, and signals.

use std::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void,
};

use symrail::SignalOp;
use symrail::collective::LongDouble;

use super::{comparison, not_null, signal_op};
use crate::fail::check;
use crate::handle::{Context, route};
use crate::job::job;

/// A signal word, its operand, and what is done with it.
type Signal = (*mut u64, u64, c_int);

unsafe fn put_signal(
    function: &str,
    ctx: Context,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    (word, value, op): Signal,
    pe: c_int,
) {
    let (ops, pe) = route(function, ctx, pe);
    not_null(function, "source", source, bytes);
    let op = signal_op(function, op);
    if bytes == 0 {
        return check(function, ops.signal_op(word, value, op, pe));
    }
    // SAFETY: what C promises.
    check(function, unsafe { ops.put_signal(dest, source, bytes, (word, value, op), pe) });
}

unsafe fn put_signal_nbi(
    function: &str,
    ctx: Context,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    (word, value, op): Signal,
    pe: c_int,
) {
    let (ops, pe) = route(function, ctx, pe);
    not_null(function, "source", source, bytes);
    let op = signal_op(function, op);
    if bytes == 0 {
        return check(function, ops.signal_op(word, value, op, pe));
    }
    // SAFETY: what C promises, until the next quiet.
    check(function, unsafe { ops.put_signal_nbi(dest, source, bytes, (word, value, op), pe) });
}

macro_rules! typed {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export_ctx! {
            |ctx| [$name "_put_signal"]
            fn(dest: *mut $t, source: *const $t, count: usize, word: *mut u64, value: u64, op: c_int, pe: c_int) {
                let bytes = count.saturating_mul(size_of::<$t>());
                // SAFETY: what C promises.
                unsafe { put_signal(NAME, ctx, dest.cast(), source.cast(), bytes, (word, value, op), pe) }
            }
            |ctx| [$name "_put_signal_nbi"]
            fn(dest: *mut $t, source: *const $t, count: usize, word: *mut u64, value: u64, op: c_int, pe: c_int) {
                let bytes = count.saturating_mul(size_of::<$t>());
                // SAFETY: what C promises.
                unsafe { put_signal_nbi(NAME, ctx, dest.cast(), source.cast(), bytes, (word, value, op), pe) }
            }
        }
    )*};
}
rma_types! { typed }

macro_rules! sized {
    ($($name:literal, $bytes:literal;)*) => {$(
        export_ctx! {
            |ctx| ["put" $name "_signal"]
            fn(dest: *mut c_void, source: *const c_void, count: usize, word: *mut u64, value: u64, op: c_int, pe: c_int) {
                let bytes = count.saturating_mul($bytes);
                // SAFETY: what C promises.
                unsafe { put_signal(NAME, ctx, dest.cast(), source.cast(), bytes, (word, value, op), pe) }
            }
            |ctx| ["put" $name "_signal_nbi"]
            fn(dest: *mut c_void, source: *const c_void, count: usize, word: *mut u64, value: u64, op: c_int, pe: c_int) {
                let bytes = count.saturating_mul($bytes);
                // SAFETY: what C promises.
                unsafe { put_signal_nbi(NAME, ctx, dest.cast(), source.cast(), bytes, (word, value, op), pe) }
            }
        }
    )*};
}
sizes! { sized }
sized! { "mem", 1; }

fn update(function: &str, ctx: Context, word: *mut u64, value: u64, op: SignalOp, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    check(function, ops.signal_op(word, value, op, pe));
}

export! {
    ["shmem_signal_fetch"] fn(word: *const u64) -> u64 {
        not_null(NAME, "sig_addr", word, 8);
        // SAFETY: what C promises: an aligned word of this PE's memory.
        check(NAME, unsafe { job(NAME).runtime.peek(word) })
    }

    ["shmem_signal_wait_until"] fn(word: *mut u64, cmp: c_int, value: u64) -> u64 {
        not_null(NAME, "sig_addr", word, 8);
        let cmp = comparison(NAME, cmp);
        // SAFETY: what C promises: an aligned word of this PE's memory.
        check(NAME, unsafe { job(NAME).runtime.wait_until(word, cmp, value) })
    }

    ["shmemx_signal_add"] fn(word: *mut u64, value: u64, pe: c_int) {
        update(NAME, crate::handle::DEFAULT_CONTEXT, word, value, SignalOp::Add, pe);
    }
    ["shmemx_signal_set"] fn(word: *mut u64, value: u64, pe: c_int) {
        update(NAME, crate::handle::DEFAULT_CONTEXT, word, value, SignalOp::Set, pe);
    }
    ["shmemx_ctx_signal_add"] fn(ctx: Context, word: *mut u64, value: u64, pe: c_int) {
        update(NAME, ctx, word, value, SignalOp::Add, pe);
    }
    ["shmemx_ctx_signal_set"] fn(ctx: Context, word: *mut u64, value: u64, pe: c_int) {
        update(NAME, ctx, word, value, SignalOp::Set, pe);
    }
}
