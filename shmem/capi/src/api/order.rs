//! Order and completion.

use crate::fail::check;
use crate::handle::{INVALID, operations_on};
use crate::job::job;

export_ctx! {
    // Without a context there is nothing to do, says OpenSHMEM.
    |ctx| ["fence"] fn() {
        if ctx != INVALID {
            check(NAME, operations_on(NAME, ctx).fence());
        }
    }
    |ctx| ["quiet"] fn() {
        if ctx != INVALID {
            check(NAME, operations_on(NAME, ctx).quiet());
        }
    }
}

export! {
    // The team's barriers are the same, but for the comparison of calls if that is asked for.
    ["shmem_barrier_all"] fn() {
        let job = job(NAME);
        let checked = job.runtime.settings().check_collectives;
        check(NAME, if checked { job.world.barrier() } else { job.runtime.barrier_all() });
    }
    ["shmem_sync_all"] fn() {
        let job = job(NAME);
        let checked = job.runtime.settings().check_collectives;
        check(NAME, if checked { job.world.sync() } else { job.runtime.sync_all() });
    }
}
