//! The symmetric heap's collective calls.
//!
//! Every PE makes the same call. Each call first checks that, and reports a different call to all PEs. So the heaps
//! stay in the same state, and each call changes them alike.

use std::sync::atomic::Ordering;

use symrail_core::lock;
use symrail_heap::{AllocCall, AllocOp, Allocation, HeapError};
use symrail_transport::region::Segment;

use crate::collective::call::Call;
use crate::collective::same_call::ComparedCall;
use crate::error::{Error, Result};
use crate::space::Space;
use crate::staged::Staged;
use crate::sync::Everybody;

/// First byte of the messages that PEs exchange when the heap grows.
const GROWN: u8 = 0;
const REFUSED: u8 = 1;

/// The heap's calls. All are collective over all PEs.
pub(crate) struct Allocator<'rt> {
    everybody: Everybody<'rt>,
}

impl<'rt> Allocator<'rt> {
    pub fn new(everybody: Everybody<'rt>) -> Allocator<'rt> {
        Allocator { everybody }
    }

    fn space(&self) -> &'rt Space {
        &self.everybody.ops.comm.space
    }

    /// Allocates `count` times `size` bytes of users' memory, set to zero.
    pub fn calloc(&self, count: usize, size: usize) -> Result<*mut u8> {
        let Some(staged) = &self.space().staged else { return self.calloc_host(count, size) };
        let bytes = count.saturating_mul(size);
        let _compared = self.heap_call(AllocOp::Alloc, bytes, 64, std::ptr::null())?;
        let block = lock(&staged.heap).alloc(bytes as u64)?;
        let Some(block) = block else { return Ok(std::ptr::null_mut()) };
        self.everybody.ops.zero_staged(block.ptr.as_ptr(), block.size as usize)?;
        self.everybody.wait_for_all("a call on the heap")?;
        Ok(block.ptr.as_ptr())
    }

    /// As [`Allocator::calloc`], in host memory, whatever memory users get.
    fn calloc_host(&self, count: usize, size: usize) -> Result<*mut u8> {
        let _compared = self.heap_call(AllocOp::Alloc, count.saturating_mul(size), 64, std::ptr::null())?;
        let block = lock(&self.space().heap).calloc(count as u64, size as u64);
        let ptr = self.adopt(block)?;
        if !ptr.is_null() {
            // No PE may write before all have zeroed their blocks.
            self.everybody.wait_for_all("a call on the heap")?;
        }
        Ok(ptr)
    }

    /// Allocates `size` bytes of users' memory, aligned to `align` bytes.
    pub fn align(&self, align: usize, size: usize) -> Result<*mut u8> {
        let _compared = self.heap_call(AllocOp::Alloc, size, align, std::ptr::null())?;
        let Some(staged) = &self.space().staged else {
            let block = lock(&self.space().heap).align(align as u64, size as u64);
            return self.adopt(block);
        };
        Ok(lock(&staged.heap).align(align as u64, size as u64)?.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr()))
    }

    /// Allocates `size` bytes of host memory, set to zero, for the runtime itself: users cannot free them.
    pub fn calloc_own(&self, size: usize) -> Result<*mut u8> {
        let block = self.calloc_host(1, size)?;
        lock(&self.space().heap).keep(block)?;
        Ok(block)
    }

    /// As [`Allocator::align`], in host memory, whatever memory users get. If the heap has to grow, the system
    /// allocates its new pages when they are touched.
    pub fn align_on_demand(&self, align: usize, size: usize) -> Result<*mut u8> {
        let _compared = self.heap_call(AllocOp::Alloc, size, align, std::ptr::null())?;
        let block = lock(&self.space().heap).align_on_demand(align as u64, size as u64);
        self.adopt(block)
    }

    /// Changes the size of a block of users' memory, moving its bytes if necessary.
    pub fn realloc(&self, ptr: *mut u8, size: usize) -> Result<*mut u8> {
        // No put may still write to a block that moves.
        self.everybody.ops.quiet()?;
        let _compared = self.heap_call(AllocOp::Realloc, size, 64, ptr)?;
        if let Some(staged) = &self.space().staged {
            let ptr = self.realloc_staged(staged, ptr, size)?;
            self.everybody.wait_for_all("a call on the heap")?;
            return Ok(ptr);
        }
        let block = lock(&self.space().heap).realloc(ptr, size as u64);
        let ptr = self.adopt(block)?;
        self.everybody.wait_for_all("a call on the heap")?;
        Ok(ptr)
    }

    /// The heap cannot copy memory that the CPU cannot access: the runtime copies, then frees the old block.
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
        self.everybody.ops.copy_staged(block.ptr.as_ptr(), ptr, old as usize)?;
        lock(&staged.heap).free(ptr)?;
        Ok(block.ptr.as_ptr())
    }

    /// Frees a block of users' memory; null is ignored.
    pub fn free(&self, ptr: *mut u8) -> Result<()> {
        if ptr.is_null() {
            return Ok(());
        }
        let _compared = self.agree_to_free(ptr)?;
        Ok(lock(self.space().users_heap()).free(ptr)?)
    }

    /// Keeps users from freeing a block: only its owner may.
    pub fn keep(&self, ptr: *mut u8) -> Result<()> {
        Ok(lock(self.space().users_heap()).keep(ptr)?)
    }

    /// As [`Allocator::free`], for the owner of a block that was kept.
    pub fn free_kept(&self, ptr: *mut u8) -> Result<()> {
        let _compared = self.agree_to_free(ptr)?;
        Ok(lock(self.space().users_heap()).free_kept(ptr)?)
    }

    fn agree_to_free(&self, ptr: *mut u8) -> Result<ComparedCall<'rt>> {
        self.everybody.ops.quiet()?;
        self.heap_call(AllocOp::Free, 0, 0, ptr)
    }

    /// Waits until all PEs make this call, and keeps this PE's other threads out of the heap until then.
    fn heap_call(&self, op: AllocOp, size: usize, align: usize, ptr: *const u8) -> Result<ComparedCall<'rt>> {
        let compared = self.everybody.begin_compared_call()?;
        // This counter counts calls, not what each heap has done, so that PEs stay in step when one of them is refused
        // memory.
        let sequence = self.everybody.area.heap_calls.fetch_add(1, Ordering::Relaxed);
        let call = lock(self.space().users_heap()).describe(op, size as u64, align as u64, ptr);
        compared.compare(&self.everybody, &Call::on_heap(AllocCall { sequence, ..call }))?;
        Ok(compared)
    }

    /// Makes a new block accessible: if the heap grew by a segment, registers it and exchanges its keys.
    fn adopt(&self, block: Result<Option<Allocation>, HeapError>) -> Result<*mut u8> {
        let grown = match &block {
            Ok(Some(block)) => block.grown,
            Err(HeapError::Memory { .. }) => None,
            // All PEs made the same call on heaps in the same state and got the same block.
            _ => return Ok(block?.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr())),
        };
        let committed = self.space().committed.load(Ordering::Relaxed) as u64;
        if let Ok(Some(block)) = &block
            && block.offset + block.size <= committed
        {
            return Ok(block.ptr.as_ptr());
        }
        // All heaps decide alike whether to grow, but one PE's system may refuse the memory.
        let result = match self.space().growth_refused.get() {
            Some(error) => Err(error.clone()),
            None => self.grow(grown, block.as_ref().err()),
        };
        match (result, block) {
            (Ok(()), block) => Ok(block?.map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr())),
            (Err(error), block) => {
                if let Ok(Some(block)) = block {
                    lock(&self.space().heap).free(block.ptr.as_ptr())?;
                }
                Err(error)
            }
        }
    }

    /// Sends all PEs this PE's new segment, or the reason why it has none, and receives theirs. Collective.
    fn grow(&self, grown: Option<Segment>, refused: Option<&HeapError>) -> Result<()> {
        let segment = grown;
        let mine = match (segment, refused) {
            (Some(segment), None) => self.register(segment).map_err(|e| e.to_string()),
            (_, refused) => Err(refused.map_or_else(|| "it did not grow".into(), ToString::to_string)),
        };
        let (tag, body) = match mine {
            Ok(connection_info) => (GROWN, connection_info),
            Err(reason) => (REFUSED, reason.into_bytes()),
        };
        let all = lock(&self.everybody.ops.comm.job.bootstrap).allgather(&[&[tag], &body[..]].concat())?;
        let refusal = all.iter().zip(0..).find(|(bytes, _)| bytes.first() != Some(&GROWN));
        if let Some((bytes, pe)) = refusal {
            let reason = String::from_utf8_lossy(bytes.get(1..).unwrap_or(&[])).into_owned();
            let heap_bytes = self.space().committed.load(Ordering::Relaxed);
            let error = Error::GrowthRefused { pe, reason, heap_bytes };
            // Some PEs have grown and some have not: from now on no PE grows, so none uses a segment that others lack.
            return Err(self.space().growth_refused.get_or_init(|| error).clone());
        }
        if let (Ok(wire), Some(segment)) = (&self.everybody.ops.comm.wire, segment) {
            let connection_infos: Vec<Vec<u8>> =
                all.iter().map(|bytes| bytes.get(1..).unwrap_or(&[]).to_vec()).collect();
            wire.learn(segment, &connection_infos)?;
        }
        if let Some(segment) = segment {
            self.space().committed.store(segment.end() as usize, Ordering::Release);
        }
        // A peer may send requests only once every PE knows the segment.
        self.everybody.wait_for_all("a call on the heap")
    }

    fn register(&self, segment: Segment) -> Result<Vec<u8>> {
        let Ok(wire) = &self.everybody.ops.comm.wire else { return Ok(Vec::new()) };
        // SAFETY: the heap outlives the endpoints and never unmaps.
        Ok(unsafe { wire.register_grown(segment) }?)
    }
}
