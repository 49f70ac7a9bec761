//! Reductions of teams.

use std::ffi::{c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort};

use symrail::Reduction;
use symrail::collective::{Complex, LongDouble};

use super::{no_overlap, team_with};
use crate::fail::check;
use crate::handle::TeamHandle;

/// A reduction, or a scan, which is inclusive or not.
unsafe fn reduce(
    function: &str,
    handle: TeamHandle,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    reduction: Reduction,
    scan: Option<bool>,
) -> c_int {
    let bytes = count.saturating_mul(reduction.size());
    let team = team_with(function, handle, dest, source, bytes);
    no_overlap(function, dest, bytes, source, bytes);
    // SAFETY: what C promises.
    let reduced = unsafe {
        match scan {
            None => team.reduce(dest, source, count, reduction),
            Some(inclusive) => team.scan(dest, source, count, reduction, inclusive),
        }
    };
    check(function, reduced);
    0
}

macro_rules! reductions {
    ($($op:literal, $make:ident { $($name:literal, $t:ty;)* })*) => {$($(
        export! {
            ["shmem_" $name "_" $op "_reduce"]
            fn(team: TeamHandle, dest: *mut $t, source: *const $t, count: usize) -> c_int {
                // SAFETY: what C promises.
                unsafe { reduce(NAME, team, dest.cast(), source.cast(), count, Reduction::$make::<$t>(), None) }
            }
        }
    )*)*};
}
bitwise_reduce_types! { bitwise_reductions }
ordered_reduce_types! { ordered_reductions }
arithmetic_reduce_types! { arithmetic_reductions }

macro_rules! scans {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        export! {
            ["shmemx_" $name "_sum_inscan"] fn(team: TeamHandle, dest: *mut $t, source: *const $t, count: usize) -> c_int {
                // SAFETY: what C promises.
                unsafe { reduce(NAME, team, dest.cast(), source.cast(), count, Reduction::sum::<$t>(), Some(true)) }
            }
            ["shmemx_" $name "_sum_exscan"] fn(team: TeamHandle, dest: *mut $t, source: *const $t, count: usize) -> c_int {
                // SAFETY: what C promises.
                unsafe { reduce(NAME, team, dest.cast(), source.cast(), count, Reduction::sum::<$t>(), Some(false)) }
            }
        }
    )*};
}
arithmetic_reduce_types! { scans }
