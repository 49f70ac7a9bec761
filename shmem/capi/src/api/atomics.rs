//! Atomic memory operations.

use std::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_ulonglong};

use symrail::{AmoOp, AmoValue};

use super::local;
use crate::fail::check;
use crate::handle::{Context, route};

/// The operation, with its operand and (for compare-swap) its comparand.
type What<T> = (AmoOp, T, T);

#[inline]
fn fetch<T: AmoValue>(function: &str, ctx: Context, dest: *mut T, (op, operand, compare): What<T>, pe: c_int) -> T {
    let (ops, pe) = route(function, ctx, pe);
    let old = ops.fetch_amo(dest.cast(), T::TYPE, op, operand.bits(), compare.bits(), pe);
    T::from_bits(check(function, old))
}

#[inline]
fn apply<T: AmoValue>(function: &str, ctx: Context, dest: *mut T, (op, operand, compare): What<T>, pe: c_int) {
    let (ops, pe) = route(function, ctx, pe);
    check(function, ops.amo(dest.cast(), T::TYPE, op, operand.bits(), compare.bits(), pe));
}

/// Where a nonblocking operation stores the old value, as C passes it: valid until the next quiet.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Fetched<T>(*mut T);

#[inline]
fn fetch_nbi<T: AmoValue>(
    function: &str,
    ctx: Context,
    Fetched(result): Fetched<T>,
    dest: *mut T,
    (op, operand, compare): What<T>,
    pe: c_int,
) {
    let (ops, pe) = route(function, ctx, pe);
    local(function, "fetch", result.cast(), size_of::<T>());
    let (operand, compare) = (operand.bits(), compare.bits());
    // SAFETY: what C promises of the result.
    let done = unsafe { ops.fetch_amo_nbi(result.cast(), dest.cast(), T::TYPE, op, operand, compare, pe) };
    check(function, done);
}

macro_rules! standard {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export_ctx! {
            |ctx| [$name "_atomic_compare_swap"] fn(dest: *mut $t, cond: $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, ctx, dest, (AmoOp::CompareSwap, value, cond), pe)
            }
            |ctx| [$name "_atomic_fetch_inc"] fn(dest: *mut $t, pe: c_int) -> $t {
                fetch(NAME, ctx, dest, (AmoOp::Add, 1, 0), pe)
            }
            |ctx| [$name "_atomic_inc"] fn(dest: *mut $t, pe: c_int) {
                apply(NAME, ctx, dest, (AmoOp::Add, 1, 0), pe);
            }
            |ctx| [$name "_atomic_fetch_add"] fn(dest: *mut $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, ctx, dest, (AmoOp::Add, value, 0), pe)
            }
            |ctx| [$name "_atomic_add"] fn(dest: *mut $t, value: $t, pe: c_int) {
                apply(NAME, ctx, dest, (AmoOp::Add, value, 0), pe);
            }
            |ctx| [$name "_atomic_compare_swap_nbi"]
            fn(result: Fetched<$t>, dest: *mut $t, cond: $t, value: $t, pe: c_int) {
                fetch_nbi(NAME, ctx, result, dest, (AmoOp::CompareSwap, value, cond), pe);
            }
            |ctx| [$name "_atomic_fetch_inc_nbi"] fn(result: Fetched<$t>, dest: *mut $t, pe: c_int) {
                fetch_nbi(NAME, ctx, result, dest, (AmoOp::Add, 1, 0), pe);
            }
            |ctx| [$name "_atomic_fetch_add_nbi"] fn(result: Fetched<$t>, dest: *mut $t, value: $t, pe: c_int) {
                fetch_nbi(NAME, ctx, result, dest, (AmoOp::Add, value, 0), pe);
            }
        }
    )*};
}
amo_types! { standard }

macro_rules! extended {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export_ctx! {
            |ctx| [$name "_atomic_fetch"] fn(source: *const $t, pe: c_int) -> $t {
                fetch(NAME, ctx, source.cast_mut(), (AmoOp::Fetch, 0 as $t, 0 as $t), pe)
            }
            |ctx| [$name "_atomic_set"] fn(dest: *mut $t, value: $t, pe: c_int) {
                apply(NAME, ctx, dest, (AmoOp::Set, value, 0 as $t), pe);
            }
            |ctx| [$name "_atomic_swap"] fn(dest: *mut $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, ctx, dest, (AmoOp::Set, value, 0 as $t), pe)
            }
            |ctx| [$name "_atomic_fetch_nbi"] fn(result: Fetched<$t>, source: *const $t, pe: c_int) {
                fetch_nbi(NAME, ctx, result, source.cast_mut(), (AmoOp::Fetch, 0 as $t, 0 as $t), pe);
            }
            |ctx| [$name "_atomic_swap_nbi"] fn(result: Fetched<$t>, dest: *mut $t, value: $t, pe: c_int) {
                fetch_nbi(NAME, ctx, result, dest, (AmoOp::Set, value, 0 as $t), pe);
            }
        }
    )*};
}
extended_amo_types! { extended }

macro_rules! bits {
    ($($op:literal, $amo:ident { $($name:literal, $t:ty;)* })*) => {$($(
        export_ctx! {
            |ctx| [$name "_atomic_fetch_" $op] fn(dest: *mut $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, ctx, dest, (AmoOp::$amo, value, 0), pe)
            }
            |ctx| [$name "_atomic_" $op] fn(dest: *mut $t, value: $t, pe: c_int) {
                apply(NAME, ctx, dest, (AmoOp::$amo, value, 0), pe);
            }
            |ctx| [$name "_atomic_fetch_" $op "_nbi"] fn(result: Fetched<$t>, dest: *mut $t, value: $t, pe: c_int) {
                fetch_nbi(NAME, ctx, result, dest, (AmoOp::$amo, value, 0), pe);
            }
        }
    )*)*};
}
macro_rules! bitwise {
    ($($name:literal, $c:literal, $t:ty;)*) => {
        bits! { "and", And { $($name, $t;)* } "or", Or { $($name, $t;)* } "xor", Xor { $($name, $t;)* } }
    };
}
bitwise_amo_types! { bitwise }

// The names of these routines before 1.4.

macro_rules! old_standard {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmem_" $name "_cswap"] fn(dest: *mut $t, cond: $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, DEFAULT, dest, (AmoOp::CompareSwap, value, cond), pe)
            }
            ["shmem_" $name "_finc"] fn(dest: *mut $t, pe: c_int) -> $t {
                fetch(NAME, DEFAULT, dest, (AmoOp::Add, 1, 0), pe)
            }
            ["shmem_" $name "_inc"] fn(dest: *mut $t, pe: c_int) {
                apply(NAME, DEFAULT, dest, (AmoOp::Add, 1, 0), pe);
            }
            ["shmem_" $name "_fadd"] fn(dest: *mut $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, DEFAULT, dest, (AmoOp::Add, value, 0), pe)
            }
            ["shmem_" $name "_add"] fn(dest: *mut $t, value: $t, pe: c_int) {
                apply(NAME, DEFAULT, dest, (AmoOp::Add, value, 0), pe);
            }
        }
    )*};
}
amo_types! { old_standard }

macro_rules! old_extended {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmem_" $name "_fetch"] fn(source: *const $t, pe: c_int) -> $t {
                fetch(NAME, DEFAULT, source.cast_mut(), (AmoOp::Fetch, 0 as $t, 0 as $t), pe)
            }
            ["shmem_" $name "_set"] fn(dest: *mut $t, value: $t, pe: c_int) {
                apply(NAME, DEFAULT, dest, (AmoOp::Set, value, 0 as $t), pe);
            }
            ["shmem_" $name "_swap"] fn(dest: *mut $t, value: $t, pe: c_int) -> $t {
                fetch(NAME, DEFAULT, dest, (AmoOp::Set, value, 0 as $t), pe)
            }
        }
    )*};
}
extended_amo_types! { old_extended }

const DEFAULT: Context = crate::handle::DEFAULT_CONTEXT;
