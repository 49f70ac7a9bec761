//! The symmetric heap, and other symmetric memory.

use std::sync::Arc;

use symrail_transport::{Operation, Pe};

use super::Runtime;
use crate::error::{Error, Result};
use crate::program_data::{self, ProgramData};
use crate::space::at;
use crate::staged::STAGED_OFFSET;
use crate::team::area::own_bytes;

impl Runtime {
    /// Allocates `size` bytes, aligned to 64, on every PE's heap. Null for a size of 0. Collective.
    ///
    /// # Errors
    /// The heap is exhausted, or PEs called with different sizes; then no PE gets memory.
    pub fn malloc(&self, size: usize) -> Result<*mut u8> {
        self.align(64, size)
    }

    /// As [`Runtime::malloc`], with the bytes set to zero. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`].
    pub fn calloc(&self, count: usize, size: usize) -> Result<*mut u8> {
        self.allocator().calloc(count, size)
    }

    /// As [`Runtime::malloc`], aligned to `align` bytes (a power of two, at least 8). Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`], or an invalid alignment.
    pub fn align(&self, align: usize, size: usize) -> Result<*mut u8> {
        self.allocator().align(align, size)
    }

    /// Changes a block's size, moving its bytes if necessary. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`] (the old block is kept then, except after
    /// [`Error::GrowthRefused`]), or a pointer that belongs to no block.
    pub fn realloc(&self, ptr: *mut u8, size: usize) -> Result<*mut u8> {
        self.allocator().realloc(ptr, size)
    }

    /// Frees a block; null is ignored. Collective.
    ///
    /// # Errors
    /// A pointer that belongs to no block, a block of the runtime's own or of a [`SymSlice`](crate::SymSlice), or PEs
    /// that freed different blocks; then nothing is freed.
    pub fn free(&self, ptr: *mut u8) -> Result<()> {
        self.allocator().free(ptr)
    }

    /// Bytes of the heap that the runtime uses itself in a job of `n_pes` PEs: for barriers and for teams.
    #[must_use]
    pub fn own_bytes(n_pes: u32) -> usize {
        own_bytes(n_pes)
    }

    /// Bytes of the executable's static data, in whole pages: [`Runtime::share_program_data`] takes them from the heap.
    #[must_use]
    pub fn program_data_bytes() -> usize {
        program_data::bytes()
    }

    /// Makes the executable's static and global variables symmetric. Collective; all PEs run the same executable, and
    /// call this before they make other handles of this PE.
    ///
    /// From then on peers change these variables at any time, by operations that are safe where they are called. So the
    /// promise below holds for the runtime's whole life, and for all code of the executable.
    ///
    /// # Safety
    /// - No other thread writes static data of the executable during the call.
    /// - As long as the runtime lives, no PE writes to a variable of this one while code here holds a reference to
    ///   it, or accesses it in another way than through atomics or this runtime's operations.
    /// - No PE writes values to a variable that its type does not permit, nor to variables of libraries and of the
    ///   language.
    ///
    /// # Errors
    /// [`Error::InUse`] if there are other handles. The heap is too small for the variables, PEs run different
    /// executables, or the system refuses to map them.
    pub unsafe fn share_program_data(&mut self) -> Result<()> {
        let space = &self.comm().space;
        if !space.data.is_empty() {
            return Ok(());
        }
        let handles = Arc::strong_count(&self.0) - 1;
        if self.everybody().any("sharing the program's static data", handles > 0)? {
            return Err(Error::InUse { pe: self.my_pe(), what: "the runtime", handles });
        }
        let allocator = self.allocator();
        let take = |align, bytes| allocator.align_on_demand(align, bytes);
        // SAFETY: the caller's promise.
        let data = unsafe { ProgramData::share(&space.heap, space.base, take) }?;
        let Some(parts) = Arc::get_mut(&mut self.0) else {
            return Err(Error::InUse { pe: self.my_pe(), what: "the runtime", handles: 1 });
        };
        parts.comm.space.data = data;
        // A peer may write to a variable only after it has moved.
        self.everybody().wait_for_all("sharing the program's static data")
    }

    /// The address of `pe`'s copy of the symmetric object at `ptr` in this process, or null if it needs the wire.
    #[must_use]
    pub fn peer_ptr(&self, ptr: *const u8, pe: Pe) -> *mut u8 {
        match (self.comm().space.offset(Operation::Put, pe, ptr, 1), self.comm().space.bases.get(pe as usize)) {
            (Ok(offset), Some(base)) if base != 0 && offset < STAGED_OFFSET => at(base, offset),
            _ => std::ptr::null_mut(),
        }
    }

    /// Whether `len` bytes at `ptr` are symmetric memory: in the heap, or shared static data.
    #[must_use]
    pub fn is_symmetric(&self, ptr: *const u8, len: usize) -> bool {
        self.symmetric_offset(ptr, len).is_ok()
    }

    /// Refuses `len` bytes at `ptr` that a host thread of this PE would access in a call (`what`) and that are not there:
    /// they extend beyond the memory of the symmetric heap or of the program's data, or are more than the heap has. The
    /// caller vouches for private memory.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    #[inline]
    pub fn must_hold(&self, what: &'static str, ptr: *const u8, len: usize) -> Result<()> {
        self.comm().space.must_hold(what, self.my_pe(), ptr, len)
    }

    /// As [`Runtime::must_hold`], but refuses only addresses of the heap behind its memory, which costs least.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    #[inline]
    pub fn must_not_be_behind(&self, what: &'static str, ptr: *const u8, len: usize) -> Result<()> {
        self.comm().space.must_not_be_behind(what, self.my_pe(), ptr, len)
    }

    /// The symmetric offset of `len` bytes at `ptr`: the same on every PE.
    ///
    /// # Errors
    /// The bytes are not symmetric.
    pub fn symmetric_offset(&self, ptr: *const u8, len: usize) -> Result<u64> {
        self.comm().space.offset(Operation::Put, self.my_pe(), ptr, len)
    }

    /// Whether host threads access `pe`'s memory by loads and stores.
    #[must_use]
    pub fn is_mapped(&self, pe: Pe) -> bool {
        self.comm().space.is_mapped(pe)
    }

    /// Whether an address is in memory that the CPU cannot access.
    #[inline]
    #[must_use]
    pub fn is_staged(&self, ptr: *const u8) -> bool {
        self.comm().space.is_staged(ptr)
    }
}
