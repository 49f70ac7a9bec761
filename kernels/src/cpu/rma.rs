//! Remote memory access: put, get, single values, puts with a signal.
//!
//! `put` copies all of `source`, `get` fills all of `dest`. The other side has at least as many elements. Bytes
//! (`putmem`, `getmem`) are elements of type `u8`.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use symrail_core::SignalUpdate;
use symrail_proxy::channel::{Request, Width};
use symrail_transport::amo::{self, AmoOp, AmoType};
use symrail_transport::{Operation, Pe};

use super::element::Element;
use super::error::DeviceError;
use super::symmetric::{LocalMemory, Symmetric};
use super::thread::{Route, Thread, What, named};

impl Thread<'_> {
    /// The address of the first element at `pe` for this PE's loads and stores, if that heap is mapped.
    ///
    /// # Errors
    /// No such PE, or the object is not in the heap.
    pub fn peer_ptr<T: Element>(&self, object: Symmetric<T>, pe: Pe) -> Result<Option<*mut T>, DeviceError> {
        let what = What { operation: Operation::Put, pe, bytes: object.bytes() };
        self.view.check(what.operation, pe, object.offset(), object.bytes())?;
        if self.parts().peer_bases[pe as usize] == 0 {
            return Ok(None);
        }
        match self.route(what, object, true)? {
            Route::Mapped(address) => Ok(Some(address.cast())),
            Route::Channel(_) => Ok(None),
        }
    }

    /// Writes one value to `dest` at `pe`; delivered after [`quiet`](Thread::quiet).
    ///
    /// # Errors
    /// Wrong arguments, or no room in the channel in time.
    pub fn p<T: Element>(&self, dest: Symmetric<T>, value: T, pe: Pe) -> Result<(), DeviceError> {
        let what = What { operation: Operation::Put, pe, bytes: T::WIDTH.bytes() as u64 };
        match self.route(what, dest, true)? {
            // SAFETY: an element of a mapped heap, aligned as its name was checked to be.
            Route::Mapped(address) => unsafe { store(address, T::WIDTH, value.bits()) },
            Route::Channel(channel) => {
                let request = Request::P { pe, offset: dest.offset(), width: T::WIDTH, value: value.bits() };
                self.issue(what, channel, &request)?;
            }
        }
        Ok(())
    }

    /// Reads one value from `source` at `pe`.
    ///
    /// # Errors
    /// Wrong arguments, a failure of the proxy, or no answer in time.
    pub fn g<T: Element>(&self, source: Symmetric<T>, pe: Pe) -> Result<T, DeviceError> {
        let what = What { operation: Operation::Get, pe, bytes: T::WIDTH.bytes() as u64 };
        let bits = match self.route(what, source, true)? {
            // SAFETY: an element of a mapped heap, aligned as its name was checked to be.
            Route::Mapped(address) => unsafe { load(address, T::WIDTH) },
            Route::Channel(channel) => {
                let (offset, width) = (source.offset(), T::WIDTH);
                self.ask(what, channel, |reply| Request::G { pe, offset, width, reply })?
            }
        };
        Ok(T::of_bits(bits))
    }

    /// Copies `source` to `dest` at `pe`. On return the caller may reuse `source`; the data is delivered after
    /// [`quiet`](Thread::quiet).
    ///
    /// # Errors
    /// Wrong arguments, a failure of the proxy, or no answer in time.
    pub fn put<T: Element>(
        &self,
        dest: Symmetric<T>,
        source: impl Into<LocalMemory<T>>,
        pe: Pe,
    ) -> Result<(), DeviceError> {
        self.put_any(dest, source.into(), pe, true)
    }

    /// As [`put`](Thread::put), but `source` stays unchanged until [`quiet`](Thread::quiet).
    ///
    /// # Errors
    /// Wrong arguments, or no room in the channel in time.
    pub fn put_nbi<T: Element>(
        &self,
        dest: Symmetric<T>,
        source: impl Into<LocalMemory<T>>,
        pe: Pe,
    ) -> Result<(), DeviceError> {
        self.put_any(dest, source.into(), pe, false)
    }

    fn put_any<T: Element>(
        &self,
        dest: Symmetric<T>,
        source: LocalMemory<T>,
        pe: Pe,
        wait: bool,
    ) -> Result<(), DeviceError> {
        let (offset, size) = (dest.offset(), source.bytes());
        let what = What { operation: Operation::Put, pe, bytes: size };
        let dest = dest.part(0, source.len)?;
        let from = self.local(what.operation, source)?;
        match self.route(what, dest, true)? {
            // SAFETY: both ranges were checked to be in mapped heaps, or in a buffer that its creator guarantees.
            Route::Mapped(to) => unsafe { std::ptr::copy(from, to, size as usize) },
            Route::Channel(_) if size == 0 => {}
            Route::Channel(channel) => {
                // A value travels in the slot, so the source is free at once without a wait.
                if let Some(width) = Width::of(size as usize).filter(|width| from.addr() % width.bytes() == 0) {
                    // SAFETY: local memory of this size, checked or guaranteed, and aligned to it.
                    let value = unsafe { load(from, width) };
                    self.issue(what, channel, &Request::P { pe, offset, width, value })?;
                } else if wait {
                    let local = named(from);
                    let request = |reply| Request::Put { pe, offset, local, size, reply: Some(reply) };
                    self.ask(what, channel, request)?;
                } else {
                    self.issue(what, channel, &Request::Put { pe, offset, local: named(from), size, reply: None })?;
                }
            }
        }
        Ok(())
    }

    /// Copies `source` at `pe` to `dest`. The bytes are in `dest` on return.
    ///
    /// # Errors
    /// Wrong arguments, a failure of the proxy, or no answer in time.
    pub fn get<T: Element>(
        &self,
        dest: impl Into<LocalMemory<T>>,
        source: Symmetric<T>,
        pe: Pe,
    ) -> Result<(), DeviceError> {
        self.get_any(dest.into(), source, pe, true)
    }

    /// As [`get`](Thread::get), but the bytes are in `dest` only after [`quiet`](Thread::quiet).
    ///
    /// # Errors
    /// Wrong arguments, or no room in the channel in time.
    pub fn get_nbi<T: Element>(
        &self,
        dest: impl Into<LocalMemory<T>>,
        source: Symmetric<T>,
        pe: Pe,
    ) -> Result<(), DeviceError> {
        self.get_any(dest.into(), source, pe, false)
    }

    fn get_any<T: Element>(
        &self,
        dest: LocalMemory<T>,
        source: Symmetric<T>,
        pe: Pe,
        wait: bool,
    ) -> Result<(), DeviceError> {
        let (offset, size) = (source.offset(), dest.bytes());
        let what = What { operation: Operation::Get, pe, bytes: size };
        let source = source.part(0, dest.len)?;
        let to = self.local(what.operation, dest)?;
        match self.route(what, source, true)? {
            // SAFETY: as in `put_any`.
            Route::Mapped(from) => unsafe { std::ptr::copy(from, to, size as usize) },
            Route::Channel(_) if size == 0 => {}
            Route::Channel(channel) if wait => {
                let local = named(to);
                self.ask(what, channel, |reply| Request::Get { pe, offset, local, size, reply: Some(reply) })?;
            }
            Route::Channel(channel) => {
                self.issue(what, channel, &Request::Get { pe, offset, local: named(to), size, reply: None })?;
            }
        }
        Ok(())
    }

    /// Copies `source` to `dest` at `pe` and then updates `signal` there, which is never visible before the data. On
    /// return the caller may reuse `source`.
    ///
    /// # Errors
    /// Wrong arguments, a failure of the proxy, or no answer in time.
    pub fn put_signal<T: Element>(
        &self,
        dest: Symmetric<T>,
        source: impl Into<LocalMemory<T>>,
        signal: SignalUpdate<Symmetric<u64>>,
        pe: Pe,
    ) -> Result<(), DeviceError> {
        self.put_signal_any(dest, source.into(), signal, pe, true)
    }

    /// As [`put_signal`](Thread::put_signal), but `source` stays unchanged until [`quiet`](Thread::quiet).
    ///
    /// # Errors
    /// Wrong arguments, or no room in the channel in time.
    pub fn put_signal_nbi<T: Element>(
        &self,
        dest: Symmetric<T>,
        source: impl Into<LocalMemory<T>>,
        signal: SignalUpdate<Symmetric<u64>>,
        pe: Pe,
    ) -> Result<(), DeviceError> {
        self.put_signal_any(dest, source.into(), signal, pe, false)
    }

    fn put_signal_any<T: Element>(
        &self,
        dest: Symmetric<T>,
        source: LocalMemory<T>,
        signal: SignalUpdate<Symmetric<u64>>,
        pe: Pe,
        wait: bool,
    ) -> Result<(), DeviceError> {
        let (offset, size) = (dest.offset(), source.bytes());
        let SignalUpdate { word: signal, value, op } = signal;
        let what = What { operation: Operation::PutSignal, pe, bytes: size };
        let dest = dest.part(0, source.len)?;
        let from = self.local(what.operation, source)?;
        // A signal is an AMO. Where AMOs use the channel, so does the data, because otherwise the two would have no
        // order.
        let direct = self.parts().direct_amos;
        let signal_route = self.route(What { bytes: 8, ..what }, signal, direct)?;
        match (self.route(what, dest, direct)?, signal_route) {
            (Route::Mapped(to), Route::Mapped(word)) => {
                // SAFETY: as in `put_any`; and a word of a mapped heap, aligned as its name was checked to be, which
                // everyone accesses by CPU atomics. The atomic releases the copy.
                unsafe {
                    std::ptr::copy(from, to, size as usize);
                    amo::apply(word, AmoType::U64, AmoOp::from(op), value, 0);
                }
            }
            (Route::Channel(channel), _) | (_, Route::Channel(channel)) => {
                let (local, signal) = (named(from), signal.offset());
                let request = |reply| Request::PutSignal { pe, offset, local, size, signal, op, value, reply };
                if wait {
                    self.ask(what, channel, |reply| request(Some(reply)))?;
                } else {
                    self.issue(what, channel, &request(None))?;
                }
            }
        }
        Ok(())
    }

    /// Copies values into this PE's heap.
    ///
    /// # Errors
    /// `dest` has no room for them.
    pub fn store_local<T: Element>(&self, dest: Symmetric<T>, values: &[T]) -> Result<(), DeviceError> {
        let to = self.heap(Operation::Put, dest.part(0, values.len() as u64)?)?;
        // SAFETY: checked to be in the heap, which is mapped; the values are elsewhere, or this is a no-op copy.
        unsafe { std::ptr::copy(values.as_ptr().cast::<u8>(), to, size_of_val(values)) };
        Ok(())
    }

    /// Copies values out of this PE's heap.
    ///
    /// # Errors
    /// `source` has fewer values.
    pub fn load_local<T: Element>(&self, values: &mut [T], source: Symmetric<T>) -> Result<(), DeviceError> {
        let from = self.heap(Operation::Get, source.part(0, values.len() as u64)?)?;
        // SAFETY: checked to be in the heap, which is mapped; every bit pattern is a value.
        unsafe { std::ptr::copy(from, values.as_mut_ptr().cast::<u8>(), size_of_val(values)) };
        Ok(())
    }
}

/// Stores a value at once: readers observe the old or the new one.
///
/// # Safety
/// `address` is valid for an atomic store of the width, and aligned to it.
#[inline]
unsafe fn store(address: *mut u8, width: Width, bits: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::W1 => AtomicU8::from_ptr(address).store(bits as u8, Ordering::Relaxed),
            Width::W2 => AtomicU16::from_ptr(address.cast()).store(bits as u16, Ordering::Relaxed),
            Width::W4 => AtomicU32::from_ptr(address.cast()).store(bits as u32, Ordering::Relaxed),
            Width::W8 => AtomicU64::from_ptr(address.cast()).store(bits, Ordering::Relaxed),
        }
    }
}

/// Loads a value at once, zero-extended.
///
/// # Safety
/// `address` is valid for an atomic load of the width, and aligned to it.
#[inline]
unsafe fn load(address: *mut u8, width: Width) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::W1 => AtomicU8::from_ptr(address).load(Ordering::Relaxed).into(),
            Width::W2 => AtomicU16::from_ptr(address.cast()).load(Ordering::Relaxed).into(),
            Width::W4 => AtomicU32::from_ptr(address.cast()).load(Ordering::Relaxed).into(),
            Width::W8 => AtomicU64::from_ptr(address.cast()).load(Ordering::Relaxed),
        }
    }
}
