//! Accesses of host threads to their own PE's staged memory, which the CPU cannot access: copies through the engine.

use std::mem::MaybeUninit;

use crate::error::Result;
use crate::operations::Operations;

/// Bytes copied at a time when a block is moved or zeroed.
const PART: usize = 1 << 20;

impl Operations<'_> {
    /// Reads a value of this PE's staged memory.
    pub(crate) fn read_staged<T: Copy>(&self, from: *const T) -> Result<T> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: space for one value, and this call waits until it has arrived.
        unsafe {
            self.get(value.as_mut_ptr().cast(), from.cast(), size_of::<T>(), self.comm.job.me)?;
            Ok(value.assume_init())
        }
    }

    /// Writes values to this PE's staged memory.
    pub(crate) fn write_staged<T: Copy>(&self, to: *mut T, values: &[T]) -> Result<()> {
        // SAFETY: the slice is valid, and this call waits until it has been copied.
        unsafe { self.put(to.cast(), values.as_ptr().cast(), size_of_val(values), self.comm.job.me) }
    }

    /// Copies bytes within this PE's heap, whose ranges may overlap.
    ///
    /// # Safety
    /// Both ranges are in this PE's heap.
    pub(crate) unsafe fn move_own(&self, to: *mut u8, from: *const u8, len: usize) -> Result<()> {
        if !self.comm.space.is_staged(to) {
            // SAFETY: the caller's promise.
            unsafe { to.copy_from(from, len) };
            return Ok(());
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: as many bytes, and this call waits until they have arrived.
        unsafe { self.get(bytes.as_mut_ptr(), from, len, self.comm.job.me) }?;
        self.write_staged(to, &bytes)
    }

    /// Sets bytes of this PE's staged memory to zero.
    pub(crate) fn zero_staged(&self, ptr: *mut u8, len: usize) -> Result<()> {
        let zeros = vec![0u8; len.min(PART)];
        for at in (0..len).step_by(PART) {
            self.write_staged(ptr.wrapping_add(at), &zeros[..PART.min(len - at)])?;
        }
        Ok(())
    }

    /// Copies bytes within this PE's staged memory.
    pub(crate) fn copy_staged(&self, to: *mut u8, from: *const u8, len: usize) -> Result<()> {
        let mut part = vec![0u8; len.min(PART)];
        for at in (0..len).step_by(PART) {
            let part = &mut part[..PART.min(len - at)];
            // SAFETY: space for the part, and this call waits until it has arrived.
            unsafe { self.get(part.as_mut_ptr(), from.wrapping_add(at), part.len(), self.comm.job.me) }?;
            self.write_staged(to.wrapping_add(at), part)?;
        }
        Ok(())
    }
}
