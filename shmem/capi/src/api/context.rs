//! Making and destroying contexts.

use std::ffi::{c_int, c_long};

use symrail_core::CPointer;

use crate::fail::{check, fail};
use crate::handle::{
    Context, DEFAULT_CONTEXT, INVALID, TEAM_WORLD, TeamHandle, drop_context, find_team, keep_context, team_of_context,
};
use crate::job::job;

/// `SHMEM_CTX_SERIALIZED | SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE`
const OPTIONS: c_long = 7;

fn create(function: &str, team: TeamHandle, options: c_long, context: CPointer<Context>) -> c_int {
    super::given(function, "ctx", context);
    if options & !OPTIONS != 0 {
        fail(function, &format!("options {options:#x}; use SHMEM_CTX_SERIALIZED, PRIVATE and NOSTORE only"));
    }
    let job = job(function);
    let made = find_team(job, team).and_then(|found| {
        let (group, context) = (found.group(), job.runtime.create_context().ok()?);
        keep_context(context, team, group, options)
    });
    context.set(made.unwrap_or(INVALID));
    made.is_none().into()
}

export! {
    ["shmem_ctx_create"] fn(options: c_long, context: CPointer<Context>) -> c_int {
        create(NAME, TEAM_WORLD, options, context)
    }

    ["shmem_team_create_ctx"] fn(team: TeamHandle, options: c_long, context: CPointer<Context>) -> c_int {
        create(NAME, team, options, context)
    }

    ["shmem_ctx_destroy"] fn(context: Context) {
        job(NAME);
        if context == INVALID {
            return;
        }
        if context == DEFAULT_CONTEXT {
            fail(NAME, &"SHMEM_CTX_DEFAULT cannot be destroyed");
        }
        if let Some((made, options)) = drop_context(context) {
            tracing::debug!(options, "a context is destroyed");
            check(NAME, made.destroy());
        } else {
            fail(NAME, &"the context does not exist; was it destroyed before, or its team?");
        }
    }

    ["shmem_ctx_get_team"] fn(context: Context, team: CPointer<TeamHandle>) -> c_int {
        super::given(NAME, "team", team);
        job(NAME);
        let found = match context {
            INVALID => INVALID,
            DEFAULT_CONTEXT => TEAM_WORLD,
            _ => team_of_context(NAME, context),
        };
        team.set(found);
        (found == INVALID).into()
    }
}
