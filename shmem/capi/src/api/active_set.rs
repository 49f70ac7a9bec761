//! Collectives of active sets: deprecated, but many programs still use them.

use std::ffi::{c_int, c_long, c_longlong, c_short, c_void};

use symrail::collective::{Complex, ElementType, Extent, LongDouble};
use symrail::{ActiveSet, Group, Reduction};

use super::strided::shape;
use super::{no_overlap, no_overlap_if_checked, not_null};
use crate::fail::{check, fail};
use crate::job::job;

/// `PE_start`, `logPE_stride`, `PE_size`
type Set = (c_int, c_int, c_int);

/// Makes a call of an active set.
unsafe fn in_set(
    function: &str,
    (start, log_stride, size): Set,
    words: *mut c_long,
    call: impl FnOnce(ActiveSet<'static>) -> symrail::Result<()>,
) {
    let job = job(function);
    let runtime = &job.runtime;
    not_null(function, "pSync", words, 8 * symrail::collective::active_set::SYNC_WORDS);
    let stride = u32::try_from(log_stride).ok().and_then(|log| 1i64.checked_shl(log)).unwrap_or(0);
    let group = Group::new(start.into(), stride, size.into(), runtime.my_pe(), runtime.n_pes());
    let Some(group) = group else {
        let n_pes = runtime.n_pes();
        fail(
            function,
            &format!(
                "PE_start {start}, logPE_stride {log_stride}, PE_size {size} is no set of this PE and others of {n_pes}"
            ),
        );
    };
    // SAFETY: what C promises: an array of SHMEM_*_SYNC_SIZE words, symmetric, at SHMEM_SYNC_VALUE.
    check(function, call(check(function, unsafe { job.active_sets.set(group, words.cast()) })));
}

export! {
    ["shmem_barrier"] fn(start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long) {
        // SAFETY: what C promises.
        unsafe { in_set(NAME, (start, log_stride, size), sync, |set| set.barrier()) }
    }
    ["shmem_sync"] fn(start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long) {
        // SAFETY: what C promises.
        unsafe { in_set(NAME, (start, log_stride, size), sync, |set| set.sync()) }
    }
}

macro_rules! sized {
    ($($name:literal, $bytes:literal, $ty:ident;)*) => {$(
        export! {
            ["shmem_broadcast" $name]
            fn(
                dest: *mut c_void, source: *const c_void, count: usize, root: c_int,
                start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long,
            ) {
                if !(0..size).contains(&root) {
                    fail(NAME, &format!("PE_root {root} is not in the active set, which has PEs 0 to {}", size - 1));
                }
                // SAFETY: what C promises.
                unsafe { in_set(NAME, (start, log_stride, size), sync, |set| {
                    let bytes = count.saturating_mul($bytes);
                    set.broadcast(dest.cast(), source.cast(), Extent { bytes, ty: ElementType::$ty }, root as u32)
                }) }
            }
            ["shmem_alltoalls" $name]
            fn(
                dest: *mut c_void, source: *const c_void, dst: isize, sst: isize, count: usize,
                start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long,
            ) {
                // SAFETY: what C promises.
                unsafe { in_set(NAME, (start, log_stride, size), sync, |set| {
                    let shape = shape(NAME, dst, sst, $bytes, count);
                    set.alltoalls(dest.cast(), source.cast(), shape, ElementType::$ty)
                }) }
            }
        }
        // The bytes of dest and source that must not overlap, of those of a block and of a block for each PE.
        blocks! {
            $name, $bytes, $ty;
            "shmem_collect" collect: |_block, _all| None;
            "shmem_fcollect" fcollect: |block, all| Some((all, block));
            "shmem_alltoall" alltoall: |_block, all| Some((all, all));
        }
    )*};
}

macro_rules! blocks {
    ($name:literal, $bytes:literal, $ty:ident; $($call:literal $function:ident: $apart:expr;)*) => {
        export! {$(
            [$call $name]
            fn(
                dest: *mut c_void, source: *const c_void, count: usize,
                start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long,
            ) {
                let apart: fn(usize, usize) -> Option<(usize, usize)> = $apart;
                // SAFETY: what C promises.
                unsafe { in_set(NAME, (start, log_stride, size), sync, |set| {
                    let bytes = count.saturating_mul($bytes);
                    if let Some((to, from)) = apart(bytes, bytes.saturating_mul(size as usize)) {
                        no_overlap_if_checked(NAME, dest.cast(), to, source.cast(), from);
                    }
                    set.$function(dest.cast(), source.cast(), Extent { bytes, ty: ElementType::$ty })
                }) }
            }
        )*}
    };
}
sized! { "32", 4, Bits32; "64", 8, Bits64; }

macro_rules! reductions {
    ($($op:literal, $make:ident { $($name:literal, $t:ty;)* })*) => {$($(
        export! {
            ["shmem_" $name "_" $op "_to_all"]
            fn(
                dest: *mut $t, source: *const $t, count: c_int,
                start: c_int, log_stride: c_int, size: c_int, _work: *mut $t, sync: *mut c_long,
            ) {
                let Ok(count) = usize::try_from(count) else { fail(NAME, &format!("nreduce is {count}")) };
                let bytes = count.saturating_mul(size_of::<$t>());
                no_overlap(NAME, dest.cast(), bytes, source.cast(), bytes);
                // SAFETY: what C promises.
                unsafe { in_set(NAME, (start, log_stride, size), sync, |set| {
                    set.reduce(dest.cast(), source.cast(), count, Reduction::$make::<$t>())
                }) }
            }
        }
    )*)*};
}
old_bitwise_reduce_types! { bitwise_reductions }
old_ordered_reduce_types! { ordered_reductions }
old_arithmetic_reduce_types! { arithmetic_reductions }
