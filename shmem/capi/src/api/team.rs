//! Teams.

use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;

use symrail::Group;
use symrail_core::CPointer;

use crate::fail::{check, fail};
use crate::handle::{
    INVALID, TEAM_SHARED, TEAM_WORLD, TeamHandle, UsedTeam, drop_contexts_of, drop_team, find_team, keep_team, team,
};
use crate::job::job;

/// `shmem_team_config_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    num_contexts: c_int,
}

/// `SHMEM_TEAM_NUM_CONTEXTS`
const NUM_CONTEXTS: c_long = 1;

fn wanted_contexts(function: &str, config: CPointer<Config>, mask: c_long) -> c_int {
    if mask & !NUM_CONTEXTS != 0 {
        fail(function, &format!("config_mask {mask:#x}; use 0 or SHMEM_TEAM_NUM_CONTEXTS"));
    }
    config.get().filter(|_| mask != 0).map_or(0, |config| config.num_contexts)
}

/// Makes a team of a part of `parent`: `INVALID` on PEs that are not in the part. `None` if the parent has no area left
/// for another.
fn split(parent: &UsedTeam, part: Option<Group>, contexts: c_int) -> Option<TeamHandle> {
    match parent.split(part) {
        Ok(made) => Some(made.map_or(INVALID, |team| keep_team(team, contexts))),
        Err(error) => {
            tracing::warn!("{error}");
            None
        }
    }
}

/// Destroys a team that the program has made, and the contexts made of it before: once the others arrive, what this PE
/// put through them is delivered.
fn destroy(function: &str, handle: TeamHandle) {
    drop_contexts_of(handle).for_each(|context| check(function, context.destroy()));
    let Some(made) = drop_team(handle) else { fail(function, &"the team does not exist; was it destroyed before?") };
    match Arc::try_unwrap(made) {
        Ok(made) => check(function, made.team.destroy()),
        Err(_) => fail(function, &"another thread is using the team"),
    }
}

fn index(found: Option<u32>) -> c_int {
    found.map_or(-1, |index| index as c_int)
}

export! {
    ["shmem_team_my_pe"] fn(handle: TeamHandle) -> c_int {
        find_team(job(NAME), handle).map_or(-1, |team| team.group().me() as c_int)
    }

    ["shmem_team_n_pes"] fn(handle: TeamHandle) -> c_int {
        find_team(job(NAME), handle).map_or(-1, |team| team.group().size() as c_int)
    }

    ["shmem_team_get_config"] fn(handle: TeamHandle, mask: c_long, config: CPointer<Config>) -> c_int {
        let Some(found) = find_team(job(NAME), handle) else { return 1 };
        if mask & NUM_CONTEXTS != 0 {
            let num_contexts = if let UsedTeam::Made(made) = found { made.num_contexts } else { 0 };
            config.set(Config { num_contexts });
        }
        0
    }

    ["shmem_team_translate_pe"] fn(from: TeamHandle, pe: c_int, to: TeamHandle) -> c_int {
        let job = job(NAME);
        let (Some(from), Some(to)) = (find_team(job, from), find_team(job, to)) else { return -1 };
        from.pe(pe.into()).map_or(-1, |pe| index(to.group().index_of(pe)))
    }

    ["shmem_team_split_strided"]
    fn(
        parent: TeamHandle, start: c_int, stride: c_int, size: c_int,
        config: CPointer<Config>, mask: c_long, new: CPointer<TeamHandle>,
    ) -> c_int {
        super::given(NAME, "new_team", new);
        let contexts = wanted_contexts(NAME, config, mask);
        new.set(INVALID);
        let Some(parent) = find_team(job(NAME), parent) else { return 1 };
        // All PEs of the parent pass the same numbers, so all of them return here.
        let Some(part) = parent.group().part(start.into(), stride.into(), size.into()) else { return 1 };
        let made = split(&parent, part, contexts);
        new.set(made.unwrap_or(INVALID));
        made.is_none().into()
    }

    ["shmem_team_split_2d"]
    fn(
        parent: TeamHandle, xrange: c_int,
        x_config: CPointer<Config>, x_mask: c_long, x_team: CPointer<TeamHandle>,
        y_config: CPointer<Config>, y_mask: c_long, y_team: CPointer<TeamHandle>,
    ) -> c_int {
        super::given(NAME, "xaxis_team", x_team);
        super::given(NAME, "yaxis_team", y_team);
        let (x_contexts, y_contexts) =
            (wanted_contexts(NAME, x_config, x_mask), wanted_contexts(NAME, y_config, y_mask));
        x_team.set(INVALID);
        y_team.set(INVALID);
        let Some(parent) = find_team(job(NAME), parent) else { return 1 };
        if xrange < 1 {
            return 1;
        }
        let (size, me) = (i64::from(parent.group().size()), i64::from(parent.group().me()));
        let width = i64::from(xrange).min(size);
        let (x, y) = (me % width, me / width);
        let row = parent.group().part(y * width, 1, width.min(size - y * width)).flatten();
        let column = parent.group().part(x, width, (size - x + width - 1) / width).flatten();
        // Both splits are collective, so the second one runs even if the first has failed.
        match (split(&parent, row, x_contexts), split(&parent, column, y_contexts)) {
            (Some(x), Some(y)) => {
                x_team.set(x);
                y_team.set(y);
                0
            }
            // The program gets both teams or none, so that no place is kept that it does not know of.
            (x, y) => {
                [x, y].into_iter().flatten().for_each(|made| destroy(NAME, made));
                1
            }
        }
    }

    ["shmem_team_destroy"] fn(handle: TeamHandle) {
        job(NAME);
        match handle {
            INVALID => return,
            TEAM_WORLD | TEAM_SHARED => fail(NAME, &"the predefined teams cannot be destroyed"),
            _ => {}
        }
        destroy(NAME, handle);
    }

    ["shmem_team_sync"] fn(handle: TeamHandle) -> c_int {
        let Some(team) = find_team(job(NAME), handle) else { return 1 };
        check(NAME, team.sync());
        0
    }

    ["shmem_team_ptr"] fn(handle: TeamHandle, address: *const c_void, pe: c_int) -> *mut c_void {
        let runtime = &job(NAME).runtime;
        if handle == INVALID {
            return std::ptr::null_mut();
        }
        let pe = check(NAME, team(NAME, handle).pe(pe.into()));
        if pe == runtime.my_pe() && runtime.is_symmetric(address.cast(), 1) {
            return address.cast_mut();
        }
        runtime.peer_ptr(address.cast(), pe).cast()
    }
}
