//! The PEs' processes: which have ended, and how.
//!
//! A process is reaped when the job is over: until then the system cannot reuse its process id, which is also its
//! group's.

use std::collections::HashMap;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use symrail::bootstrap::rendezvous::{Event, OnEvent};
use symrail_core::lock;

use super::ending::Ending;
use super::inbox::Poster;

/// Polling all processes takes at most one part in so many of the time.
const SCAN_SHARE: u32 = 20;

/// One PE.
pub(super) struct OwnChild {
    pub(super) pid: Pid,
    pub(super) ending: Option<Ending>,
    child: Child,
}

/// Which processes end before they can know that the job is broken. What a PE reports of another's end may arrive
/// before that end itself: the kernel closes a process's rails before its connection to the rendezvous service, which
/// was opened earlier. So the service's thread looks before it tells the PEs.
#[derive(Clone, Default)]
pub(super) struct Unprompted(Arc<Mutex<Ends>>);

#[derive(Default)]
struct Ends {
    started: Vec<Pid>,
    /// Set before the PEs are told.
    ending: Option<Vec<Pid>>,
}

impl Unprompted {
    /// The PEs are about to be told that the job is broken.
    fn settle(&self) {
        let mut ends = lock(&self.0);
        let ending = ends.ending();
        ends.ending = Some(ending);
    }

    /// Whether a process was ending when the PEs were told; false if that has not happened.
    pub(super) fn has(&self, pid: Pid) -> bool {
        lock(&self.0).ending.as_ref().is_some_and(|ending| ending.contains(&pid))
    }
}

impl Ends {
    fn ending(&self) -> Vec<Pid> {
        let now = || self.started.iter().copied().filter(|pid| is_ending(*pid)).collect();
        self.ending.clone().unwrap_or_else(now)
    }
}

/// Posts the rendezvous service's events.
pub(super) fn on_event(unprompted: Unprompted, poster: Poster<Event>) -> OnEvent {
    Box::new(move |event| match event {
        Event::Broken => unprompted.settle(),
        event => poster.post(event),
    })
}

/// The PEs that this process has started, numbered from 0 in this order.
#[derive(Default)]
pub(super) struct Children {
    pub(super) unprompted: Unprompted,
    all: Vec<OwnChild>,
    by_pid: HashMap<Pid, u32>,
    running: usize,
    /// Processes that a signal has reported as ended.
    named: Vec<Pid>,
    /// When to poll all processes: one signal may stand for several ends, and names one of them.
    look_at: Option<Instant>,
    scanned: Option<(Instant, Duration)>,
}

impl Children {
    pub(super) fn add(&mut self, child: Child) -> Pid {
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        self.by_pid.insert(pid, u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        lock(&self.unprompted.0).started.push(pid);
        self.all.push(OwnChild { pid, child, ending: None });
        self.running += 1;
        pid
    }

    pub(super) fn get(&self, pe: u32) -> Option<&OwnChild> {
        self.all.get(pe as usize)
    }

    /// The PEs that were ending when the PEs were told that the job is broken, or are ending now if that has not
    /// happened.
    pub(super) fn unprompted(&self) -> Vec<u32> {
        let pids = lock(&self.unprompted.0).ending();
        pids.iter().filter_map(|pid| self.by_pid.get(pid).copied()).collect()
    }

    /// The number of started PEs.
    pub(super) fn started(&self) -> u32 {
        u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }

    /// The number of running PEs.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Sends a signal to the groups of all running PEs.
    pub(super) fn signal_all(&self, signal: Signal) {
        for process in self.all.iter().filter(|process| process.ending.is_none()) {
            let _ = killpg(process.pid, signal);
        }
    }

    /// Whether a running PE's process is ending already: the kernel has closed, or is about to close, its connections,
    /// so others may have noticed before a wait reports its end. False if the system does not tell.
    pub(super) fn any_is_ending(&self) -> bool {
        self.all.iter().any(|process| process.ending.is_none() && is_ending(process.pid))
    }

    /// The system has reported that a process has ended, perhaps several.
    pub(super) fn note_end_of(&mut self, pid: Pid) {
        self.named.push(pid);
        let earliest = self.scanned.map_or_else(Instant::now, |(at, took)| at + took * SCAN_SHARE);
        self.look_at.get_or_insert(earliest);
    }

    /// When the next poll is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_at
    }

    /// The PEs that have ended since the last call, as far as a poll is due.
    pub(super) fn take_ended(&mut self) -> Vec<u32> {
        let named = std::mem::take(&mut self.named);
        let mut candidates: Vec<u32> = named.iter().filter_map(|pid| self.by_pid.get(pid).copied()).collect();
        let begun = Instant::now();
        let all = self.look_at.is_some_and(|at| at <= begun);
        if all {
            self.look_at = None;
            candidates = (0..self.started()).collect();
        }
        candidates.retain(|pe| self.has_ended(*pe));
        if all {
            self.scanned = Some((Instant::now(), begun.elapsed()));
        }
        candidates
    }

    /// Whether a poll finds for the first time that a PE has ended.
    fn has_ended(&mut self, pe: u32) -> bool {
        let Some(process) = self.all.get_mut(pe as usize).filter(|process| process.ending.is_none()) else {
            return false;
        };
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        process.ending = match waitid(Id::Pid(process.pid), flags) {
            Ok(status) => Ending::from_wait(status),
            Err(Errno::EINTR) => None,
            // The signal named no process, or another call has reaped the status.
            Err(_) => Some(process.child.wait().map_or(Ending::Unknown, Ending::from_status)),
        };
        let ended = process.ending.is_some();
        self.running -= usize::from(ended);
        ended
    }
}

/// Whether the kernel has begun to end a process. It closes connections only after that.
fn is_ending(pid: Pid) -> bool {
    /// The kernel's flag of a process that exits (`PF_EXITING`).
    const EXITING: u32 = 4;
    /// Where `proc(5)` has the kernel's flags, counted from the process's state.
    const FLAGS: usize = 6;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name may hold anything, so it is skipped by its last parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_whitespace().nth(FLAGS).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

impl Drop for Children {
    /// Leaves nothing behind: neither the PEs nor other processes in their groups.
    fn drop(&mut self) {
        for process in &self.all {
            let _ = killpg(process.pid, Signal::SIGKILL);
        }
        for process in &mut self.all {
            let _ = process.child.wait();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Waits until the process has ended, and leaves its status to others.
    fn await_end(pid: Pid) {
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    }

    #[test]
    fn only_what_was_ending_before_the_job_is_known_to_be_broken_is_unprompted() {
        let mut children = Children::default();
        let mut cat = || children.add(Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().unwrap());
        let (first, second) = (cat(), cat());
        nix::sys::signal::kill(first, Signal::SIGTERM).unwrap();
        await_end(first);
        assert_eq!((children.unprompted(), children.unprompted.has(first)), (vec![0], false));
        children.unprompted.settle();
        nix::sys::signal::kill(second, Signal::SIGTERM).unwrap();
        await_end(second);
        children.unprompted.settle();
        assert_eq!(children.unprompted(), [0]);
        assert!(children.unprompted.has(first) && !children.unprompted.has(second));
    }
}
