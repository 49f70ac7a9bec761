//! Handles of contexts and teams in C: pointers that are numbers, so that invalid ones are detected.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use symrail::{Context as RustContext, Group, Operations, Pe, Runtime, Team};

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

/// What is known of the context with a number. Each context has its own endpoint if one is available, whatever its
/// options are. All fields are atomics, because C may destroy a context while another thread, in error, still uses it.
struct MadeContext {
    exists: AtomicBool,
    team: AtomicUsize,
    /// The PEs of the team.
    start: AtomicU32,
    stride: AtomicI64,
    size: AtomicU32,
    options: AtomicI64,
    /// `None` once it was destroyed.
    context: Mutex<Option<RustContext>>,
}

static CONTEXTS: [MadeContext; Runtime::MAX_CONTEXTS] = [const {
    MadeContext {
        exists: AtomicBool::new(false),
        team: AtomicUsize::new(0),
        start: AtomicU32::new(0),
        stride: AtomicI64::new(0),
        size: AtomicU32::new(0),
        options: AtomicI64::new(0),
        context: Mutex::new(None),
    }
}; Runtime::MAX_CONTEXTS];

/// A team that the program has made, with the configuration that it passed.
pub struct MadeTeam {
    pub team: Team,
    pub num_contexts: c_int,
}

static TEAMS: Mutex<Vec<Option<Arc<MadeTeam>>>> = Mutex::new(Vec::new());

fn teams() -> std::sync::MutexGuard<'static, Vec<Option<Arc<MadeTeam>>>> {
    symrail_core::lock(&TEAMS)
}

/// Completes the operations on all contexts that the program has not destroyed; the first error is returned.
pub fn quiet_contexts() -> symrail::Result<()> {
    let quiet = |made: &MadeContext| {
        symrail_core::lock(&made.context).as_ref().map_or(Ok(()), |context| context.operations().quiet())
    };
    CONTEXTS.iter().map(quiet).fold(Ok(()), Result::and)
}

/// Forgets all teams and contexts.
pub fn forget_all() {
    teams().clear();
    CONTEXTS.iter().for_each(|made| drop(made.take()));
}

impl MadeContext {
    fn take(&self) -> Option<RustContext> {
        self.exists.store(false, Ordering::Release);
        symrail_core::lock(&self.context).take()
    }
}

/// Stores a context; `None` if its number is too large, which no context's is.
pub fn keep_context(context: RustContext, team: TeamHandle, group: Group, options: c_long) -> Option<Context> {
    let number = context.number();
    let made = CONTEXTS.get(number)?;
    made.team.store(team.addr(), Ordering::Relaxed);
    made.start.store(group.pe(0), Ordering::Relaxed);
    let stride = i64::from(group.pe(1.min(group.size() - 1))) - i64::from(group.pe(0));
    made.stride.store(stride, Ordering::Relaxed);
    made.size.store(group.size(), Ordering::Relaxed);
    made.options.store(options, Ordering::Relaxed);
    *symrail_core::lock(&made.context) = Some(context);
    made.exists.store(true, Ordering::Release);
    Some(std::ptr::without_provenance_mut(FIRST + number))
}

fn find_context(context: Context) -> Option<(usize, &'static MadeContext)> {
    let number = context.addr().checked_sub(FIRST)?;
    CONTEXTS.get(number).filter(|made| made.exists.load(Ordering::Acquire)).map(|made| (number, made))
}

/// Forgets a context, and returns it with its options.
pub fn drop_context(context: Context) -> Option<(RustContext, c_long)> {
    let (_, made) = find_context(context)?;
    Some((made.take()?, made.options.load(Ordering::Relaxed)))
}

/// Forgets the contexts of a team, and returns them. Those with `SHMEM_CTX_PRIVATE` are among them: the program should
/// have destroyed them before, and the team's handle, which they name, may be another team's next.
pub fn drop_contexts_of(team: TeamHandle) -> impl Iterator<Item = RustContext> {
    let of_team = move |made: &MadeContext| {
        made.exists.load(Ordering::Acquire) && made.team.load(Ordering::Relaxed) == team.addr()
    };
    CONTEXTS.iter().filter(move |made| of_team(made)).filter_map(MadeContext::take)
}

/// The team of a context.
pub fn team_of_context(function: &str, context: Context) -> TeamHandle {
    std::ptr::without_provenance_mut(made_context(function, context).1.team.load(Ordering::Relaxed))
}

/// The number and the state of a context that the program has made; the default context is not one of them.
#[inline]
fn made_context(function: &str, context: Context) -> (usize, &'static MadeContext) {
    match find_context(context) {
        Some(found) => found,
        None if context == INVALID => fail(function, &"the context is SHMEM_CTX_INVALID"),
        None => fail(function, &"the context does not exist; was it destroyed, or its team?"),
    }
}

/// The operations on the context with a number.
#[inline]
fn on_number(runtime: &'static Runtime, number: usize) -> Operations<'static> {
    runtime.operations_on(number).unwrap_or_else(|| runtime.operations())
}

/// The operations on a context, and the PE that a number stands for in the context's team.
#[inline]
pub fn route(function: &str, context: Context, pe: c_int) -> (Operations<'static>, Pe) {
    let runtime = &job(function).runtime;
    if context == DEFAULT_CONTEXT {
        if (pe as u32) < runtime.n_pes() {
            return (runtime.operations(), pe as Pe);
        }
        no_such_pe(function, "job", pe, runtime.n_pes());
    }
    let (number, made) = made_context(function, context);
    let size = made.size.load(Ordering::Relaxed);
    if (pe as u32) < size {
        let start = i64::from(made.start.load(Ordering::Relaxed));
        let pe = start + made.stride.load(Ordering::Relaxed) * i64::from(pe);
        return (on_number(runtime, number), pe as Pe);
    }
    no_such_pe(function, "context's team", pe, size)
}

#[cold]
fn no_such_pe(function: &str, of: &str, pe: c_int, size: u32) -> ! {
    fail(function, &format!("PE {pe} does not exist: the {of} has PEs 0 to {}", size - 1))
}

/// The operations on a context.
#[inline]
pub fn operations_on(function: &str, context: Context) -> Operations<'static> {
    let runtime = &job(function).runtime;
    if context == DEFAULT_CONTEXT {
        return runtime.operations();
    }
    on_number(runtime, made_context(function, context).0)
}

/// Stores a team.
pub fn keep_team(team: Team, num_contexts: c_int) -> TeamHandle {
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
    Given(&'static Team),
    Made(Arc<MadeTeam>),
}

impl std::ops::Deref for UsedTeam {
    type Target = Team;

    fn deref(&self) -> &Team {
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
