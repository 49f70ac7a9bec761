//! The one job of the process: joining, leaving, and which threads may call when.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

use symrail::gpu::GpuDevice;
use symrail::{ActiveSets, Group, Runtime, Settings, Team};

use crate::environment;
use crate::fail::{check, fail};
use crate::handle;
use crate::streams;

/// A joined job.
pub struct Job {
    pub runtime: Runtime,
    pub world: Team,
    pub shared: Option<Team>,
    pub active_sets: ActiveSets,
    /// Made when a program first asks for it.
    pub device: Mutex<Option<GpuDevice>>,
    /// What the program asked for by `shmem_init_thread`.
    pub thread_level: i32,
    /// The thread that has joined.
    pub joiner: std::thread::ThreadId,
}

/// Set once: OpenSHMEM is initialised once. Its memory stays mapped until the process ends.
static JOB: OnceLock<Job> = OnceLock::new();
static PHASE: AtomicU8 = AtomicU8::new(BEFORE);
/// The PE, also while joining and after leaving; -1 when there is none.
static PE: AtomicI32 = AtomicI32::new(-1);
/// The thread in which the process ends; 0 before.
static ENDS_IN: AtomicI32 = AtomicI32::new(0);
/// One thread joins or leaves.
static CHANGE: Mutex<()> = Mutex::new(());

/// `SHMEM_THREAD_SERIALIZED`
const THREAD_SERIALIZED: i32 = 2;
/// `SHMEM_THREAD_MULTIPLE`
pub const THREAD_MULTIPLE: i32 = 3;

const BEFORE: u8 = 0;
const RUNNING: u8 = 1;
const AFTER: u8 = 2;
/// The end of the process has finalised a program that had not done so.
const ENDED: u8 = 3;

/// The job, or an error of this function if there is none (any more).
#[inline]
pub fn job(function: &str) -> &'static Job {
    match JOB.get() {
        Some(job) if is_running() => job,
        _ => not_running(function),
    }
}

#[cold]
fn not_running(function: &str) -> ! {
    let why = match PHASE.load(Ordering::Acquire) {
        AFTER => "called after shmem_finalize",
        ENDED => {
            "called after the end of the process has left the job; exit handlers that are registered after shmem_init, and objects that are made after it, are ended before"
        }
        _ => "called before shmem_init or shmem_init_thread",
    };
    fail(function, &why)
}

/// Whether there is a job now.
#[inline]
pub fn is_running() -> bool {
    PHASE.load(Ordering::Acquire) == RUNNING
}

/// Whether the process is ending in another thread, which has left the job: this one ends with the process.
pub fn ends_in_another_thread() -> bool {
    PHASE.load(Ordering::Acquire) == ENDED && ENDS_IN.load(Ordering::Relaxed) != this_thread()
}

/// The kernel's number of this thread, which exit handlers may ask for when the thread's values are gone.
fn this_thread() -> i32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::gettid() }
}

pub fn pe_for_messages() -> Option<i32> {
    Some(PE.load(Ordering::Relaxed)).filter(|&pe| pe >= 0)
}

/// Writes out what the program has printed, and asks for the end of all PEs, if there are any others.
pub fn end_all(code: i32, why: &str) {
    // Before the others' starter ends this process, too.
    streams::write_out();
    PHASE.store(AFTER, Ordering::Release);
    if let Some(job) = JOB.get() {
        job.runtime.abort(code, why);
    }
}

/// Joins the job. Collective.
pub fn join(function: &str, thread_level: i32) {
    let _change = CHANGE.lock();
    match PHASE.load(Ordering::Acquire) {
        BEFORE => {}
        RUNNING => fail(function, &"OpenSHMEM is initialised already; call it once"),
        _ => fail(function, &"OpenSHMEM was finalised; it cannot be initialised again"),
    }
    environment::start_log();
    let mut settings = check(function, Settings::from_env());
    check(function, environment::apply_symmetric_size(&mut settings));
    let bootstrap = check(function, symrail::bootstrap::open(&settings));
    // The program's variables and the runtime take their room from the heap, which is to be as large as it was asked
    // for nevertheless.
    let besides = Runtime::program_data_bytes() + Runtime::own_bytes(bootstrap.n_pes());
    settings.add_to_heap(besides.next_multiple_of(2 << 20));
    PE.store(i32::try_from(bootstrap.pe()).unwrap_or(-1), Ordering::Relaxed);
    let mut runtime = check(function, Runtime::join(settings, bootstrap));
    // SAFETY: OpenSHMEM is initialised by one thread; a program that writes its variables from others at this moment
    // races with the initialisation of them as symmetric objects in any case.
    check(function, unsafe { runtime.share_program_data() });
    let world = check(function, runtime.team_world());
    let shared = check(function, world.split(sharing(&runtime)));
    let active_sets = check(function, ActiveSets::new(&world, thread_level == THREAD_MULTIPLE));
    let (device, joiner) = (Mutex::new(None), std::thread::current().id());
    check(function, runtime.barrier_all());
    environment::print(&runtime);
    JOB.get_or_init(|| Job { runtime, world, shared, active_sets, device, thread_level, joiner });
    PHASE.store(RUNNING, Ordering::Release);
    // SAFETY: the function may be called at any later time: the library stays loaded, as its thread's code must.
    unsafe { on_exit(left_running, std::ptr::null_mut()) };
}

/// Leaves the job. Collective.
pub fn leave(function: &str) {
    leave_for(function, AFTER);
}

fn leave_for(function: &str, phase: u8) {
    if JOB.get().is_some_and(|job| job.runtime.is_forked()) {
        return; // a child of a PE is none
    }
    let _change = CHANGE.lock();
    if PHASE.load(Ordering::Acquire) == ENDED {
        return; // an exit handler that was registered before `shmem_init`
    }
    let job = job(function);
    PHASE.store(phase, Ordering::Release);
    // Errors of contexts that are only dropped would not reach the program.
    check(function, handle::quiet_contexts());
    handle::forget_all();
    drop(symrail_core::lock(&job.device).take());
    check(function, job.runtime.clone().finalize());
}

/// The PEs whose memory this PE maps, if they are evenly spaced; otherwise this PE alone.
fn sharing(runtime: &Runtime) -> Option<Group> {
    let (me, n) = (runtime.my_pe(), runtime.n_pes());
    let mapped: Vec<u32> = (0..n).filter(|&pe| runtime.is_mapped(pe)).collect();
    let alone = Group::new(me.into(), 1, 1, me, n);
    let (Some(&first), Some(&second)) = (mapped.first(), mapped.get(1)) else { return alone };
    let even = mapped.windows(2).all(|w| w[1] - w[0] == second - first);
    if even { Group::new(first.into(), (second - first).into(), mapped.len() as i64, me, n) } else { alone }
}

unsafe extern "C" {
    fn on_exit(function: unsafe extern "C" fn(i32, *mut std::ffi::c_void), arg: *mut std::ffi::c_void) -> i32;
}

/// Leaves the job at the end of the process. If other threads may be inside our functions, nothing is freed, since they
/// still use it.
fn leave_at_exit() {
    let job = job("exit");
    ENDS_IN.store(this_thread(), Ordering::Relaxed);
    if job.joiner == std::thread::current().id() && job.thread_level < THREAD_SERIALIZED {
        leave_for("exit", ENDED);
    } else if !job.runtime.is_forked() {
        PHASE.store(ENDED, Ordering::Release);
        check("exit", handle::quiet_contexts());
        check("exit", job.runtime.leave());
    }
}

/// Finalises a program that exits with success without having called `shmem_finalize`. A program that exits with an
/// error must not wait for the others: its launcher ends them.
unsafe extern "C" fn left_running(status: i32, _: *mut std::ffi::c_void) {
    if status == 0 && is_running() {
        leave_at_exit();
    }
}
