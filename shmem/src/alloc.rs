//! The symmetric heap's collective calls.
//!
//! Every PE makes the same call; that they do is checked before each call does anything, and one that differs is named to
//! all. So the heaps stay in the same state, and what a call does to one it does to all.

use std::sync::atomic::Ordering;

use symrail_heap::{AllocCall, AllocOp, Allocation, HeapError};
use symrail_transport::region::Segment;

use crate::collective::same_call::{Call, Turn};
use crate::error::{Error, Result};
use crate::runtime::{Runtime, lock};
use crate::staged::Staged;

/// First bytes of what PEs tell each other when the heap grows.
const GROWN: u8 = 0;
const REFUSED: u8 = 1;

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
        let Some(staged) = &self.staged else { return self.calloc_host(count, size) };
        let bytes = count.saturating_mul(size);
        let _turn = self.heap_call(AllocOp::Alloc, bytes, 64, std::ptr::null())?;
        let block = lock(&staged.heap).alloc(bytes as u64)?;
        let Some(block) = block else { return Ok(std::ptr::null_mut()) };
        self.zero_staged(block.ptr.as_ptr(), block.size as usize)?;
        self.meet_all("a call on the heap")?;
        Ok(block.ptr.as_ptr())
    }

    /// As [`Runtime::calloc`], in host memory whatever users get.
    pub(crate) fn calloc_host(&self, count: usize, size: usize) -> Result<*mut u8> {
        let _turn = self.heap_call(AllocOp::Alloc, count.saturating_mul(size), 64, std::ptr::null())?;
        let block = lock(&self.heap).calloc(count as u64, size as u64);
        let ptr = self.adopt(block)?;
        if !ptr.is_null() {
            // Nobody may write before everybody has zeroed.
            self.meet_all("a call on the heap")?;
        }
        Ok(ptr)
    }

    /// As [`Runtime::malloc`], aligned to `align` bytes (a power of two, at least 8). Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`], or an alignment that is none.
    pub fn align(&self, align: usize, size: usize) -> Result<*mut u8> {
        let _turn = self.heap_call(AllocOp::Alloc, size, align, std::ptr::null())?;
        let Some(staged) = &self.staged else {
            let block = lock(&self.heap).align(align as u64, size as u64);
            return self.adopt(block);
        };
        Ok(lock(&staged.heap).align(align as u64, size as u64)?.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr()))
    }

    /// As [`Runtime::align`], in host memory whatever users get, of which pages that the heap has to grow by are taken when they are touched.
    pub(crate) fn align_on_demand(&self, align: usize, size: usize) -> Result<*mut u8> {
        let _turn = self.heap_call(AllocOp::Alloc, size, align, std::ptr::null())?;
        let block = lock(&self.heap).align_on_demand(align as u64, size as u64);
        self.adopt(block)
    }

    /// Changes a block's size, moving its bytes if need be. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`] (the old block is kept then, except after [`Error::GrowthRefused`]), or a pointer that is
    /// no block's.
    pub fn realloc(&self, ptr: *mut u8, size: usize) -> Result<*mut u8> {
        // Nobody may still write to a block that moves.
        self.quiet()?;
        let _turn = self.heap_call(AllocOp::Realloc, size, 64, ptr)?;
        if let Some(staged) = &self.staged {
            let ptr = self.realloc_staged(staged, ptr, size)?;
            self.meet_all("a call on the heap")?;
            return Ok(ptr);
        }
        let block = lock(&self.heap).realloc(ptr, size as u64);
        let ptr = self.adopt(block)?;
        self.meet_all("a call on the heap")?;
        Ok(ptr)
    }

    /// The heap cannot copy what it cannot touch: the old block is freed when the runtime has.
    fn realloc_staged(&self, staged: &Staged, ptr: *mut u8, size: usize) -> Result<*mut u8> {
        let old = if ptr.is_null() { None } else { lock(&staged.heap).size_of(ptr) };
        let (Some(old), true) = (old, size > 0) else {
            let block = lock(&staged.heap).realloc(ptr, size as u64)?;
            return Ok(block.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr()));
        };
        if size as u64 <= old {
            return Ok(lock(&staged.heap).realloc(ptr, size as u64)?.map_or(ptr, |b| b.ptr.as_ptr()));
        }
        let block = lock(&staged.heap).alloc(size as u64)?;
        let Some(block) = block else { return Ok(std::ptr::null_mut()) };
        self.copy_staged(block.ptr.as_ptr(), ptr, old as usize)?;
        lock(&staged.heap).free(ptr)?;
        Ok(block.ptr.as_ptr())
    }

    /// Gives a block back; null is ignored. Collective.
    ///
    /// # Errors
    /// A pointer that is no block's, a block of the runtime's own or of a [`SymSlice`](crate::SymSlice), or PEs that freed
    /// different blocks; then nothing is freed.
    pub fn free(&self, ptr: *mut u8) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let _turn = self.agree_to_free(ptr)?;
        Ok(lock(self.users_heap()).free(ptr)?)
    }

    /// Lets nobody but its owner give a block of users' memory back.
    pub(crate) fn keep(&self, ptr: *mut u8) -> Result<()> {
        Ok(lock(self.users_heap()).keep(ptr)?)
    }

    /// As [`Runtime::free`], for the owner of a block that was kept. Collective.
    pub(crate) fn free_kept(&self, ptr: *mut u8) -> Result<()> {
        let _turn = self.agree_to_free(ptr)?;
        Ok(lock(self.users_heap()).free_kept(ptr)?)
    }

    fn agree_to_free(&self, ptr: *mut u8) -> Result<Turn<'_>> {
        self.quiet()?;
        self.heap_call(AllocOp::Free, 0, 0, ptr)
    }

    /// Waits until all PEs make this call, which no other thread of this PE comes between.
    fn heap_call(&self, op: AllocOp, size: usize, align: usize, ptr: *const u8) -> Result<Turn<'_>> {
        let turn = self.take_turn()?;
        // Counted here, and not by what each heap has done, so that PEs stay in step when one of them is refused memory.
        let sequence = self.alloc_calls.fetch_add(1, Ordering::Relaxed);
        let call = lock(self.users_heap()).describe(op, size as u64, align as u64, ptr);
        turn.compare(self, &Call::on_heap(AllocCall { sequence, ..call }))?;
        Ok(turn)
    }

    fn users_heap(&self) -> &std::sync::Mutex<symrail_heap::SymmetricHeap> {
        self.staged.as_ref().map_or(&self.heap, |staged| &staged.heap)
    }

    /// Makes a new block reachable: if the heap grew by a segment, registers that and exchanges its keys.
    fn adopt(&self, block: Result<Option<Allocation>, HeapError>) -> Result<*mut u8> {
        let grown = match &block {
            Ok(Some(block)) => block.grown,
            Err(HeapError::Memory { .. }) => None,
            // All PEs made the same call on heaps in the same state, and have got the same.
            _ => return Ok(block?.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr())),
        };
        let committed = self.committed.load(Ordering::Relaxed) as u64;
        if let Ok(Some(block)) = &block
            && block.offset + block.size <= committed
        {
            return Ok(block.ptr.as_ptr());
        }
        // Whether to come here is the same for all; but a system may have refused what others have given.
        let result = match self.growth_refused.get() {
            Some(error) => Err(error.clone()),
            None => self.grow(grown, block.as_ref().err()),
        };
        match (result, block) {
            (Ok(()), block) => Ok(block?.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr())),
            (Err(error), block) => {
                if let Ok(Some(block)) = block {
                    lock(&self.heap).free(block.ptr.as_ptr())?;
                }
                Err(error)
            }
        }
    }

    /// Tells all PEs of this PE's new segment, or why it has none; learns theirs. Collective.
    fn grow(&self, grown: Option<Segment>, refused: Option<&HeapError>) -> Result<()> {
        let segment = grown;
        let mine = match (segment, refused) {
            (Some(segment), None) => self.register(segment).map_err(|e| e.to_string()),
            (_, refused) => Err(refused.map_or_else(|| "it did not grow".into(), ToString::to_string)),
        };
        let (tag, body) = match mine {
            Ok(card) => (GROWN, card),
            Err(reason) => (REFUSED, reason.into_bytes()),
        };
        let all = lock(&self.bootstrap).allgather(&[&[tag], &body[..]].concat())?;
        let refusal = all.iter().zip(0..).find(|(bytes, _)| bytes.first() != Some(&GROWN));
        if let Some((bytes, pe)) = refusal {
            let reason = String::from_utf8_lossy(bytes.get(1..).unwrap_or(&[])).into_owned();
            let heap_bytes = self.committed.load(Ordering::Relaxed);
            let error = Error::GrowthRefused { pe, reason, heap_bytes };
            // Some have grown, some have not: from now on nobody uses what some have.
            return Err(self.growth_refused.get_or_init(|| error).clone());
        }
        if let (Ok(wire), Some(segment)) = (&self.wire, segment) {
            let cards: Vec<Vec<u8>> = all.iter().map(|bytes| bytes.get(1..).unwrap_or(&[]).to_vec()).collect();
            wire.learn(segment.id(), &cards)?;
        }
        if let Some(segment) = segment {
            self.committed.store(segment.end() as usize, Ordering::Release);
        }
        // A peer's request may only come once everybody knows the segment.
        self.meet_all("a call on the heap")
    }

    fn register(&self, segment: Segment) -> Result<Vec<u8>> {
        let Ok(wire) = &self.wire else { return Ok(Vec::new()) };
        // SAFETY: the heap outlives the endpoints and never unmaps.
        Ok(unsafe { wire.register(segment) }?)
    }
}
