//! Handles of contexts and teams in C: pointers that are numbers, so that invalid ones are detected.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use symrail::{Context as RustContext, Group, Operations, Pe, Team};

use crate::fail::fail;
use crate::job::{Job, job};

/// `shmem_ctx_t`
pub type Context = *mut c_void;
/// `shmem_team_t`
pub type TeamHandle = *mut c_void;

/// `SHMEM_CTX_INVALID`, `SHMEM_TEAM_INVALID`
pub const INVALID: *mut c_void = std::ptr::null_mut();
/// `SHMEM_CTX_DEFAULT`
pub const DEFAULT_CONTEXT: Context = std::ptr::without_provenance_mut(1);
/// `SHMEM_TEAM_WORLD`
pub const TEAM_WORLD: TeamHandle = std::ptr::without_provenance_mut(1);
/// `SHMEM_TEAM_SHARED`, and `SHMEMX_TEAM_NODE`
pub const TEAM_SHARED: TeamHandle = std::ptr::without_provenance_mut(2);
/// The first handle of contexts and teams that the program makes.
const FIRST: usize = 16;

/// Contexts that a program can have at a time.
const MAX_CONTEXTS: usize = 1024;

/// A context that the program has made. Each has its own endpoint if one is available, whatever its options are.
pub struct MadeContext {
    pub context: RustContext<'static>,
    pub team: TeamHandle,
    pub group: Group,
    pub options: c_long,
}

static CONTEXTS: [AtomicPtr<MadeContext>; MAX_CONTEXTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_CONTEXTS];

/// A team that the program has made, with the configuration that it passed.
pub struct MadeTeam {
    pub team: Team<'static>,
    pub num_contexts: c_int,
}

static TEAMS: Mutex<Vec<Option<Arc<MadeTeam>>>> = Mutex::new(Vec::new());

fn teams() -> std::sync::MutexGuard<'static, Vec<Option<Arc<MadeTeam>>>> {
    symrail_core::lock(&TEAMS)
}

/// Forgets all teams and contexts.
pub fn forget_all() {
    teams().clear();
    for slot in &CONTEXTS {
        drop(take_context(slot));
    }
}

/// Stores a context; `None` when there are too many.
pub fn keep_context(context: MadeContext) -> Option<Context> {
    let made = Box::into_raw(Box::new(context));
    for (slot, number) in CONTEXTS.iter().zip(FIRST..) {
        let none = std::ptr::null_mut();
        if slot.compare_exchange(none, made, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(std::ptr::without_provenance_mut(number));
        }
    }
    // SAFETY: made above and given to nobody.
    drop(unsafe { Box::from_raw(made) });
    None
}

fn slot(context: Context) -> Option<&'static AtomicPtr<MadeContext>> {
    CONTEXTS.get(context.addr().checked_sub(FIRST)?)
}

fn take_context(slot: &AtomicPtr<MadeContext>) -> Option<Box<MadeContext>> {
    let made = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: made by `keep_context`, and taken out of its slot by this thread alone.
    (!made.is_null()).then(|| unsafe { Box::from_raw(made) })
}

/// Forgets a context.
pub fn drop_context(context: Context) -> Option<Box<MadeContext>> {
    take_context(slot(context)?)
}

/// A context that the program has made; the default context is not one of them.
#[inline]
pub fn made_context(function: &str, context: Context) -> &'static MadeContext {
    // SAFETY: a context is freed by the call that destroys it, after which the program does not use it.
    match slot(context).and_then(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() }) {
        Some(made) => made,
        None if context == INVALID => fail(function, &"the context is SHMEM_CTX_INVALID"),
        None => fail(function, &"the context does not exist; was it destroyed?"),
    }
}

/// The operations on a context, and the PE that a number stands for in the context's team.
#[inline]
pub fn route(function: &str, context: Context, pe: c_int) -> (Operations<'static>, Pe) {
    let runtime = job(function).runtime;
    if context == DEFAULT_CONTEXT {
        if (pe as u32) < runtime.n_pes() {
            return (runtime.operations(), pe as Pe);
        }
        no_such_pe(function, "job", pe, runtime.n_pes());
    }
    let made = made_context(function, context);
    if (pe as u32) < made.group.size() {
        return (made.context.operations(), made.group.pe(pe as u32));
    }
    no_such_pe(function, "context's team", pe, made.group.size())
}

#[cold]
fn no_such_pe(function: &str, of: &str, pe: c_int, size: u32) -> ! {
    fail(function, &format!("PE {pe} does not exist: the {of} has PEs 0 to {}", size - 1))
}

/// The operations on a context.
#[inline]
pub fn operations_on(function: &str, context: Context) -> Operations<'static> {
    let runtime = job(function).runtime;
    if context == DEFAULT_CONTEXT { runtime.operations() } else { made_context(function, context).context.operations() }
}

/// Stores a team.
pub fn keep_team(team: Team<'static>, num_contexts: c_int) -> TeamHandle {
    let made = Some(Arc::new(MadeTeam { team, num_contexts }));
    let mut teams = teams();
    let free = teams.iter().position(Option::is_none);
    let number = match free.and_then(|at| teams.get_mut(at).map(|slot| (at, slot))) {
        Some((at, slot)) => {
            *slot = made;
            at
        }
        None => {
            teams.push(made);
            teams.len() - 1
        }
    };
    std::ptr::without_provenance_mut(FIRST + number)
}

/// Forgets a team; `None` if the handle names none.
pub fn drop_team(handle: TeamHandle) -> Option<Arc<MadeTeam>> {
    teams().get_mut(handle.addr().checked_sub(FIRST)?)?.take()
}

/// A team that the program may use: a predefined one, or one that the program has made.
pub enum UsedTeam {
    Given(&'static Team<'static>),
    Made(Arc<MadeTeam>),
}

impl std::ops::Deref for UsedTeam {
    type Target = Team<'static>;

    fn deref(&self) -> &Team<'static> {
        match self {
            UsedTeam::Given(team) => team,
            UsedTeam::Made(made) => &made.team,
        }
    }
}

/// The team of a handle; `None` for the handle of no team.
pub fn find_team(job: &'static Job, handle: TeamHandle) -> Option<UsedTeam> {
    match handle {
        TEAM_WORLD => Some(UsedTeam::Given(&job.world)),
        TEAM_SHARED => job.shared.as_ref().map(UsedTeam::Given),
        _ => Some(UsedTeam::Made(Arc::clone(teams().get(handle.addr().checked_sub(FIRST)?)?.as_ref()?))),
    }
}

/// The team of a handle.
pub fn team(function: &str, handle: TeamHandle) -> UsedTeam {
    match find_team(job(function), handle) {
        Some(team) => team,
        None if handle == INVALID => fail(function, &"the team is SHMEM_TEAM_INVALID: this PE is not in it"),
        None => fail(function, &"the team does not exist; was it destroyed?"),
    }
}
