//! The backend over the runtime's host API.

use std::sync::atomic::{AtomicU64, Ordering};

use symrail::{Cmp, Runtime, SignalOp, SignalUpdate};

use super::backend::Backend;
use super::error::Result;

/// A PE of the runtime, with an area in its symmetric heap.
pub struct Host<'a> {
    runtime: &'a Runtime,
    base: *mut u8,
}

impl<'a> Host<'a> {
    /// Allocates an area of `bytes` in the heap. Collective.
    pub fn new(runtime: &'a Runtime, bytes: usize) -> Result<Host<'a>> {
        let base = runtime.align(4096, bytes)?;
        let zeros = vec![0u8; super::backend::area::SOURCE];
        // Through the runtime, because the CPU may be unable to access the memory.
        // SAFETY: a block of that many bytes; no PE uses it before the barrier.
        unsafe { runtime.put(base, zeros.as_ptr(), zeros.len(), runtime.my_pe()) }?;
        runtime.barrier_all()?;
        Ok(Host { runtime, base })
    }

    /// Frees the area. Collective.
    pub fn free(self) -> Result<()> {
        Ok(self.runtime.free(self.base)?)
    }
}

impl Backend for Host<'_> {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        // SAFETY: within the area, which may be memory that the CPU cannot access. The check of the data detects a
        // failure.
        let _ = unsafe { self.runtime.put(self.at(offset), bytes.as_ptr(), bytes.len(), self.runtime.my_pe()) };
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        let own = self.runtime.my_pe();
        // SAFETY: as above, in the other direction.
        if unsafe { self.runtime.get(bytes.as_mut_ptr(), self.at(offset), bytes.len(), own) }.is_err() {
            bytes.fill(0); // the check then finds wrong data
        }
    }

    fn word(&self, word: usize) -> u64 {
        let mut bytes = [0; 8];
        if self.runtime.is_staged(self.at(word)) {
            self.load(word, &mut bytes);
            return u64::from_ne_bytes(bytes);
        }
        // SAFETY: an aligned word of the area; other PEs write it atomically.
        unsafe { AtomicU64::from_ptr(self.at(word).cast()) }.load(Ordering::Acquire)
    }

    fn set_word(&mut self, word: usize, value: u64) {
        if self.runtime.is_staged(self.at(word)) {
            return self.store(word, &value.to_ne_bytes());
        }
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(word).cast()) }.store(value, Ordering::Release);
    }

    #[inline]
    fn pe(&self) -> u32 {
        self.runtime.my_pe()
    }

    #[inline]
    fn n_pes(&self) -> u32 {
        self.runtime.n_pes()
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline]
    fn start_put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: both lie in the area, and tests do not change sources before a quiet.
        Ok(unsafe { self.runtime.put_nbi(self.at(dest), self.at(source), len, pe) }?)
    }

    #[inline]
    fn put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: both lie in the area.
        Ok(unsafe { self.runtime.put(self.at(dest), self.at(source), len, pe) }?)
    }

    #[inline]
    fn put_word(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        // SAFETY: the source lives until the call returns.
        Ok(unsafe { self.runtime.put(self.at(word), (&raw const value).cast(), 8, pe) }?)
    }

    #[inline]
    fn start_get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: both lie in the area, and tests do not use destinations before a quiet.
        Ok(unsafe { self.runtime.get_nbi(self.at(dest), self.at(source), len, pe) }?)
    }

    #[inline]
    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: both lie in the area.
        Ok(unsafe { self.runtime.get(self.at(dest), self.at(source), len, pe) }?)
    }

    #[inline]
    fn quiet(&mut self) -> Result<()> {
        Ok(self.runtime.quiet()?)
    }

    #[inline]
    fn fence(&mut self) -> Result<()> {
        Ok(self.runtime.fence()?)
    }

    #[inline]
    fn fetch_add(&mut self, pe: u32, word: usize, value: u64) -> Result<u64> {
        Ok(self.runtime.fetch_add(self.at(word).cast::<u64>(), value, pe)?)
    }

    #[inline]
    fn start_add(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        use symrail::{AmoOp, AmoType};
        Ok(self.runtime.amo(self.at(word), AmoType::U64, AmoOp::Add, value, 0, pe)?)
    }

    #[inline]
    fn start_signal(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        Ok(self.runtime.signal_op(self.at(word).cast(), value, SignalOp::Add, pe)?)
    }

    #[inline]
    fn signal(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        Ok(self.runtime.signal_op(self.at(word).cast(), value, SignalOp::Set, pe)?)
    }

    #[inline]
    fn put_signal(
        &mut self,
        pe: u32,
        (dest, source, len): (usize, usize, usize),
        word: usize,
        value: u64,
    ) -> Result<()> {
        let signal = SignalUpdate::set(self.at(word).cast(), value);
        // SAFETY: all lie in the area.
        Ok(unsafe { self.runtime.put_signal(self.at(dest), self.at(source), len, signal, pe) }?)
    }

    #[inline]
    fn wait(&mut self, word: usize, value: u64) -> Result<()> {
        // SAFETY: a word of the area, aligned.
        unsafe { self.runtime.wait_until(self.at(word).cast::<u64>(), Cmp::Ge, value) }?;
        Ok(())
    }

    #[inline]
    fn barrier(&mut self) -> Result<()> {
        Ok(self.runtime.barrier_all()?)
    }
}
