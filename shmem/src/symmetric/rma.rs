//! Puts, gets and put-signals of typed elements.

use symrail_transport::{Operation, Pe};

use super::{SymView, Symmetric};
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::operations::Operations;
use crate::rma::{SignalOp, SignalUpdate};

/// Bytes that pass through memory of the runtime at a time.
const STAGED: usize = 256 << 10;

impl<T: Symmetric> SymView<'_, T> {
    /// Copies `source` to the elements from `start` on of `pe`. The source may be re-used when this returns; the
    /// elements have changed after a [quiet](Operations::quiet).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], a PE that does not exist, or an error of the fabric.
    #[inline]
    pub fn put(&self, start: usize, source: &[T], pe: Pe) -> Result<()> {
        let dest = self.range("put", pe, start, source.len())?;
        // SAFETY: a slice is valid for reads of its size.
        unsafe { self.ops().put_borrowed(dest.cast(), source.as_ptr().cast(), size_of_val(source), pe) }
    }

    /// Starts to copy `count` elements of this PE's `source` from `source_start` on to the elements from `start` on of
    /// `pe`. Complete after [`Operations::quiet`]; a write to the source before that may or may not be copied.
    ///
    /// # Errors
    /// As for [`SymView::put`], and [`Error::OtherRuntime`].
    pub fn put_nbi(
        &self,
        start: usize,
        source: &SymView<'_, T>,
        source_start: usize,
        count: usize,
        pe: Pe,
    ) -> Result<()> {
        let dest = self.range("put_nbi", pe, start, count)?;
        let from = self.partner("put_nbi", pe, source, source_start, count)?;
        if pe == self.runtime().my_pe() {
            // SAFETY: both ranges are in this PE's committed heap; they may overlap.
            return unsafe { self.ops().move_own(dest.cast(), from.cast(), count * size_of::<T>()) };
        }
        // SAFETY: the source is in this PE's heap, which stays mapped until the rails are closed.
        unsafe { self.ops().put_nbi(dest.cast(), from.cast(), count * size_of::<T>(), pe) }
    }

    /// Copies the elements from `start` on of `pe` to `dest`.
    ///
    /// # Errors
    /// As for [`SymView::put`]. `dest` may have been written in part then.
    #[inline]
    pub fn get(&self, start: usize, dest: &mut [T], pe: Pe) -> Result<()> {
        let source = self.range("get", pe, start, dest.len())?;
        // SAFETY: a slice is valid for writes of its size; elements may have any bits.
        unsafe { self.ops().get_borrowed(dest.as_mut_ptr().cast(), source.cast(), size_of_val(dest), pe) }
    }

    /// Starts to copy `count` elements of `pe` from `start` on to this PE's `dest` from `dest_start` on. Complete after
    /// [`Operations::quiet`].
    ///
    /// # Errors
    /// As for [`SymView::put_nbi`].
    pub fn get_nbi(&self, start: usize, dest: &SymView<'_, T>, dest_start: usize, count: usize, pe: Pe) -> Result<()> {
        let source = self.range("get_nbi", pe, start, count)?;
        let to = self.partner("get_nbi", pe, dest, dest_start, count)?;
        if pe == self.runtime().my_pe() {
            // SAFETY: as for `put_nbi`.
            return unsafe { self.ops().move_own(to.cast(), source.cast(), count * size_of::<T>()) };
        }
        // SAFETY: the destination is in this PE's heap, which stays mapped until the rails are closed.
        unsafe { self.ops().get_nbi(to.cast(), source.cast(), count * size_of::<T>(), pe) }
    }

    /// Sets one element of `pe`; it has changed after a [quiet](Operations::quiet).
    ///
    /// # Errors
    /// As for [`SymView::put`].
    #[inline]
    pub fn p(&self, index: usize, value: T, pe: Pe) -> Result<()> {
        self.put(index, std::slice::from_ref(&value), pe)
    }

    /// Reads one element of `pe`.
    ///
    /// # Errors
    /// As for [`SymView::put`].
    #[inline]
    pub fn g(&self, index: usize, pe: Pe) -> Result<T> {
        let mut value = T::default();
        self.get(index, std::slice::from_mut(&mut value), pe)?;
        Ok(value)
    }

    /// Copies every `source_stride`th element of `source`, `count` of them, to every `stride`th element from `start` on
    /// of `pe`.
    ///
    /// # Errors
    /// As for [`SymView::put`], for the source too; elements before the one that failed were copied.
    pub fn iput(
        &self,
        start: usize,
        stride: usize,
        source: &[T],
        source_stride: usize,
        count: usize,
        pe: Pe,
    ) -> Result<()> {
        self.strided("iput", pe, start, stride, count)?;
        self.borrowed("iput", pe, source.len(), source_stride, count)?;
        (0..count).try_for_each(|i| self.p(start + i * stride, source[i * source_stride], pe))
    }

    /// Copies every `stride`th element from `start` on of `pe`, `count` of them, to every `dest_stride`th element of
    /// `dest`.
    ///
    /// # Errors
    /// As for [`SymView::iput`].
    pub fn iget(
        &self,
        start: usize,
        stride: usize,
        dest: &mut [T],
        dest_stride: usize,
        count: usize,
        pe: Pe,
    ) -> Result<()> {
        self.strided("iget", pe, start, stride, count)?;
        self.borrowed("iget", pe, dest.len(), dest_stride, count)?;
        for i in 0..count {
            dest[i * dest_stride] = self.g(start + i * stride, pe)?;
        }
        Ok(())
    }

    /// Copies `source` to the elements from `start` on of `pe`, then sets (or adds to) the signal there: a PE that
    /// observes the signal observes the elements. The source may be re-used when this returns.
    ///
    /// # Errors
    /// As for [`SymView::put`], for the signal too.
    pub fn put_signal(
        &self,
        start: usize,
        source: &[T],
        signal: SignalUpdate<SignalWord<'_, '_>>,
        pe: Pe,
    ) -> Result<()> {
        let dest = self.range("put_signal", pe, start, source.len())?;
        let signal = self.signal("put_signal", pe, signal)?;
        let (from, len) = (source.as_ptr().cast(), size_of_val(source));
        // SAFETY: a slice is valid for reads of its size.
        unsafe { self.ops().put_signal_borrowed(dest.cast(), from, len, signal, pe) }
    }

    /// As [`SymView::put_signal`], from this PE's `source`; complete after [`Operations::quiet`].
    ///
    /// # Errors
    /// As for [`SymView::put_signal`], and [`Error::OtherRuntime`].
    pub fn put_signal_nbi(
        &self,
        start: usize,
        source: &SymView<'_, T>,
        source_start: usize,
        count: usize,
        signal: SignalUpdate<SignalWord<'_, '_>>,
        pe: Pe,
    ) -> Result<()> {
        let sides = Sides { start, source, source_start, count };
        self.put_signal_by("put_signal_nbi", &sides, signal, pe, |dest, from, len, signal| {
            // SAFETY: the source is in this PE's heap, which stays mapped until the rails are closed.
            unsafe { self.ops().put_signal_nbi(dest, from, len, signal, pe) }
        })
        .map(drop)
    }

    /// As [`SymView::put_signal_nbi`], with a completion that can be tested while other operations are in flight.
    ///
    /// # Errors
    /// As for [`SymView::put_signal_nbi`].
    pub fn put_signal_tracked(
        &self,
        start: usize,
        source: &SymView<'_, T>,
        source_start: usize,
        count: usize,
        signal: SignalUpdate<SignalWord<'_, '_>>,
        pe: Pe,
    ) -> Result<Delivery> {
        let sides = Sides { start, source, source_start, count };
        let tracked = self.put_signal_by("put_signal_tracked", &sides, signal, pe, |dest, from, len, signal| {
            // SAFETY: the source is in this PE's heap, which stays mapped until the rails are closed.
            unsafe { self.ops().put_signal_tracked(dest, from, len, signal, pe) }
        })?;
        Ok(Delivery::new(self.runtime(), self.context(), tracked.flatten()))
    }

    /// A put-signal to this PE (`None`), or one that `start` starts; with all checks.
    fn put_signal_by<R>(
        &self,
        what: &'static str,
        sides: &Sides<'_, '_, T>,
        signal: SignalUpdate<SignalWord<'_, '_>>,
        pe: Pe,
        start_put: impl FnOnce(*mut u8, *const u8, usize, SignalUpdate<*mut u64>) -> Result<R>,
    ) -> Result<Option<R>> {
        let to = self.range(what, pe, sides.start, sides.count)?.cast();
        let from = self.partner(what, pe, sides.source, sides.source_start, sides.count)?.cast();
        let signal = self.signal(what, pe, signal)?;
        let len = sides.count * size_of::<T>();
        if pe != self.runtime().my_pe() {
            return start_put(to, from, len, signal).map(Some);
        }
        // SAFETY: as for `put_nbi`. The signal's update is not visible before this thread's stores.
        unsafe { self.ops().move_own(to, from, len) }?;
        let SignalUpdate { word, value, op } = signal;
        self.ops().signal_op(word, value, op, pe).map(|()| None)
    }

    /// The update of a signal by its word's address, with all checks.
    fn signal(
        &self,
        what: &'static str,
        pe: Pe,
        signal: SignalUpdate<SignalWord<'_, '_>>,
    ) -> Result<SignalUpdate<*mut u64>> {
        let SignalUpdate { word: (words, index), value, op } = signal;
        Ok(SignalUpdate { word: self.partner(what, pe, words, index, 1)?, value, op })
    }

    /// The address of elements of another slice of the same runtime.
    fn partner<U: Symmetric>(
        &self,
        what: &'static str,
        pe: Pe,
        other: &SymView<'_, U>,
        start: usize,
        count: usize,
    ) -> Result<*mut U> {
        if !self.runtime().is_same(other.runtime()) {
            return Err(Error::OtherRuntime { what, pe });
        }
        other.range(what, pe, start, count)
    }

    /// Whether a local slice has `count` elements that are `stride` apart.
    fn borrowed(&self, what: &'static str, pe: Pe, len: usize, stride: usize, count: usize) -> Result<()> {
        let reach = count.saturating_sub(1).saturating_mul(stride);
        if count == 0 || reach < len {
            return Ok(());
        }
        Err(Error::OutOfBounds { what, pe, start: 0, count: reach.saturating_add(1), len })
    }
}

impl SymView<'_, u64> {
    /// Sets, or adds to, a signal of `pe`; complete after [`Operations::quiet`].
    ///
    /// # Errors
    /// As for [`SymView::put`].
    pub fn signal_op(&self, index: usize, value: u64, op: SignalOp, pe: Pe) -> Result<()> {
        self.ops().signal_op(self.range("signal_op", pe, index, 1)?, value, op, pe)
    }
}

/// A signal word: a slice, and the word's index there.
pub type SignalWord<'v, 'rt> = (&'v SymView<'rt, u64>, usize);

/// The sides of a put from symmetric memory: `count` elements from `start` on, and as many of `source`.
struct Sides<'v, 'rt, T> {
    start: usize,
    source: &'v SymView<'rt, T>,
    source_start: usize,
    count: usize,
}

/// Operations with buffers that are valid only during the call: over the wire their bytes pass through memory of the
/// runtime.
impl Operations<'_> {
    /// # Safety
    /// `source` is valid for reads of `len` bytes, during the call.
    unsafe fn put_borrowed(&self, dest: *mut u8, source: *const u8, len: usize, pe: Pe) -> Result<()> {
        if self.comm.space.reach(Operation::Put, pe, dest, len, source)?.here().is_some() {
            // SAFETY: the caller's promise; mapped memory is copied during the call.
            return unsafe { self.put(dest, source, len, pe) };
        }
        let (context, piece) = (self.on_wire()?, self.comm.wire()?.copied_at_once());
        let mut done = 0;
        while done < len {
            let now = piece.min(len - done);
            let offset = self.comm.space.offset(Operation::Put, pe, dest.wrapping_add(done), now)?;
            // SAFETY: the caller's promise; this much is copied during the call.
            unsafe { context.put(pe, offset, source.add(done), now as u64) }?;
            done += now;
        }
        Ok(())
    }

    /// # Safety
    /// `dest` is valid for writes of `len` bytes, during the call.
    unsafe fn get_borrowed(&self, dest: *mut u8, source: *const u8, len: usize, pe: Pe) -> Result<()> {
        if self.comm.space.reach(Operation::Get, pe, source, len, dest)?.here().is_some() {
            // SAFETY: the caller's promise; mapped memory is copied during the call.
            return unsafe { self.get(dest, source, len, pe) };
        }
        let mut staging = vec![0u64; len.min(STAGED).div_ceil(8)];
        let mut done = 0;
        while done < len {
            let now = STAGED.min(len - done);
            // SAFETY: the staging memory is large enough, and is not freed if the operation failed.
            if let Err(error) = unsafe { self.get(staging.as_mut_ptr().cast(), source.wrapping_add(done), now, pe) } {
                // An abandoned get may still write it, as long as the rails exist.
                std::mem::forget(staging);
                return Err(error);
            }
            // SAFETY: both are large enough; this call owns the staging memory.
            unsafe { dest.add(done).copy_from_nonoverlapping(staging.as_ptr().cast(), now) };
            done += now;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Operations::put_borrowed`].
    unsafe fn put_signal_borrowed(
        &self,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        signal: SignalUpdate<*mut u64>,
        pe: Pe,
    ) -> Result<()> {
        let mut sent = 0;
        if self.comm.space.reach(Operation::PutSignal, pe, dest, len, source)?.here().is_none() {
            let piece = self.comm.wire()?.copied_at_once();
            if len > piece {
                sent = len - piece;
                // SAFETY: the caller's promise. The fence keeps the signal behind what goes ahead.
                unsafe { self.put_borrowed(dest, source, sent, pe) }?;
                self.fence()?;
            }
        }
        // SAFETY: the caller's promise; this much is copied during the call.
        unsafe { self.put_signal(dest.wrapping_add(sent), source.add(sent), len - sent, signal, pe) }
    }
}
