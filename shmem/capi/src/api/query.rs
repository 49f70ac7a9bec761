//! Queries: this PE's number, the number of PEs, and which addresses can be reached.

use std::ffi::{c_char, c_int, c_long, c_void};

use symrail_core::CPointer;

use crate::handle::{DEFAULT_CONTEXT, route};
use crate::job::job;

/// The specification that the interface follows.
const VERSION: (c_int, c_int) = (1, 5);
/// `SHMEM_VENDOR_STRING`, with its final 0; shorter than `SHMEM_MAX_NAME_LEN`.
const VENDOR: &[u8] = b"Symrail\0";

fn my_pe(function: &str) -> c_int {
    job(function).runtime.my_pe() as c_int
}

fn n_pes(function: &str) -> c_int {
    job(function).runtime.n_pes() as c_int
}

export! {
    ["shmem_my_pe"] fn() -> c_int { my_pe(NAME) }
    ["_my_pe"] fn() -> c_int { my_pe(NAME) }
    ["shmem_n_pes"] fn() -> c_int { n_pes(NAME) }
    ["_num_pes"] fn() -> c_int { n_pes(NAME) }

    ["shmem_pe_accessible"] fn(pe: c_int) -> c_int {
        c_int::from((0..n_pes(NAME)).contains(&pe))
    }

    ["shmem_addr_accessible"] fn(address: *const c_void, pe: c_int) -> c_int {
        let runtime = &job(NAME).runtime;
        c_int::from((0..n_pes(NAME)).contains(&pe) && runtime.is_symmetric(address.cast(), 1))
    }

    ["shmem_ptr"] fn(address: *const c_void, pe: c_int) -> *mut c_void {
        let (_, pe) = route(NAME, DEFAULT_CONTEXT, pe);
        let runtime = &job(NAME).runtime;
        // For a variable of this PE the result is its own address, not that of its copy in the heap.
        if pe == runtime.my_pe() && runtime.is_symmetric(address.cast(), 1) {
            return address.cast_mut();
        }
        runtime.peer_ptr(address.cast(), pe).cast()
    }

    ["shmem_info_get_version"] fn(major: CPointer<c_int>, minor: CPointer<c_int>) {
        super::given(NAME, "major", major);
        super::given(NAME, "minor", minor);
        major.set(VERSION.0);
        minor.set(VERSION.1);
    }

    ["shmem_info_get_name"] fn(name: *mut c_char) {
        super::not_null(NAME, "name", name, VENDOR.len());
        // SAFETY: the caller's array of SHMEM_MAX_NAME_LEN characters.
        unsafe { std::ptr::copy_nonoverlapping(VENDOR.as_ptr().cast(), name, VENDOR.len()) };
    }

    // C declares further arguments, which no supported level uses.
    ["shmem_pcontrol"] fn(_level: c_int) {}

    // Caches are coherent; these routines remain for programs that call them.
    ["shmem_clear_cache_inv"] fn() {}
    ["shmem_set_cache_inv"] fn() {}
    ["shmem_clear_cache_line_inv"] fn(_dest: *mut c_void) {}
    ["shmem_set_cache_line_inv"] fn(_dest: *mut c_void) {}
    ["shmem_udcflush"] fn() {}
    ["shmem_udcflush_line"] fn(_dest: *mut c_void) {}
}

const _: () = assert!(size_of::<c_long>() == 8, "lock words and pSync words are C's long");
