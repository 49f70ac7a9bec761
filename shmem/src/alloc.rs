//! The symmetric heap's collective calls.
//!
//! Every PE makes the same call; that they do is checked with each call, and one that differs is named to all.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use symrail_heap::{AllocCall, AllocOp, Allocation, HeapError};
use symrail_transport::Pe;

use crate::error::Result;
use crate::runtime::{Runtime, lock, wire_segment};

impl Runtime {
    /// Takes `size` bytes, aligned to 64, from every PE's heap. Null for a size of 0. Collective.
    ///
    /// # Errors
    /// The heap is exhausted, or PEs called with different sizes; then nobody gets anything.
    pub fn malloc(&self, size: usize) -> Result<*mut u8> {
        self.align(64, size)
    }

    /// As [`Runtime::malloc`], with the bytes set to zero. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`].
    pub fn calloc(&self, count: usize, size: usize) -> Result<*mut u8> {
        let call = self.describe(AllocOp::Alloc, count.saturating_mul(size), 64, std::ptr::null());
        let block = lock(&self.heap).calloc(count as u64, size as u64);
        self.agree_on(&call, block)
    }

    /// As [`Runtime::malloc`], aligned to `align` bytes (a power of two, at least 8). Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`], or an alignment that is none.
    pub fn align(&self, align: usize, size: usize) -> Result<*mut u8> {
        let call = self.describe(AllocOp::Alloc, size, align, std::ptr::null());
        let block = lock(&self.heap).align(align as u64, size as u64);
        self.agree_on(&call, block)
    }

    /// Changes a block's size, moving its bytes if need be. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`] (the old block is kept then), or a pointer that is no block's.
    pub fn realloc(&self, ptr: *mut u8, size: usize) -> Result<*mut u8> {
        let call = self.describe(AllocOp::Realloc, size, 64, ptr);
        // Nobody may still write to a block that moves.
        self.quiet()?;
        self.check(&call)?;
        let block = lock(&self.heap).realloc(ptr, size as u64);
        let ptr = self.adopt(block)?;
        self.sync_all()?;
        Ok(ptr)
    }

    /// Gives a block back; null is ignored. Collective.
    ///
    /// # Errors
    /// A pointer that is no block's, or PEs that freed different blocks; then nothing is freed.
    pub fn free(&self, ptr: *mut u8) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let call = self.describe(AllocOp::Free, 0, 0, ptr);
        self.quiet()?;
        self.check(&call)?;
        Ok(lock(&self.heap).free(ptr)?)
    }

    fn describe(&self, op: AllocOp, size: usize, align: usize, ptr: *const u8) -> AllocCall {
        lock(&self.heap).describe(op, size as u64, align as u64, ptr)
    }

    /// After a local allocation: the barrier that makes it usable, or undoes it when PEs differ.
    fn agree_on(&self, call: &AllocCall, block: Result<Option<Allocation>, HeapError>) -> Result<*mut u8> {
        if let Err(error) = self.check(call) {
            if let Ok(Some(block)) = &block {
                lock(&self.heap).free(block.ptr.as_ptr())?;
            }
            return Err(error);
        }
        self.adopt(block)
    }

    fn check(&self, call: &AllocCall) -> Result<()> {
        if self.same_call(call)? {
            return Ok(());
        }
        let calls = lock(&self.bootstrap).allgather(&call.encode())?;
        let decode = |(bytes, pe): (&Vec<u8>, Pe)| AllocCall::decode(bytes, pe);
        let calls: Vec<AllocCall> = calls.iter().zip(0..).map(decode).collect::<Result<_, _>>()?;
        Ok(AllocCall::check(&calls)?)
    }

    /// Makes a new block reachable: registers the segment that the heap grew by and exchanges its keys.
    fn adopt(&self, block: Result<Option<Allocation>, HeapError>) -> Result<*mut u8> {
        let Some(block) = block? else { return Ok(std::ptr::null_mut()) };
        if let Some(grown) = &block.grown {
            let segment = wire_segment(grown);
            let card = match &self.wire {
                // SAFETY: the heap outlives the endpoints and never unmaps.
                Ok(wire) => unsafe {
                    wire.with_host(|host| host.register(segment))?;
                    wire.driver().engine().register(segment)?
                },
                Err(_) => Vec::new(),
            };
            let cards = lock(&self.bootstrap).allgather(&card)?;
            if let Ok(wire) = &self.wire {
                wire.with_host(|host| host.learn(segment.id, &cards))?;
                wire.driver().engine().endpoint().learn(segment.id, &cards)?;
            }
            self.committed.store((segment.offset + segment.len) as usize, Ordering::Release);
            // A peer's request may only come once everybody knows the segment.
            self.sync_all()?;
        }
        Ok(NonNull::as_ptr(block.ptr))
    }
}
