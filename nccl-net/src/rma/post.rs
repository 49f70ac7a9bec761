//! The functions of the tables that post operations, and those that test them.

use std::ffi::c_int;
use std::sync::Arc;

use super::abi::{SIGNAL_ADD, SIGNAL_INC};
use super::group::Group;
use super::order::{Key, Operation, Signal, Transfer};
use super::window::Window;
use crate::abi::{Code, Int, Out, Ptr};
use crate::report::{Failure, Result, guarded};
use crate::table::{object, put};

/// A set of contexts of a group.
pub struct Set {
    pub group: Arc<Group>,
    pub number: usize,
    pub contexts: c_int,
}

impl Drop for Set {
    fn drop(&mut self) {
        symrail_core::lock(&self.group.orders).forget(&self.group, Some(self.number));
    }
}

/// A group, as NCCL holds it.
///
/// # Safety
/// The pointer is null, or what `connect` has returned and NCCL has not closed.
pub unsafe fn group<'a>(pointer: Ptr) -> Result<&'a Arc<Group>> {
    // SAFETY: the caller's promise.
    unsafe { object::<Arc<Group>>(pointer, "the group") }
}

/// A set of contexts, as NCCL holds it.
///
/// # Safety
/// The pointer is null, or what `createContext` has returned and NCCL has not destroyed.
pub unsafe fn set<'a>(pointer: Ptr) -> Result<&'a Set> {
    // SAFETY: the caller's promise.
    unsafe { object::<Set>(pointer, "the contexts") }
}

/// A registered memory and an offset, as NCCL passes them.
///
/// # Safety
/// The handle is null, or what `regMrSym` has returned and NCCL has not deregistered.
unsafe fn at(handle: Ptr, offset: u64, what: &str) -> Result<(Arc<Window>, u64)> {
    // SAFETY: the caller's promise.
    Ok((Arc::clone(unsafe { object::<Arc<Window>>(handle, what) }?), offset))
}

/// The bytes of an operation: from or to the first memory, of this rank, to or from the second one.
///
/// # Safety
/// As for [`at`].
unsafe fn transfer(is_get: bool, local: (u64, Ptr), remote: (u64, Ptr), len: usize) -> Result<Option<Transfer>> {
    if len == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let (local, remote) =
        unsafe { (at(local.1, local.0, "the local memory")?, at(remote.1, remote.0, "the rank's memory")?) };
    Ok(Some(Transfer { is_get, local, remote, len: len as u64 }))
}

/// # Safety
/// As for [`at`].
unsafe fn signal((offset, handle): (u64, Ptr), value: u64, op: u32, strong: bool) -> Result<Signal> {
    let value = match op {
        SIGNAL_INC => 1,
        SIGNAL_ADD => value,
        _ => return Err(Failure::argument(format!("signal operation {op}: 1 (increment) and 2 (add) are supported"))),
    };
    // SAFETY: the caller's promise.
    Ok(Signal { word: unsafe { at(handle, offset, "the signal's memory") }?, value, strong })
}

/// Posts an operation and writes its request: the number plus one, as a pointer that NCCL only passes back.
///
/// # Safety
/// `out` is null or a place for a pointer.
unsafe fn post(group: &Group, (set, context): (usize, c_int), rank: u32, operation: Operation, out: Out) -> Result<()> {
    let rank = rank as usize;
    if rank >= group.ranks() {
        return Err(Failure::argument(format!("rank {rank}: there are {}", group.ranks())));
    }
    let number = symrail_core::lock(&group.orders).post(group, Key { set, context, rank }, operation)?;
    // SAFETY: the caller's promise.
    unsafe { put(out, std::ptr::without_provenance_mut(number + 1), "the place for the request") }
}

/// # Safety
/// As for [`set`] and [`post`].
unsafe fn post_in(context: (Ptr, c_int), rank: u32, operation: Operation, out: Out) -> Result<()> {
    // SAFETY: the caller's promise.
    let set = unsafe { set(context.0) }?;
    if !(0..set.contexts.max(1)).contains(&context.1) {
        return Err(Failure::argument(format!("context {}: there are {}", context.1, set.contexts)));
    }
    // SAFETY: as above.
    unsafe { post(&set.group, (set.number, context.1), rank, operation, out) }
}

#[rustfmt::skip]
pub unsafe extern "C" fn iput_v11(
    coll: Ptr, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32, out: Out,
) -> Code {
    // SAFETY: NCCL passes what `connect` and `regMrSym` returned, and a place for the request.
    guarded("iput", || unsafe {
        let operation = Operation { transfer: transfer(false, (from, source), (to, dest), len)?, signal: None };
        post(group(coll)?, (0, 0), rank, operation, out)
    })
}

#[rustfmt::skip]
pub unsafe extern "C" fn iput_signal_v11(
    coll: Ptr, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32,
    word: u64, words: Ptr, value: u64, op: u32, out: Out,
) -> Code {
    // SAFETY: as above.
    guarded("iputSignal", || unsafe {
        let transfer = transfer(false, (from, source), (to, dest), len)?;
        let operation = Operation { transfer, signal: Some(signal((word, words), value, op, true)?) };
        post(group(coll)?, (0, 0), rank, operation, out)
    })
}

#[rustfmt::skip]
pub unsafe extern "C" fn iput_v13(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32, out: Out,
) -> Code {
    // SAFETY: NCCL passes what `createContext` and `regMrSym` returned, and a place for the request.
    guarded("iput", || unsafe {
        let operation = Operation { transfer: transfer(false, (from, source), (to, dest), len)?, signal: None };
        post_in((set, context), rank, operation, out)
    })
}

#[rustfmt::skip]
pub unsafe extern "C" fn iput_v15(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32, _hints: u32, out: Out,
) -> Code {
    // SAFETY: the same contract.
    unsafe { iput_v13(set, context, from, source, len, to, dest, rank, out) }
}

#[rustfmt::skip]
pub unsafe extern "C" fn iput_signal_v14(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32,
    word: u64, words: Ptr, value: u64, op: u32, strong: bool, out: Out,
) -> Code {
    // SAFETY: as above.
    guarded("iputSignal", || unsafe {
        let transfer = transfer(false, (from, source), (to, dest), len)?;
        let operation = Operation { transfer, signal: Some(signal((word, words), value, op, strong)?) };
        post_in((set, context), rank, operation, out)
    })
}

/// All signals are strong here.
#[rustfmt::skip]
pub unsafe extern "C" fn iput_signal_v13(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32,
    word: u64, words: Ptr, value: u64, op: u32, out: Out,
) -> Code {
    // SAFETY: the same contract.
    unsafe { iput_signal_v14(set, context, from, source, len, to, dest, rank, word, words, value, op, true, out) }
}

#[rustfmt::skip]
pub unsafe extern "C" fn iput_signal_v15(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32,
    word: u64, words: Ptr, value: u64, op: u32, strong: bool, _hints: u32, out: Out,
) -> Code {
    // SAFETY: the same contract.
    unsafe { iput_signal_v14(set, context, from, source, len, to, dest, rank, word, words, value, op, strong, out) }
}

#[rustfmt::skip]
pub unsafe extern "C" fn iget_v13(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32, out: Out,
) -> Code {
    // SAFETY: as for `iput`; the source is the rank's.
    guarded("iget", || unsafe {
        let operation = Operation { transfer: transfer(true, (to, dest), (from, source), len)?, signal: None };
        post_in((set, context), rank, operation, out)
    })
}

#[rustfmt::skip]
pub unsafe extern "C" fn iget_v15(
    set: Ptr, context: c_int, from: u64, source: Ptr, len: usize, to: u64, dest: Ptr, rank: u32, _hints: u32, out: Out,
) -> Code {
    // SAFETY: the same contract.
    unsafe { iget_v13(set, context, from, source, len, to, dest, rank, out) }
}

pub unsafe extern "C" fn iflush(set: Ptr, context: c_int, _memory: Ptr, rank: u32, out: Out) -> Code {
    // SAFETY: as for `iput`.
    guarded("iflush", || unsafe { post_in((set, context), rank, Operation::default(), out) })
}

pub unsafe extern "C" fn test(coll: Ptr, request: Ptr, done: Int) -> Code {
    guarded("test", || {
        // SAFETY: NCCL passes what `connect` returned.
        let group = unsafe { group(coll) }?;
        let Some(number) = request.addr().checked_sub(1) else { return Err(Failure::null("the request")) };
        let ended = symrail_core::lock(&group.orders).test(group, number)?;
        // SAFETY: NCCL passes a place for a number.
        unsafe { put(done, c_int::from(ended), "the place for the result") }
    })
}
