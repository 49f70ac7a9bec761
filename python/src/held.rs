//! Objects that borrow a job's runtime in Rust and are kept together with the job: teams. Also objects that plans
//! borrow in turn.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use symrail::{Result, Runtime, Team};

use crate::gpu::{DeviceTeam, HeldGpu};
use crate::job::Job;

/// The job's runtime, for objects that are kept together with the job.
///
/// # Safety
/// These objects are dropped before the job.
pub unsafe fn runtime_of(job: &Arc<Job>) -> &'static Runtime {
    // SAFETY: the runtime does not move while the job lives; the caller's promise.
    unsafe { &*std::ptr::from_ref(job.runtime()) }
}

/// An object that plans borrow for as long as they live: a heap, kernels. The owner takes it back when the plans are
/// gone. Dropping this leaks the object, because plans may still use it; a heap's memory ends with the job.
pub struct Lent<T>(NonNull<T>);

// SAFETY: this is an address; only calls whose callers promise that they may do so dereference it.
unsafe impl<T> Send for Lent<T> {}

impl<T: 'static> Lent<T> {
    pub fn new(value: T) -> Lent<T> {
        Lent(NonNull::from(Box::leak(Box::new(value))))
    }

    /// The object, for plans.
    ///
    /// # Safety
    /// Everything made from it is gone before [`Lent::take_back`]. Threads use it one at a time, unless it is `Sync`.
    pub unsafe fn get(&self) -> &'static T {
        // SAFETY: it was leaked; the caller's promise.
        unsafe { self.0.as_ref() }
    }

    /// Takes the object back.
    ///
    /// # Safety
    /// Nothing that borrows it is left.
    pub unsafe fn take_back(self) -> T {
        // SAFETY: it was leaked as a box, and is taken back once; the caller's promise.
        *unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

/// A team, and the job that it belongs to.
pub struct HeldTeam {
    team: ManuallyDrop<Team<'static>>,
    /// The team for kernels; `None` for all PEs, and without a GPU.
    pub on_gpu: Option<DeviceTeam>,
    pub job: Arc<Job>,
}

impl HeldTeam {
    /// The team of all PEs. Collective.
    pub fn world(job: Arc<Job>) -> Result<HeldTeam> {
        // SAFETY: the job is kept until the team is gone.
        let runtime = unsafe { runtime_of(&job) };
        Ok(HeldTeam { team: ManuallyDrop::new(runtime.team_world()?), on_gpu: None, job })
    }

    /// A team of some of this team's PEs. Collective over this one.
    pub fn split(&self, part: Option<symrail::Group>) -> Result<Option<HeldTeam>> {
        let Some(team) = self.team.split(part)? else { return Ok(None) };
        let on_gpu = self.job.gpu().map(|gpu: &HeldGpu| gpu.team(&team)).transpose()?;
        Ok(Some(HeldTeam { team: ManuallyDrop::new(team), on_gpu, job: Arc::clone(&self.job) }))
    }

    /// The team, for objects that are kept together with it.
    ///
    /// # Safety
    /// These objects are dropped before this.
    pub unsafe fn team(&self) -> &'static Team<'static> {
        // SAFETY: the team does not move while this is behind an `Arc`; the caller's promise.
        unsafe { &*std::ptr::from_ref::<Team<'static>>(&*self.team) }
    }

    /// Destroys the team. Collective over the team.
    pub fn destroy(self) -> Result<()> {
        let mut this = ManuallyDrop::new(self);
        this.on_gpu = None;
        // SAFETY: both are taken out once, since `this` is not dropped; the job is dropped last.
        let (team, _job) = unsafe { (ManuallyDrop::take(&mut this.team), std::ptr::read(&raw const this.job)) };
        team.destroy()
    }
}

impl Drop for HeldTeam {
    fn drop(&mut self) {
        self.on_gpu = None;
        // SAFETY: it is not used afterwards; the job is dropped after this.
        unsafe { ManuallyDrop::drop(&mut self.team) }
    }
}

impl Deref for HeldTeam {
    // Callers get the lifetime of the borrow, not that of the job.
    type Target = Team<'static>;

    fn deref(&self) -> &Team<'static> {
        &self.team
    }
}
