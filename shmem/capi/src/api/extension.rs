//! Extensions that other libraries offer too (`shmemx.h`): time, and block-strided puts and gets.

use std::ffi::{
    c_char, c_int, c_long, c_longlong, c_schar, c_short, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void,
};
use std::sync::OnceLock;
use std::time::Instant;

use symrail::collective::LongDouble;

use super::local;
use crate::fail::{check, fail};
use crate::handle::{Context, DEFAULT_CONTEXT, route};

/// Seconds since this PE's first call.
fn seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Blocks of `block` bytes, at distances of `dest_step` and `source_step` bytes.
struct Blocks {
    block: usize,
    dest_step: usize,
    source_step: usize,
    count: usize,
}

impl Blocks {
    /// Bytes from the start of the first block to the end of the last one.
    fn bytes(&self, step: usize) -> usize {
        self.count.checked_sub(1).map_or(0, |before| before.saturating_mul(step).saturating_add(self.block))
    }
}

/// Converts the lengths of a call from elements of `size` bytes to bytes.
fn blocks(function: &str, dst: isize, sst: isize, block: usize, count: usize, size: usize) -> Blocks {
    let step = |stride: isize| usize::try_from(stride).ok().filter(|&s| s >= block).map(|s| s.saturating_mul(size));
    match (step(dst), step(sst)) {
        (Some(dest_step), Some(source_step)) => {
            let blocks = Blocks { block: block.saturating_mul(size), dest_step, source_step, count };
            if blocks.bytes(dest_step.max(source_step)) > isize::MAX as usize {
                fail(function, &format!("{count} blocks at strides of {dst} and {sst} elements are more than memory"));
            }
            blocks
        }
        _ => fail(function, &format!("strides of {dst} and {sst} elements are shorter than a block of {block}")),
    }
}

macro_rules! transfers {
    ($($call:ident($dest:ident, $source:ident): $local:ident, $step:ident;)*) => {$(
        unsafe fn $call(function: &str, ctx: Context, $dest: *mut u8, $source: *const u8, blocks: &Blocks, pe: c_int) {
            let (ops, pe) = route(function, ctx, pe);
            local(function, stringify!($local), $local, blocks.bytes(blocks.$step));
            for i in 0..blocks.count {
                let (to, from) = ($dest.wrapping_add(i * blocks.dest_step), $source.wrapping_add(i * blocks.source_step));
                // SAFETY: what C promises.
                check(function, unsafe { ops.$call(to, from, blocks.block, pe) });
            }
        }
    )*};
}
transfers! { put(dest, source): source, source_step; get(dest, source): dest, dest_step; }

/// The routines for elements of one type or size, by their names.
macro_rules! many {
    ($t:ty, $size:expr, $([$($name:literal)+] $call:ident;)*) => {
        export! {$(
            ["shmemx_" $($name)+]
            fn(dest: *mut $t, source: *const $t, dst: isize, sst: isize, block: usize, count: usize, pe: c_int) {
                let blocks = blocks(NAME, dst, sst, block, count, $size);
                // SAFETY: what C promises.
                unsafe { $call(NAME, DEFAULT_CONTEXT, dest.cast(), source.cast(), &blocks, pe) }
            }
            ["shmemx_ctx_" $($name)+]
            fn(ctx: Context, dest: *mut $t, source: *const $t, dst: isize, sst: isize, block: usize, count: usize, pe: c_int) {
                let blocks = blocks(NAME, dst, sst, block, count, $size);
                // SAFETY: what C promises.
                unsafe { $call(NAME, ctx, dest.cast(), source.cast(), &blocks, pe) }
            }
        )*}
    };
}
macro_rules! typed {
    ($($n:literal, $c:literal, $t:ty;)*) => {$( many! { $t, size_of::<$t>(), [$n "_ibput"] put; [$n "_ibget"] get; } )*};
}
macro_rules! sized {
    ($($n:literal, $bytes:literal;)*) => {$( many! { c_void, $bytes, ["ibput" $n] put; ["ibget" $n] get; } )*};
}
rma_types! { typed }
sizes! { sized }

export! {
    ["shmemx_wtime"] fn() -> f64 { seconds() }
    // The thread that calls makes no difference.
    ["shmemx_register_gettid"] fn(_gettid: Option<unsafe extern "C" fn() -> u64>) {}
}
