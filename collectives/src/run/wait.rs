//! Waits of the CPU device's threads, and what ends them before their time-out: a signal to the program, and a member
//! that has died.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symrail::device::CpuDevice;
use symrail::kernels::cpu::{Grid, Thread};
use symrail::{Runtime, Team};
use symrail_core::Backoff;

use crate::error::{Error, Result};

/// How often a wait checks that all members are alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// One wait of a thread.
pub(super) struct Wait<'a> {
    what: &'static str,
    team: &'a Team,
    ended: &'a AtomicBool,
    begun: Instant,
    next_check: Duration,
    backoff: Backoff,
}

impl<'a> Wait<'a> {
    /// Begins a wait, which `ended` ends: see [`launch`].
    pub fn new(what: &'static str, team: &'a Team, ended: &'a AtomicBool) -> Self {
        let backoff = Backoff::new(16, 256, Duration::from_micros(50));
        Wait { what, team, ended, begun: Instant::now(), next_check: CHECK_INTERVAL, backoff }
    }

    /// Pauses. Returns whether the wait lasts less than `timeout`.
    ///
    /// # Errors
    /// The program has ended all waits, or a member has died.
    pub fn goes_on(&mut self, timeout: Duration) -> Result<bool> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(Error::Call(format!("{} was interrupted", self.what)));
        }
        let waited = self.begun.elapsed();
        if waited > self.next_check {
            self.next_check = waited + CHECK_INTERVAL;
            self.team.check_alive(self.what)?;
        }
        self.backoff.pause();
        Ok(waited <= timeout)
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
    (what, ended): (&'static str, &AtomicBool),
    kernel: K,
) -> Result<()>
where
    K: Fn(&Thread<'_>) -> Result<()> + Sync,
{
    let (mut interrupt_poll, mut interrupted) = (runtime.interrupt_poll(), None);
    let watch = || {
        if interrupted.is_none() {
            interrupted = interrupt_poll.ended();
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
