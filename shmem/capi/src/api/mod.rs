//! The routines, by chapter of the specification.

/// Calls the `reductions!` in scope with the bitwise operations, for these types.
macro_rules! bitwise_reductions {
    ($($name:literal, $c:literal, $t:ty;)*) => {
        reductions! { "and", and { $($name, $t;)* } "or", or { $($name, $t;)* } "xor", xor { $($name, $t;)* } }
    };
}

/// Calls `reductions!` with minimum and maximum.
macro_rules! ordered_reductions {
    ($($name:literal, $c:literal, $t:ty;)*) => { reductions! { "min", min { $($name, $t;)* } "max", max { $($name, $t;)* } } };
}

/// Calls `reductions!` with sum and product.
macro_rules! arithmetic_reductions {
    ($($name:literal, $c:literal, $t:ty;)*) => {
        reductions! { "sum", sum { $($name, $t;)* } "prod", product { $($name, $t;)* } }
    };
}

mod active_set;
mod atomics;
mod collective;
mod context;
mod device;
mod extension;
mod heap;
mod lock;
mod order;
mod query;
mod reduce;
mod rma;
mod setup;
mod signal;
mod strided;
mod team;
mod wait;

use std::ffi::c_int;

use symrail::{Cmp, SignalOp, WaitWord};
use symrail_core::CPointer;

use crate::fail::{check, fail};
use crate::handle::{TeamHandle, UsedTeam, team};
use crate::job::job;

/// `SHMEM_CMP_*`
fn comparison(function: &str, cmp: c_int) -> Cmp {
    let unknown = || fail(function, &format!("{cmp} is no comparison; use one of SHMEM_CMP_EQ, NE, GT, GE, LT, LE"));
    Cmp::from_openshmem(cmp).unwrap_or_else(unknown)
}

/// `SHMEM_SIGNAL_*`
fn signal_op(function: &str, op: c_int) -> SignalOp {
    let unknown = || fail(function, &format!("{op} is no signal operation; use SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD"));
    SignalOp::from_openshmem(op).unwrap_or_else(unknown)
}

/// Ends the job if a pointer to local memory is null although the call transfers bytes.
#[inline]
fn not_null<T>(function: &str, what: &str, pointer: *const T, bytes: usize) {
    if pointer.is_null() && bytes > 0 {
        fail(function, &format!("{what} is a null pointer, of {bytes} bytes"));
    }
}

/// A pointer to a variable of the caller's; ends the job if it is null.
fn given<T>(function: &str, what: &str, pointer: CPointer<T>) -> CPointer<T> {
    if pointer.is_null() {
        fail(function, &format!("{what} is a null pointer, of {} bytes", size_of::<T>()));
    }
    pointer
}

/// Ends the job if a transfer's memory here is null, or in the symmetric heap's addresses behind its memory.
#[inline]
fn local(function: &str, what: &'static str, pointer: *const u8, bytes: usize) {
    not_null(function, what, pointer, bytes);
    check(function, job(function).runtime.must_not_be_behind(what, pointer, bytes));
}

/// Ends the job if a call cannot access `count` elements of this PE: see [`symrail::Runtime::must_hold`].
#[inline]
fn must_hold<T>(function: &str, what: &'static str, pointer: *const T, count: usize) {
    let bytes = count.saturating_mul(size_of::<T>());
    not_null(function, what, pointer, bytes);
    check(function, job(function).runtime.must_hold(what, pointer.cast(), bytes));
}

/// As [`must_hold`], for words that peers change.
#[inline]
fn must_hold_words<T>(function: &str, what: &'static str, words: *const T, count: usize) {
    if !words.is_aligned() {
        fail(function, &format!("{what} is at {words:p}, which is not aligned to {} bytes", align_of::<T>()));
    }
    must_hold(function, what, words, count);
}

/// A word of this PE's memory that peers may change, as C passes it: valid and aligned for atomic accesses until the
/// function returns.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Word<T>(*mut T);

impl<T: WaitWord> Word<T> {
    /// Its address, for the runtime; ends the job if this PE cannot access it.
    fn held(self, function: &str, what: &'static str) -> *const T {
        must_hold_words(function, what, self.0, 1);
        self.0
    }

    /// Waits until the word compares to `value` as asked, and returns it.
    fn wait(self, function: &str, what: &'static str, cmp: Cmp, value: T) -> T {
        let word = self.held(function, what);
        // SAFETY: what C promises.
        check(function, unsafe { job(function).runtime.wait_until(word, cmp, value) })
    }
}

/// The team of a collective that reads and writes memory here.
fn team_with(function: &str, handle: TeamHandle, dest: *const u8, source: *const u8, bytes: usize) -> UsedTeam {
    let team = team(function, handle);
    not_null(function, "source", source, bytes);
    not_null(function, "dest", dest, bytes);
    team
}

/// Ends the job if a collective's source and destination overlap without being the same.
///
/// Where the destination is longer than the source, only `SYMRAIL_CHECK_COLLECTIVES` turns this check on: programs that
/// work with a short destination elsewhere shall work here too.
#[inline]
fn no_overlap(function: &str, dest: *const u8, dest_bytes: usize, source: *const u8, source_bytes: usize) {
    let (to, from) = (dest.addr(), source.addr());
    if to != from && to < from.saturating_add(source_bytes) && from < to.saturating_add(dest_bytes) {
        fail(
            function,
            &format!("dest ({dest_bytes} bytes at {dest:p}) and source ({source_bytes} bytes at {source:p}) overlap"),
        );
    }
}

/// As above, but only with `SYMRAIL_CHECK_COLLECTIVES`: nothing else depends on this mistake.
fn no_overlap_if_checked(function: &str, dest: *const u8, dest_bytes: usize, source: *const u8, source_bytes: usize) {
    if job(function).runtime.settings().check_collectives {
        no_overlap(function, dest, dest_bytes, source, source_bytes);
    }
}
