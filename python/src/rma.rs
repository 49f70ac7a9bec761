//! Puts and gets of arrays, and the path of strided ones.

use symrail::{Pe, Result, Runtime};

use crate::gpu::Signal;
use crate::raw;
use crate::view::View;

/// Bytes up to which a copy to or from mapped memory is not worth releasing Python's lock.
const SHORT: usize = 32 << 10;

/// Whether the operation ends within a few microseconds, whatever other PEs do.
pub fn is_short(rt: &Runtime, dest: &View, source: &View, pe: Pe) -> bool {
    dest.contiguous && source.contiguous && dest.bytes() <= SHORT && rt.is_mapped(pe)
}

/// Whether to pack an array that is more scattered than the other side into separate memory: if bytes go over the wire.
fn is_better_packed(rt: &Runtime, scattered: &View, other: &View, pe: Pe) -> bool {
    !rt.is_mapped(pe) && !scattered.contiguous && other.pieces(other).run() > scattered.pieces(other).run()
}

/// Copies `source` to `dest` on `pe`. The source may be changed afterwards.
pub fn put(rt: &Runtime, dest: &View, source: &View, pe: Pe) -> Result<()> {
    if is_better_packed(rt, source, dest, pe) {
        let mut memory = vec![0; source.bytes()];
        let packed = source.packed(&mut memory);
        source.pieces(&packed).for_each(|(from, to)| raw::copy(to, from));
        let result = put(rt, dest, &packed, pe);
        return kept_if_failed(memory, result);
    }
    dest.pieces(source).try_for_each(|(to, from)| raw::put(rt, to, from, pe))
}

/// As [`put`], and then updates a signal word there.
pub fn put_signal(rt: &Runtime, dest: &View, source: &View, signal: Signal, pe: Pe) -> Result<()> {
    let mut pieces = dest.pieces(source);
    match (pieces.number(), pieces.next()) {
        (1, Some((to, from))) => raw::put_signal(rt, to, from, signal, pe),
        // A fence keeps the signal behind all the pieces.
        _ => put(rt, dest, source, pe).and_then(|()| rt.fence()).and_then(|()| raw::signal_op(rt, signal, pe)),
    }
}

/// Starts to copy `source` to `dest` on `pe`; the caller keeps it unchanged until a quiet.
pub fn put_nbi(rt: &Runtime, dest: &View, source: &View, pe: Pe) -> Result<()> {
    dest.pieces(source).try_for_each(|(to, from)| raw::put_nbi(rt, to, from, pe))
}

/// Starts to copy `source` on `pe` to `dest`, which the caller keeps, and no other code uses, until a quiet.
pub fn get_nbi(rt: &Runtime, dest: &View, source: &View, pe: Pe) -> Result<()> {
    dest.pieces(source).try_for_each(|(to, from)| raw::get_nbi(rt, to, from, pe))
}

/// Copies `source` on `pe` to `dest`.
pub fn get(rt: &Runtime, dest: &View, source: &View, pe: Pe) -> Result<()> {
    if is_better_packed(rt, dest, source, pe) {
        let mut memory = vec![0; dest.bytes()];
        let packed = dest.packed(&mut memory);
        let result = get(rt, &packed, source, pe);
        if result.is_ok() {
            dest.pieces(&packed).for_each(|(to, from)| raw::copy(to, from));
        }
        return kept_if_failed(memory, result);
    }
    let mut pieces = dest.pieces(source);
    if pieces.number() <= 1 || rt.is_mapped(pe) {
        return pieces.try_for_each(|(to, from)| raw::get(rt, to, from, pe));
    }
    // All in flight at once, instead of a round trip for each.
    get_nbi(rt, dest, source, pe).and(rt.quiet())
}

/// A failed operation may still be in flight, so its memory must stay.
fn kept_if_failed(memory: Vec<u8>, result: Result<()>) -> Result<()> {
    if result.is_err() {
        std::mem::forget(memory);
    }
    result
}
