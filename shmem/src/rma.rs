//! Puts, gets, put-signals, and the order between them.

use std::sync::atomic::{AtomicU64, Ordering, fence};

pub use symrail_core::{SignalOp, SignalUpdate};
use symrail_heap::copy::copy;
use symrail_transport::amo::{self, AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Signal, Source};
use symrail_transport::{Operation, Pe};

use crate::error::Result;
use crate::operations::Operations;
use crate::space::at;
use crate::wire::{Sent, Tracked, WireContext};

/// Copies `count` elements of `size` bytes between strided arrays; strides are in elements.
#[derive(Debug, Clone, Copy)]
pub struct Strided {
    /// Distance of destination elements.
    pub dest_stride: usize,
    /// Distance of source elements.
    pub source_stride: usize,
    /// Bytes of an element.
    pub size: usize,
    /// Number of elements.
    pub count: usize,
}

impl Strided {
    /// Bytes from the first to the last element of `blocks` blocks, with elements `stride` apart; at most `usize::MAX`.
    #[must_use]
    pub fn span(&self, stride: usize, blocks: u32) -> usize {
        if self.count == 0 {
            return 0;
        }
        let steps = self.count.saturating_mul(blocks as usize).saturating_sub(1);
        steps.saturating_mul(stride).saturating_add(1).saturating_mul(self.size)
    }
}

/// # Buffers after an error
/// An abandoned operation (a time-out, a dead peer) may still be in flight in the fabric. So a private buffer of a
/// failed operation must stay valid until the runtime is dropped, unless only its arguments were wrong; the typed
/// operations of [`SymSlice`](crate::SymSlice) ensure this themselves.
impl Operations<'_> {
    /// Copies `len` bytes to `dest` on `pe`. The source may be re-used when this returns.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes.
    ///
    /// # Errors
    /// `dest` is not symmetric or the PE does not exist, and nothing was copied; or an error of the fabric.
    #[inline]
    pub unsafe fn put(&self, dest: *mut u8, source: *const u8, len: usize, pe: Pe) -> Result<()> {
        let to = self.comm.space.reach(Operation::Put, pe, dest, len, source)?;
        if let Some(to) = to.here() {
            // SAFETY: the offset was checked against the bytes committed on every PE; the caller vouches for the
            // source.
            unsafe { copy(to, source, len) };
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.on_wire()?.put(pe, to.offset, source, len as u64) }
    }

    /// Starts to copy `len` bytes to `dest` on `pe`; complete after [`Operations::quiet`].
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes and does not change until then.
    ///
    /// # Errors
    /// As for [`Operations::put`].
    #[inline]
    pub unsafe fn put_nbi(&self, dest: *mut u8, source: *const u8, len: usize, pe: Pe) -> Result<()> {
        let to = self.comm.space.reach(Operation::Put, pe, dest, len, source)?;
        if let Some(to) = to.here() {
            // SAFETY: as for `put`.
            unsafe { copy(to, source, len) };
            return Ok(());
        }
        let command = Command::Put { dest: to.offset, source: Source::Stable(source), len: len as u64 };
        // SAFETY: the caller's promise.
        unsafe { self.on_wire()?.nbi(pe, command) }
    }

    /// Copies `len` bytes from `source` on `pe`.
    ///
    /// # Safety
    /// `dest` is valid for writes of `len` bytes.
    ///
    /// # Errors
    /// As for [`Operations::put`].
    #[inline]
    pub unsafe fn get(&self, dest: *mut u8, source: *const u8, len: usize, pe: Pe) -> Result<()> {
        let from = self.comm.space.reach(Operation::Get, pe, source, len, dest)?;
        if let Some(from) = from.here() {
            // SAFETY: as for `put`, in the other direction.
            unsafe { copy(dest, from, len) };
            return Ok(());
        }
        let command = Command::Get { source: from.offset, dest, len: len as u64 };
        // SAFETY: the caller's promise.
        unsafe { self.on_wire()?.blocking(pe, command) }?;
        Ok(())
    }

    /// Starts to copy `len` bytes from `source` on `pe`; complete after [`Operations::quiet`].
    ///
    /// # Safety
    /// `dest` is valid for writes of `len` bytes, and nothing else uses it until then.
    ///
    /// # Errors
    /// As for [`Operations::put`].
    #[inline]
    pub unsafe fn get_nbi(&self, dest: *mut u8, source: *const u8, len: usize, pe: Pe) -> Result<()> {
        let from = self.comm.space.reach(Operation::Get, pe, source, len, dest)?;
        if let Some(from) = from.here() {
            // SAFETY: as for `get`.
            unsafe { copy(dest, from, len) };
            return Ok(());
        }
        let command = Command::Get { source: from.offset, dest, len: len as u64 };
        // SAFETY: the caller's promise.
        unsafe { self.on_wire()?.nbi(pe, command) }
    }

    /// Copies every `source_stride`th element to every `dest_stride`th on `pe`.
    ///
    /// # Safety
    /// `source` is valid for reads of all its elements.
    ///
    /// # Errors
    /// As for [`Operations::put`], before any element is copied if not all of them are symmetric memory.
    pub unsafe fn iput(&self, dest: *mut u8, source: *const u8, shape: Strided, pe: Pe) -> Result<()> {
        if shape.count > 0 {
            self.comm.space.reach(Operation::Put, pe, dest, shape.span(shape.dest_stride, 1), source)?;
        }
        for i in 0..shape.count {
            let to = dest.wrapping_add(i * shape.dest_stride * shape.size);
            let from = source.wrapping_add(i * shape.source_stride * shape.size);
            // SAFETY: the caller vouches for all source elements.
            unsafe { self.put(to, from, shape.size, pe) }?;
        }
        Ok(())
    }

    /// Copies every `source_stride`th element on `pe` to every `dest_stride`th here.
    ///
    /// # Safety
    /// `dest` is valid for writes of all its elements.
    ///
    /// # Errors
    /// As for [`Operations::put`].
    pub unsafe fn iget(&self, dest: *mut u8, source: *const u8, shape: Strided, pe: Pe) -> Result<()> {
        if shape.count > 0 {
            self.comm.space.reach(Operation::Get, pe, source, shape.span(shape.source_stride, 1), dest)?;
        }
        for i in 0..shape.count {
            let to = dest.wrapping_add(i * shape.dest_stride * shape.size);
            let from = source.wrapping_add(i * shape.source_stride * shape.size);
            // SAFETY: the caller vouches for all destination elements.
            unsafe { self.get_nbi(to, from, shape.size, pe) }?;
        }
        self.quiet()
    }

    /// Copies `len` bytes to `dest` on `pe`, then updates the signal word: a PE that observes the signal observes the
    /// bytes. The source may be re-used when this returns.
    ///
    /// # Safety
    /// As for [`Operations::put`].
    ///
    /// # Errors
    /// As for [`Operations::put`], for the signal word too.
    pub unsafe fn put_signal(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: SignalUpdate<*mut u64>,
        pe: Pe,
    ) -> Result<()> {
        let put = |wire: WireContext<'_>, to, signal| {
            // SAFETY: the caller's promise.
            unsafe { wire.put_copied(pe, stable(to, source, len, signal)) }
        };
        // SAFETY: the caller's promise.
        unsafe { self.put_signal_by(dest, source, len, signal, pe, put) }.map(drop)
    }

    /// As [`Operations::put_signal`]; complete after [`Operations::quiet`].
    ///
    /// # Safety
    /// As for [`Operations::put_nbi`].
    ///
    /// # Errors
    /// As for [`Operations::put_signal`].
    pub unsafe fn put_signal_nbi(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: SignalUpdate<*mut u64>,
        pe: Pe,
    ) -> Result<()> {
        let start = |wire: WireContext<'_>, to, signal| {
            // SAFETY: the caller's promise.
            unsafe { wire.nbi(pe, stable(to, source, len, signal)) }
        };
        // SAFETY: the caller's promise.
        unsafe { self.put_signal_by(dest, source, len, signal, pe, start) }.map(drop)
    }

    /// As [`Operations::put_signal_nbi`], with a completion that can be tested individually.
    ///
    /// # Safety
    /// As for [`Operations::put_nbi`].
    ///
    /// # Errors
    /// As for [`Operations::put_signal`].
    pub(crate) unsafe fn put_signal_tracked(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: SignalUpdate<*mut u64>,
        pe: Pe,
    ) -> Result<Option<Tracked>> {
        let start = |wire: WireContext<'_>, to, signal| {
            // SAFETY: the caller's promise.
            unsafe { wire.track(pe, stable(to, source, len, signal)) }
        };
        // SAFETY: the caller's promise.
        unsafe { self.put_signal_by(dest, source, len, signal, pe, start) }
    }

    /// Whether [`Operations::put_counted`] can count arrivals at other PEs in this word.
    pub(crate) fn counts_in(&self, word: *mut u64) -> bool {
        let offset = self.comm.space.word(Operation::PutSignal, self.comm.job.me, word.cast(), 8);
        offset.is_ok_and(|offset| self.on_wire().is_ok_and(|context| context.counts_in(offset)))
    }

    /// Copies `len` bytes to `dest` on `pe`, and adds 1 to a word there when all have arrived. Only a wait for the
    /// count detects the arrival; no quiet does. The source may be re-used after [`Operations::counted_have_left`]; at
    /// once if it is `copied`, up to a limit ([`Wire::copied_at_once`](crate::wire::Wire::copied_at_once)).
    ///
    /// # Safety
    /// As for [`Operations::put_nbi`], until then.
    ///
    /// # Errors
    /// As for [`Operations::put_signal`]; the word cannot count arrivals.
    pub(crate) unsafe fn put_counted(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        word: *mut u64,
        copied: bool,
        pe: Pe,
    ) -> Result<()> {
        let from = if copied { Source::Copied(source) } else { Source::Stable(source) };
        let put = |wire: WireContext<'_>, to, signal: Signal| {
            // SAFETY: the caller's promise.
            unsafe { wire.put_counted(pe, to, from, len as u64, signal.offset) }
        };
        // SAFETY: the caller's promise.
        unsafe { self.put_signal_by(dest, source, len, SignalUpdate::add(word, 1), pe, put) }.map(drop)
    }

    /// As [`Operations::put_counted`], over any rails: a signal adds 1 where the rails cannot count arrivals.
    ///
    /// # Safety
    /// As for [`Operations::put_nbi`], until the put has left, or its outcome was returned.
    ///
    /// # Errors
    /// As for [`Operations::put_signal`].
    pub(crate) unsafe fn put_and_count(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        word: *mut u64,
        pe: Pe,
    ) -> Result<Option<Sent>> {
        let put = |wire: WireContext<'_>, to, signal: Signal| {
            // SAFETY: the caller's promise.
            unsafe { wire.put_and_count(pe, to, source, len as u64, signal.offset) }
        };
        // SAFETY: the caller's promise.
        unsafe { self.put_signal_by(dest, source, len, SignalUpdate::add(word, 1), pe, put) }
    }

    /// Waits until the sources of all counted puts may be re-used.
    pub(crate) fn counted_have_left(&self) -> Result<()> {
        self.on_wire_if_any().map_or(Ok(()), |context| context.counted_have_left())
    }

    /// A put-signal to mapped memory (`None`), or one that `start` starts on the wire.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes.
    unsafe fn put_signal_by<R>(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: SignalUpdate<*mut u64>,
        pe: Pe,
        on_wire: impl FnOnce(WireContext<'_>, u64, Signal) -> Result<R>,
    ) -> Result<Option<R>> {
        let dest = self.comm.space.offset(Operation::PutSignal, pe, dest, len)?;
        let SignalUpdate { word, value, op } = signal;
        let word = self.comm.space.word(Operation::PutSignal, pe, word.cast(), 8)?;
        let base = self.comm.space.mapped(pe, dest.max(word), source)?;
        if base == 0 {
            let signal = Signal { offset: word, value, op: op.into() };
            return on_wire(self.on_wire()?, dest, signal).map(Some);
        }
        // SAFETY: both ranges are committed on every PE, the signal word is aligned; the caller vouches for the source.
        unsafe {
            copy(at(base, dest), source, len);
            if !self.comm.cpu_performs_amos() {
                fence(Ordering::SeqCst);
                return self.wire_signal(word, value, op, pe).map(|()| None);
            }
            fence(Ordering::Release);
            match op {
                SignalOp::Set => AtomicU64::from_ptr(at(base, word).cast()).store(value, Ordering::Release),
                SignalOp::Add => drop(amo::apply(at(base, word), AmoType::U64, AmoOp::Add, value, 0)),
            }
        }
        Ok(None)
    }

    /// Orders puts, AMOs and stores on this context before it ahead of those after it, per destination. Returns at
    /// once. If NICs perform AMOs it waits, since a NIC's AMOs on a mapped peer are otherwise not ordered with stores
    /// to it.
    ///
    /// # Errors
    /// If NICs perform AMOs, those of [`Operations::quiet`].
    pub fn fence(&self) -> Result<()> {
        fence(Ordering::SeqCst);
        match self.on_wire_if_any() {
            Some(context) if self.comm.cpu_performs_amos() => context.fence(),
            Some(context) => context.quiet()?,
            None => {}
        }
        Ok(())
    }

    /// Returns when all operations issued on this context are complete and visible.
    ///
    /// # Errors
    /// The first operation that failed since the last quiet, with its PE, rail and size. In that case it does not wait
    /// for the others; the next quiet reports their failures.
    #[inline]
    pub fn quiet(&self) -> Result<()> {
        self.comm.job.here()?;
        fence(Ordering::SeqCst);
        self.end_on_wire()?;
        self.comm.space.take_noted()
    }
}

/// The command of a put-signal whose source stays unchanged until it completes.
fn stable(dest: u64, source: *const u8, len: usize, signal: Signal) -> Command {
    Command::PutSignal { dest, source: Source::Stable(source), len: len as u64, signal }
}
