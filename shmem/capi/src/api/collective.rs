//! Collectives of teams, except reductions.

use std::ffi::{c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort};

use symrail::Strided;
use symrail::collective::number::Element;
use symrail::collective::{ElementType, Extent, LongDouble};

use super::strided::shape;
use super::{no_overlap, no_overlap_if_checked, not_null, team_with};
use crate::fail::{check, fail};
use crate::handle::{TeamHandle, team};

unsafe fn broadcast(
    function: &str,
    handle: TeamHandle,
    dest: *mut u8,
    source: *const u8,
    extent: Extent,
    root: c_int,
) -> c_int {
    let bytes = extent.bytes;
    let team = team(function, handle);
    let Some(root) = u32::try_from(root).ok().filter(|&root| root < team.group().size()) else {
        fail(function, &format!("root {root} is not in the team, which has PEs 0 to {}", team.group().size() - 1));
    };
    not_null(function, "dest", dest, bytes);
    if root == team.group().me() {
        not_null(function, "source", source, bytes);
        no_overlap(function, dest, bytes, source, bytes);
    }
    // SAFETY: what C promises.
    check(function, unsafe { team.broadcast(dest, source, extent, root) });
    0
}

unsafe fn fcollect(function: &str, handle: TeamHandle, dest: *mut u8, source: *const u8, extent: Extent) -> c_int {
    let bytes = extent.bytes;
    let team = team_with(function, handle, dest, source, bytes);
    let all = bytes.saturating_mul(team.group().size() as usize);
    no_overlap_if_checked(function, dest, all, source, bytes);
    // SAFETY: what C promises.
    check(function, unsafe { team.fcollect(dest, source, extent) });
    0
}

unsafe fn collect(function: &str, handle: TeamHandle, dest: *mut u8, source: *const u8, extent: Extent) -> c_int {
    let bytes = extent.bytes;
    let team = team_with(function, handle, dest, source, bytes);
    // SAFETY: what C promises.
    check(function, unsafe { team.collect(dest, source, extent) });
    0
}

unsafe fn alltoall(function: &str, handle: TeamHandle, dest: *mut u8, source: *const u8, extent: Extent) -> c_int {
    let bytes = extent.bytes;
    let team = team_with(function, handle, dest, source, bytes);
    let all = bytes.saturating_mul(team.group().size() as usize);
    no_overlap_if_checked(function, dest, all, source, all);
    // SAFETY: what C promises.
    check(function, unsafe { team.alltoall(dest, source, extent) });
    0
}

unsafe fn alltoalls(
    function: &str,
    handle: TeamHandle,
    dest: *mut u8,
    source: *const u8,
    shape: Strided,
    ty: ElementType,
) -> c_int {
    let team = team_with(function, handle, dest, source, shape.count);
    // SAFETY: what C promises.
    check(function, unsafe { team.alltoalls(dest, source, shape, ty) });
    0
}

/// `count` elements of a type.
fn of<T>(count: usize, ty: ElementType) -> Extent {
    Extent { bytes: count.saturating_mul(size_of::<T>()), ty }
}

macro_rules! typed {
    ($($name:literal, $c:literal, $t:ty;)*) => {$(
        routines! { [$name "_broadcast"] [$name "_fcollect"] [$name "_collect"] [$name "_alltoall"] [$name "_alltoalls"] $t, <$t>::TYPE }
    )*};
}

macro_rules! routines {
    ([$($broadcast:literal)+] [$($fcollect:literal)+] [$($collect:literal)+] [$($alltoall:literal)+] [$($alltoalls:literal)+] $t:ty, $ty:expr) => {
        export! {
            ["shmem_" $($broadcast)+] fn(team: TeamHandle, dest: *mut $t, source: *const $t, count: usize, root: c_int) -> c_int {
                // SAFETY: what C promises.
                unsafe { broadcast(NAME, team, dest.cast(), source.cast(), of::<$t>(count, $ty), root) }
            }
            ["shmem_" $($alltoalls)+]
            fn(team: TeamHandle, dest: *mut $t, source: *const $t, dst: isize, sst: isize, count: usize) -> c_int {
                let shape = shape(NAME, dst, sst, size_of::<$t>(), count);
                // SAFETY: what C promises.
                unsafe { alltoalls(NAME, team, dest.cast(), source.cast(), shape, $ty) }
            }
        }
        blocks! { $t, $ty, [$($fcollect)+] fcollect; [$($collect)+] collect; [$($alltoall)+] alltoall; }
    };
}

macro_rules! blocks {
    ($t:ty, $ty:expr, $([$($name:literal)+] $call:ident;)*) => {
        export! {$(
            ["shmem_" $($name)+] fn(team: TeamHandle, dest: *mut $t, source: *const $t, count: usize) -> c_int {
                // SAFETY: what C promises.
                unsafe { $call(NAME, team, dest.cast(), source.cast(), of::<$t>(count, $ty)) }
            }
        )*}
    };
}
rma_types! { typed }

/// A byte, which C's `void *` stands for here.
type Byte = u8;
routines! { ["broadcastmem"] ["fcollectmem"] ["collectmem"] ["alltoallmem"] ["alltoallsmem"] Byte, ElementType::Bytes }
