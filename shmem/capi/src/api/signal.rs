//! Puts with a signal, and signals.

use std::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void,
};

use symrail::collective::LongDouble;
use symrail::{SignalOp, SignalUpdate};

use super::{Word, comparison, local, signal_op};
use crate::fail::check;
use crate::handle::{Context, route};
use crate::job::job;

/// A signal word, its operand and C's number of the operation.
struct Signal {
    word: *mut u64,
    value: u64,
    op: c_int,
}

/// Makes a put-signal; with no bytes it is the signal alone.
///
/// # Safety
/// What C promises: the source is valid for so many bytes, until the next quiet if the call does not wait.
macro_rules! put_signals {
    ($($call:ident)*) => {$(
        unsafe fn $call(
            function: &str,
            ctx: Context,
            dest: *mut u8,
            source: *const u8,
            bytes: usize,
            Signal { word, value, op }: Signal,
            pe: c_int,
        ) {
            let (ops, pe) = route(function, ctx, pe);
            local(function, "source", source, bytes);
            let op = signal_op(function, op);
            if bytes == 0 {
                return check(function, ops.signal_op(word, value, op, pe));
            }
            // SAFETY: the caller's promise.
            check(function, unsafe { ops.$call(dest, source, bytes, SignalUpdate { word, value, op }, pe) });
        }
    )*};
}
put_signals! { put_signal put_signal_nbi }

/// The routines for elements of one type or size, by their names.
macro_rules! many {
    ($t:ty, $bytes:expr, $([$($name:literal)+] $call:ident;)*) => {
        export_ctx! {$(
            |ctx| [$($name)+]
            fn(dest: *mut $t, source: *const $t, count: usize, word: *mut u64, value: u64, op: c_int, pe: c_int) {
                let bytes = count.saturating_mul($bytes);
                // SAFETY: what C promises.
                unsafe { $call(NAME, ctx, dest.cast(), source.cast(), bytes, Signal { word, value, op }, pe) }
            }
        )*}
    };
}

macro_rules! typed {
    ($($n:literal, $c:literal, $t:ty;)*) => {$(
        many! { $t, size_of::<$t>(), [$n "_put_signal"] put_signal; [$n "_put_signal_nbi"] put_signal_nbi; }
    )*};
}
rma_types! { typed }

macro_rules! sized {
    ($($n:literal, $bytes:literal;)*) => {$(
        many! { c_void, $bytes, ["put" $n "_signal"] put_signal; ["put" $n "_signal_nbi"] put_signal_nbi; }
    )*};
}
sizes! { sized }
sized! { "mem", 1; }

fn update(function: &str, ctx: Context, word: *mut u64, value: u64, op: SignalOp, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    check(function, ops.signal_op(word, value, op, pe));
}

export! {
    ["shmem_signal_fetch"] fn(word: Word<u64>) -> u64 {
        let word = word.held(NAME, "sig_addr");
        // SAFETY: what C promises.
        check(NAME, unsafe { job(NAME).runtime.peek(word) })
    }

    ["shmem_signal_wait_until"] fn(word: Word<u64>, cmp: c_int, value: u64) -> u64 {
        let cmp = comparison(NAME, cmp);
        word.wait(NAME, "sig_addr", cmp, value)
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
