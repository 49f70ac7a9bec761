//! Ordering, completion, and connecting to PEs ahead of time.

use crate::fail::check;
use crate::handle::{INVALID, TeamHandle, operations_on, team};
use crate::job::job;

export_ctx! {
    // OpenSHMEM: nothing happens on an invalid context.
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
    ["shmem_barrier_all"] fn() {
        check(NAME, job(NAME).runtime.barrier_all());
    }
    ["shmem_sync_all"] fn() {
        check(NAME, job(NAME).runtime.sync_all());
    }
    ["shmemx_connect_all"] fn() {
        check(NAME, job(NAME).runtime.connect_all());
    }
    ["shmemx_team_connect"] fn(handle: TeamHandle) {
        check(NAME, team(NAME, handle).connect());
    }
}
