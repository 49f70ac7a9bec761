//! The symmetric heap, and what else is symmetric.

use symrail_transport::{Operation, Pe};

use super::Runtime;
use crate::error::Result;
use crate::program_data::{self, ProgramData};
use crate::space::at;
use crate::staged::STAGED_OFFSET;
use crate::team::area::own_bytes;

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
        self.allocator().calloc(count, size)
    }

    /// As [`Runtime::malloc`], aligned to `align` bytes (a power of two, at least 8). Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`], or an alignment that is none.
    pub fn align(&self, align: usize, size: usize) -> Result<*mut u8> {
        self.allocator().align(align, size)
    }

    /// Changes a block's size, moving its bytes if need be. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::malloc`] (the old block is kept then, except after
    /// [`Error::GrowthRefused`](crate::Error::GrowthRefused)), or a pointer that is
    /// no block's.
    pub fn realloc(&self, ptr: *mut u8, size: usize) -> Result<*mut u8> {
        self.allocator().realloc(ptr, size)
    }

    /// Gives a block back; null is ignored. Collective.
    ///
    /// # Errors
    /// A pointer that is no block's, a block of the runtime's own or of a [`SymSlice`](crate::SymSlice), or PEs that
    /// freed different blocks; then nothing is freed.
    pub fn free(&self, ptr: *mut u8) -> Result<()> {
        self.allocator().free(ptr)
    }

    /// Bytes of the heap that the runtime takes for itself in a job of so many PEs: for barriers, and what teams talk
    /// through.
    #[must_use]
    pub fn own_bytes(n_pes: u32) -> usize {
        own_bytes(n_pes)
    }

    /// Bytes of the executable's static data, in whole pages: what [`Runtime::share_program_data`] takes from the heap.
    #[must_use]
    pub fn program_data_bytes() -> usize {
        program_data::bytes()
    }

    /// Makes the executable's static and global variables symmetric. Collective; all PEs run the same executable.
    ///
    /// From then on peers change these variables whenever they like, by operations that are safe where they are called.
    /// So the promise below is for as long as the runtime lives, and about all code of the executable.
    ///
    /// # Safety
    /// - No other thread writes static data of the executable during the call.
    /// - As long as the runtime lives, no PE writes to a variable of this one while code here holds a reference to it,
    ///   or reads or writes it otherwise than through atomics or this runtime's operations.
    /// - No PE writes to a variable what its type does not permit, nor to variables of libraries and of the language.
    ///
    /// # Errors
    /// The heap has no room for the variables, PEs run different executables, or the system refuses to map them.
    pub unsafe fn share_program_data(&mut self) -> Result<()> {
        let space = &self.comm().space;
        if !space.data.is_empty() {
            return Ok(());
        }
        let allocator = self.allocator();
        let take = |align, bytes| allocator.align_on_demand(align, bytes);
        // SAFETY: the caller's promise.
        self.0.comm.space.data = unsafe { ProgramData::share((&space.heap, space.base), take) }?;
        // A peer may write to a variable only once it is where it stays.
        self.everybody().wait_for_all("sharing the program's static data")
    }

    /// Where `pe`'s copy of the symmetric object at `ptr` is in this process, or null if it is only reached over the
    /// wire.
    #[must_use]
    pub fn peer_ptr(&self, ptr: *const u8, pe: Pe) -> *mut u8 {
        match (self.comm().space.offset(Operation::Put, pe, ptr, 1), self.comm().space.bases.get(pe as usize)) {
            (Ok(offset), Some(&base)) if base != 0 && offset < STAGED_OFFSET => at(base, offset),
            _ => std::ptr::null_mut(),
        }
    }

    /// Whether `len` bytes at `ptr` are symmetric memory: in the heap, or static data that is shared.
    #[must_use]
    pub fn is_symmetric(&self, ptr: *const u8, len: usize) -> bool {
        self.symmetric_offset(ptr, len).is_ok()
    }

    /// Where `len` bytes at `ptr` are in symmetric memory: the same on every PE.
    ///
    /// # Errors
    /// They are not symmetric.
    pub fn symmetric_offset(&self, ptr: *const u8, len: usize) -> Result<u64> {
        self.comm().space.offset(Operation::Put, self.my_pe(), ptr, len)
    }

    /// Whether host threads reach `pe`'s memory by loads and stores.
    #[must_use]
    pub fn is_mapped(&self, pe: Pe) -> bool {
        self.comm().space.is_mapped(pe)
    }

    /// Whether an address is in memory that the CPU cannot touch.
    #[inline]
    #[must_use]
    pub fn is_staged(&self, ptr: *const u8) -> bool {
        self.comm().space.is_staged(ptr)
    }
}
