//! Waits of the CPU device's threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use symrail::device::CpuDevice;
use symrail::kernels::cpu::{Grid, Thread};
use symrail::{BoundedWait, Ended, Runtime, Team};
use symrail_core::Backoff;

use crate::error::{Error, Result};

/// One wait of a thread.
pub(super) struct Wait<'a> {
    what: &'static str,
    team: &'a Team,
    bounds: BoundedWait<'a>,
    backoff: Backoff,
}

impl<'a> Wait<'a> {
    /// Begins a wait, which `ended` ends: see [`launch`].
    pub fn new(what: &'static str, team: &'a Team, ended: &'a AtomicBool, timeout: Duration) -> Self {
        let backoff = Backoff::new(16, 256, Duration::from_micros(50));
        Wait { what, team, bounds: BoundedWait::watched(ended, timeout), backoff }
    }

    /// Begins it anew: a part of what it waits for has come.
    pub fn restart(&mut self) {
        self.bounds.restart();
        self.backoff.reset();
    }

    /// Pauses. Returns whether the time-out has not passed.
    ///
    /// # Errors
    /// The program has ended all waits, or a member has died.
    pub fn goes_on(&mut self) -> Result<bool> {
        match self.bounds.ended(|_| self.team.check_alive(self.what))? {
            Some(Ended::Interrupted) => Err(Error::Call(format!("{} was interrupted", self.what))),
            Some(Ended::TimedOut) => Ok(false),
            None => {
                self.backoff.pause();
                Ok(true)
            }
        }
    }
}

/// Runs `kernel` on every thread of the grid. Meanwhile the calling thread asks the program whether waits go on
/// ([`symrail::Runtime::set_interrupt`]): it may be the only one that can, as with signals in Python. If they do not, it
/// sets `ended`, which `kernel` passes to its waits.
///
/// # Errors
/// Those of the threads, and [`symrail::Error::Interrupted`].
pub(super) fn launch<K>(
    runtime: &Runtime,
    device: &CpuDevice,
    grid: Grid,
    what: &'static str,
    ended: &AtomicBool,
    kernel: K,
) -> Result<()>
where
    K: Fn(&Thread<'_>) -> Result<()> + Sync,
{
    let (mut bounds, mut interrupted) = (runtime.bounded_wait(None), None);
    let watch = || {
        if interrupted.is_none() {
            interrupted = bounds.is_interrupted().then(|| bounds.waited());
            ended.store(interrupted.is_some(), Ordering::Relaxed);
        }
    };
    let run = device.launch_watched(grid, kernel, watch);
    if let Some(waited) = interrupted {
        let waiting = runtime.my_pe();
        return Err(symrail::Error::Interrupted { waiting, what, waited, missing: Vec::new() }.into());
    }
    run?;
    Ok(())
}
