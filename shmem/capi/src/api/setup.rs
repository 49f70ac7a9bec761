//! Joining and leaving the job, and threads.

use std::ffi::c_int;

use symrail_core::CPointer;

use crate::job::{self, THREAD_MULTIPLE, job};

const THREAD_SINGLE: c_int = 0;

export! {
    ["shmem_init"] fn() {
        job::join(NAME, THREAD_SINGLE);
    }

    // Any thread may call, but a program gets the level that it requested.
    ["shmem_init_thread"] fn(requested: c_int, provided: CPointer<c_int>) -> c_int {
        if !(THREAD_SINGLE..=THREAD_MULTIPLE).contains(&requested) {
            crate::fail::fail(NAME, &format!("{requested} is no thread level; use one of SHMEM_THREAD_SINGLE, FUNNELED, SERIALIZED, MULTIPLE"));
        }
        job::join(NAME, requested);
        provided.set(requested);
        0
    }

    ["shmem_query_thread"] fn(provided: CPointer<c_int>) {
        super::given(NAME, "provided", provided).set(job(NAME).thread_level);
    }

    ["shmem_finalize"] fn() {
        job::leave(NAME);
    }

    // Before 1.2 programs began with this call, as often as they liked, and never finalised.
    ["start_pes"] fn(_npes: c_int) {
        if !job::is_running() {
            job::join(NAME, THREAD_SINGLE);
        }
    }

    ["shmem_global_exit"] fn(status: c_int) {
        job(NAME);
        job::end_all(status, "shmem_global_exit");
        // SAFETY: ends the process; exit handlers find the job already left.
        unsafe { libc::exit(status) };
    }
}
