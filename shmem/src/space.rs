//! The symmetric address space: this PE's memory in it, and that of the peers that this process has mapped.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use symrail_heap::{PeerMap, SymmetricHeap};
use symrail_transport::{Operation, Pe};

use crate::error::{Error, Result};
use crate::gpu::pinned::Pinned;
use crate::process::WipedOnFork;
use crate::program_data::ProgramData;
use crate::staged::{STAGED_OFFSET, Staged};

/// The heaps of a job as one PE accesses them, and the program's variables among them.
pub(crate) struct Space {
    pub base: usize,
    /// Bytes of addresses from the base on; those behind what is committed cannot be accessed.
    pub reserved: usize,
    /// Bytes of the heap that are committed, on every PE.
    pub committed: AtomicUsize,
    /// Why the heap cannot grow further.
    pub growth_refused: OnceLock<Error>,
    /// The address of each PE's heap in this process; 0 if it needs the wire.
    pub bases: WipedOnFork,
    /// Whether no peer needs the wire.
    pub all_mapped: bool,
    pub data: ProgramData,
    // Dropped last: everything above points into these.
    /// The heaps of this host as the PE's GPU accesses them, if they are pinned for it.
    pub pinned: Option<Pinned>,
    /// Keeps the peers' heaps mapped.
    pub peers: PeerMap,
    pub heap: Mutex<SymmetricHeap>,
    /// The users' heap, if it is memory that the CPU cannot access.
    pub staged: Option<Staged>,
}

impl Space {
    /// The symmetric offset of `len` bytes at `ptr`.
    #[inline]
    pub fn offset(&self, operation: Operation, pe: Pe, ptr: *const u8, len: usize) -> Result<u64> {
        self.find(ptr, len).ok_or_else(|| self.not_symmetric(operation, pe, ptr, len))
    }

    /// As [`Space::offset`]; `None` if the bytes are not symmetric.
    #[inline]
    fn find(&self, ptr: *const u8, len: usize) -> Option<u64> {
        let committed = self.committed.load(Ordering::Relaxed);
        let offset = ptr.addr().wrapping_sub(self.base);
        if offset <= committed && len <= committed - offset {
            return Some(offset as u64);
        }
        let in_data = self.data.offset_of(ptr, len);
        in_data.or_else(|| self.staged.as_ref().and_then(|staged| staged.offset_of(ptr.addr(), len)))
    }

    /// Refuses `len` bytes of PE `me`, this one, that a host thread would access and that are not there, because they
    /// extend beyond the memory of the heap or of the program's data. The caller vouches for private memory; but no
    /// call accesses more of it than the heap has, so that products of sizes do not wrap and buffers of so many bytes
    /// can be allocated.
    pub fn must_hold(&self, what: &'static str, me: Pe, ptr: *const u8, len: usize) -> Result<()> {
        if len == 0 || self.find(ptr, len).is_some() {
            return Ok(());
        }
        let starts_in_data = self.data.offset_of(ptr, 1).is_some();
        if starts_in_data || len > self.committed.load(Ordering::Relaxed) {
            return Err(self.not_allocated(what, me, ptr, len));
        }
        self.must_not_be_behind(what, me, ptr, len)
    }

    /// Refuses `len` bytes some of which are in the heap's addresses behind its memory.
    #[inline]
    pub fn must_not_be_behind(&self, what: &'static str, me: Pe, ptr: *const u8, len: usize) -> Result<()> {
        let end = self.base + self.committed.load(Ordering::Relaxed);
        if ptr.addr() >= self.base + self.reserved || ptr.addr().saturating_add(len) <= end || len == 0 {
            return Ok(());
        }
        Err(self.not_allocated(what, me, ptr, len))
    }

    #[cold]
    fn not_allocated(&self, what: &'static str, pe: Pe, ptr: *const u8, bytes: usize) -> Error {
        let heap_bytes = self.committed.load(Ordering::Relaxed);
        Error::NotAllocated { what, pe, address: ptr.addr(), bytes, heap: self.base, heap_bytes }
    }

    /// The location of `len` bytes of `pe` with the symmetric address `ptr`. `local` is the operation's buffer here:
    /// the CPU copies neither to nor from memory that it cannot access.
    #[inline(always)]
    pub fn reach(&self, operation: Operation, pe: Pe, ptr: *const u8, len: usize, local: *const u8) -> Result<Reached> {
        let offset = self.offset(operation, pe, ptr, len)?;
        Ok(Reached { offset, base: self.mapped(pe, offset, local)? })
    }

    /// The location of an aligned word of `pe`.
    #[inline(always)]
    pub fn reach_word(
        &self,
        operation: Operation,
        pe: Pe,
        ptr: *const u8,
        size: usize,
        local: *const u8,
    ) -> Result<Reached> {
        let offset = self.word(operation, pe, ptr, size)?;
        Ok(Reached { offset, base: self.mapped(pe, offset, local)? })
    }

    /// The address of `pe`'s heap in this process. 0 if the operation needs the wire: the peer is not mapped, or
    /// `offset` there or the local buffer is in memory that the CPU cannot access. In a forked child, and when the PE has
    /// left, all addresses are 0, and the wire refuses the operation.
    #[inline]
    pub fn mapped(&self, pe: Pe, offset: u64, local: *const u8) -> Result<usize> {
        match self.bases.get(pe as usize) {
            Some(_) if self.staged.is_some() && (offset >= STAGED_OFFSET || self.is_staged(local)) => Ok(0),
            Some(base) => Ok(base),
            None => Err(self.no_such_pe(pe)),
        }
    }

    #[cold]
    fn no_such_pe(&self, pe: Pe) -> Error {
        symrail_transport::Error::NoSuchPe { pe: pe.into(), last: self.bases.len() as Pe - 1 }.into()
    }

    /// The symmetric offset of an aligned word.
    // Inlined, because a call would cost a mapped AMO more than the comparison.
    #[inline(always)]
    pub fn word(&self, operation: Operation, pe: Pe, ptr: *const u8, size: usize) -> Result<u64> {
        let offset = self.offset(operation, pe, ptr, size)?;
        if offset.is_multiple_of(size as u64) {
            return Ok(offset);
        }
        Err(symrail_transport::Error::Misaligned { operation, pe, offset, needed: size }.into())
    }

    #[cold]
    fn not_symmetric(&self, operation: Operation, pe: Pe, ptr: *const u8, bytes: usize) -> Error {
        let (heap, heap_bytes) = match &self.staged {
            Some(staged) => (staged.base, staged.len),
            None => (self.base, self.committed.load(Ordering::Relaxed)),
        };
        Error::NotSymmetric { operation, pe, address: ptr.addr(), bytes, heap, heap_bytes }
    }

    /// The heap of users' blocks.
    pub fn users_heap(&self) -> &Mutex<SymmetricHeap> {
        self.staged.as_ref().map_or(&self.heap, |staged| &staged.heap)
    }

    /// The start of users' heap in this process.
    pub fn users_base(&self) -> usize {
        self.staged.as_ref().map_or(self.base, |staged| staged.base)
    }

    /// Whether host threads access `pe`'s memory by loads and stores.
    pub fn is_mapped(&self, pe: Pe) -> bool {
        self.staged.is_none() && self.bases.get(pe as usize).is_some_and(|base| base != 0)
    }

    /// Whether an address is in memory that the CPU cannot access.
    #[inline]
    pub fn is_staged(&self, ptr: *const u8) -> bool {
        self.staged.as_ref().is_some_and(|s| ptr.addr().wrapping_sub(s.base) < s.len)
    }

    /// Refuses buffers that host threads would have to access and cannot.
    pub fn must_be_host(&self, what: &str, buffers: [*const u8; 2]) -> Result<()> {
        if !buffers.iter().any(|&ptr| self.is_staged(ptr)) {
            return Ok(());
        }
        Err(symrail_transport::Error::Unsupported {
            what: format!("{what} on device memory"),
            by: "host collectives".into(),
            remedy: "use host memory, or collectives of the device".into(),
        }
        .into())
    }

    /// Keeps an error for the next quiet, if no result could return it.
    pub fn note(&self, error: Error) {
        if let Some(staged) = &self.staged {
            staged.note(error);
        }
    }

    /// The kept error, if there is one.
    #[inline]
    pub fn take_noted(&self) -> Result<()> {
        self.staged.as_ref().map_or(Ok(()), Staged::take_noted)
    }
}

/// The location of a PE's memory.
#[derive(Clone, Copy)]
pub(crate) struct Reached {
    /// The symmetric offset.
    pub offset: u64,
    /// The address of the PE's heap in this process; 0 if it needs the wire.
    base: usize,
}

impl Reached {
    /// The address in this process, if the PE is mapped.
    #[inline(always)]
    pub fn here(self) -> Option<*mut u8> {
        (self.base != 0).then(|| at(self.base, self.offset))
    }
}

/// The address of a symmetric offset in a mapped heap.
#[inline]
pub(crate) fn at(base: usize, offset: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(base + offset as usize)
}

/// Reads a word of 1, 2, 4 or 8 bytes of this PE's memory as one load; everything that happened before a peer's store
/// of it is then visible.
///
/// # Safety
/// `ptr` is valid for reads and aligned to `size`.
#[inline]
pub(crate) unsafe fn load(ptr: *const u8, size: usize) -> u64 {
    let ptr = ptr.cast_mut();
    // SAFETY: the caller's promise; others store to it as one store.
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(ptr).load(Ordering::Acquire).into(),
            2 => AtomicU16::from_ptr(ptr.cast()).load(Ordering::Acquire).into(),
            4 => AtomicU32::from_ptr(ptr.cast()).load(Ordering::Acquire).into(),
            _ => AtomicU64::from_ptr(ptr.cast()).load(Ordering::Acquire),
        }
    }
}
