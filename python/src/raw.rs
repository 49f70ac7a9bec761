//! The runtime's calls that take addresses, for spans: this file alone justifies why they are safe.
//!
//! A [`Span`] is memory of an array that the calling function got as an argument and so keeps. Peers may write into
//! symmetric memory at any time: it is only copied, or read as atomic words, and no reference to it is made.

use symrail::collective::Extent;
use symrail::{AmoOp, AmoType, Cmp, Pe, Reduction, Result, Runtime, SignalUpdate, Team, WaitWord};

use crate::view::Span;

fn pointer(span: Span) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(span.address())
}

macro_rules! copies {
    ($($(#[$doc:meta])* $call:ident;)*) => {$(
        $(#[$doc])*
        pub fn $call(rt: &Runtime, dest: Span, source: Span, pe: Pe) -> Result<()> {
            let bytes = dest.bytes().min(source.bytes());
            // SAFETY: the memory of this PE is valid, see above, and the caller keeps it; the runtime checks that of `pe`.
            unsafe { rt.$call(pointer(dest), pointer(source), bytes, pe) }
        }
    )*};
}

copies! {
    /// Copies `source` to `dest` on `pe`; both are of the same length, as for all below.
    put;
    /// Copies `source` on `pe` to `dest`.
    get;
    /// Starts to copy `source` to `dest` on `pe`; the caller keeps it unchanged until a quiet.
    put_nbi;
    /// Starts to copy `source` on `pe` to `dest`, which the caller keeps until a quiet.
    get_nbi;
}

/// As [`put`], and then updates the signal word.
pub fn put_signal(rt: &Runtime, dest: Span, source: Span, signal: SignalUpdate<Span>, pe: Pe) -> Result<()> {
    let SignalUpdate { word, value, op } = signal;
    let signal = SignalUpdate { word: pointer(word).cast(), value, op };
    // SAFETY: the source is valid memory, see above; the runtime checks destination and word.
    unsafe { rt.put_signal(pointer(dest), pointer(source), source.bytes(), signal, pe) }
}

pub fn signal_op(rt: &Runtime, SignalUpdate { word, value, op }: SignalUpdate<Span>, pe: Pe) -> Result<()> {
    rt.signal_op(pointer(word).cast(), value, op, pe)
}

pub fn fetch_amo(rt: &Runtime, dest: Span, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> Result<u64> {
    rt.fetch_amo(pointer(dest), ty, op, operand, compare, pe)
}

pub fn amo(rt: &Runtime, dest: Span, ty: AmoType, op: AmoOp, operand: u64, pe: Pe) -> Result<()> {
    rt.amo(pointer(dest), ty, op, operand, 0, pe)
}

/// The word of a type, if the span is one: large enough and aligned.
fn word<T>(span: Span) -> Option<*const T> {
    let fits = span.bytes() >= size_of::<T>() && span.address().is_multiple_of(align_of::<T>());
    fits.then(|| pointer(span).cast_const().cast())
}

macro_rules! words {
    ($($(#[$doc:meta])* $call:ident -> $answer:ty;)*) => {$(
        $(#[$doc])*
        pub fn $call<T: WaitWord>(rt: &Runtime, span: Span, cmp: Cmp, value: T) -> Option<$answer> {
            // SAFETY: valid memory, see above, of this size and alignment.
            word(span).map(|word| unsafe { rt.$call(word, cmp, value) })
        }
    )*};
}

words! {
    /// Waits for a word; `None` if the span is no aligned word.
    wait_until -> Result<T>;
    /// Tests a word; `None` if the span is no aligned word.
    test -> bool;
}

/// Copies bytes between two spans of this process, of the same length.
pub fn copy(dest: Span, source: Span) {
    // SAFETY: valid memory, see above; peers may write meanwhile, which this copy allows.
    unsafe { symrail_heap::copy::copy(pointer(dest), pointer(source), dest.bytes().min(source.bytes())) }
}

/// The bits that all PEs of the team have set, word by word. Collective over the team.
pub fn and_of_all(team: &Team, words: &mut [u64]) -> Result<()> {
    reduce_words(team, words, Reduction::and::<u64>())
}

/// Combines the words of all PEs of the team. Collective over the team.
pub fn reduce_words(team: &Team, words: &mut [u64], reduction: Reduction) -> Result<()> {
    // Up to 8 KiB need not be symmetric.
    for part in words.chunks_mut(1024) {
        let at = part.as_mut_ptr().cast::<u8>();
        // SAFETY: the words belong to the caller, and as many are combined.
        unsafe { team.reduce(at, at, part.len(), reduction) }?;
    }
    Ok(())
}

macro_rules! collectives {
    ($($(#[$doc:meta])* $call:ident($($number:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        pub fn $call(team: &Team, dest: Span, source: Span, $($number: $ty),*) -> Result<()> {
            // SAFETY: valid memory, see above, of lengths that the caller has compared with the numbers; the runtime checks
            // that the destination is symmetric.
            unsafe { team.$call(pointer(dest), pointer(source), $($number),*) }
        }
    )*};
}

collectives! {
    /// Copies `source` on the team's PE `root` to `dest` on all, of the same length. Collective over the team, as all
    /// below.
    broadcast(extent: Extent, root: u32);
    fcollect(extent: Extent);
    collect(extent: Extent);
    /// With a block for each PE.
    alltoall(block: Extent);
    reduce(count: usize, reduction: Reduction);
    /// With so many elements for each PE in the source.
    reduce_scatter(count: usize, reduction: Reduction);
}
