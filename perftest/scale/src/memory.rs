//! The bytes that each simulated PE holds: an allocator that counts for the running PE.

use std::alloc::{GlobalAlloc, Layout, System};

use symrail_core::simulation::count;

/// Lets the system allocate and free each large block. Such memory is zero without any write, so heaps and buffers of
/// thousands of PEs take no memory before they are used.
pub(crate) fn leave_large_to_the_system() {
    // SAFETY: sets parameters of the allocator, which is allowed at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_MMAP_MAX, 1 << 20);
    }
}

/// The system's allocator, for `#[global_allocator]` of programs that simulate. Without it no bytes are counted.
#[derive(Debug, Clone, Copy)]
pub struct Counting;

// SAFETY: every call goes unchanged to the system's allocator, which keeps the promises; counting takes no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
