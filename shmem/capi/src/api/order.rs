//! Order and completion.

use crate::fail::check;
use crate::handle::{INVALID, runtime_of};
use crate::job::job;

export_ctx! {
    // Without a context there is nothing to do, says OpenSHMEM. Contexts share an endpoint: what is complete or in order for all is so for each.
    |ctx| ["fence"] fn() {
        if ctx != INVALID {
            check(NAME, runtime_of(NAME, ctx).fence());
        }
    }
    |ctx| ["quiet"] fn() {
        if ctx != INVALID {
            check(NAME, runtime_of(NAME, ctx).quiet());
        }
    }
}

export! {
    ["shmem_barrier_all"] fn() {
        check(NAME, job(NAME).runtime.barrier_all());
    }
    ["shmem_sync_all"] fn() {
        check(NAME, job(NAME).runtime.sync_all());
    }
}
