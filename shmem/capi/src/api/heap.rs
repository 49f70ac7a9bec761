//! The symmetric heap.

use std::ffi::{c_long, c_void};

use symrail::Result;

use crate::fail::fail;
use crate::job::job;

/// The pointer that C gets: null when the heap is exhausted, which a program may handle. Other errors end the job.
fn block(function: &str, result: Result<*mut u8>) -> *mut c_void {
    match result {
        Ok(block) => block.cast(),
        Err(error) if error.is_exhausted() => {
            tracing::warn!("{function}: {error}");
            std::ptr::null_mut()
        }
        Err(error) => fail(function, &error),
    }
}

fn malloc(function: &str, size: usize) -> *mut c_void {
    block(function, job(function).runtime.malloc(size))
}

fn free(function: &str, ptr: *mut c_void) {
    let runtime = &job(function).runtime;
    crate::fail::check(function, runtime.free(ptr.cast()));
}

fn realloc(function: &str, ptr: *mut c_void, size: usize) -> *mut c_void {
    block(function, job(function).runtime.realloc(ptr.cast(), size))
}

fn align(function: &str, alignment: usize, size: usize) -> *mut c_void {
    // C accepts any power of two; the heap's smallest alignment is that of a pointer.
    let alignment = if alignment.is_power_of_two() { alignment.max(size_of::<usize>()) } else { alignment };
    block(function, job(function).runtime.align(alignment, size))
}

export! {
    ["shmem_malloc"] fn(size: usize) -> *mut c_void { malloc(NAME, size) }
    ["shmem_calloc"] fn(count: usize, size: usize) -> *mut c_void {
        block(NAME, job(NAME).runtime.calloc(count, size))
    }
    ["shmem_free"] fn(ptr: *mut c_void) { free(NAME, ptr); }
    ["shmem_realloc"] fn(ptr: *mut c_void, size: usize) -> *mut c_void { realloc(NAME, ptr, size) }
    ["shmem_align"] fn(alignment: usize, size: usize) -> *mut c_void { align(NAME, alignment, size) }
    // All memory of the heap can hold the words of atomics and signals.
    ["shmem_malloc_with_hints"] fn(size: usize, _hints: c_long) -> *mut c_void { malloc(NAME, size) }
    ["shmalloc"] fn(size: usize) -> *mut c_void { malloc(NAME, size) }
    ["shfree"] fn(ptr: *mut c_void) { free(NAME, ptr); }
    ["shrealloc"] fn(ptr: *mut c_void, size: usize) -> *mut c_void { realloc(NAME, ptr, size) }
    ["shmemalign"] fn(alignment: usize, size: usize) -> *mut c_void { align(NAME, alignment, size) }
}
