//! The id of a job, which identifies all of its processes, in whatever groups and sessions.
//!
//! A process that makes its own session or group (`setsid`, daemons) is in no group that the launcher knows. It keeps
//! its environment, though, which has the job's id. A process that is to outlive the job must be started without the
//! id.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::sys::signal::Signal;

/// The variable with the ids of a job and of the jobs around it, the outermost first.
pub const JOBS: &str = "SYMRAIL_LAUNCHER_JOBS";
/// Processes may start others during the search, so it is repeated.
const ROUNDS: u32 = 10;

/// A value that no other job has in its environment.
#[derive(Clone)]
pub(super) struct JobId(String);

impl JobId {
    pub(super) fn new() -> JobId {
        JobId(format!("{}-{:016x}", std::process::id(), RandomState::new().build_hasher().finish()))
    }

    /// The variable's value for the job's PEs.
    pub(super) fn value(&self) -> String {
        let outer = std::env::var(JOBS).ok().filter(|outer| !outer.is_empty());
        outer.map_or_else(|| self.0.clone(), |outer| format!("{outer},{}", self.0))
    }

    /// Kills all processes that carry the id.
    pub(super) fn kill_all(&self) {
        for _ in 0..ROUNDS {
            let found = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = found.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            if pids.filter(|pid| self.kill(*pid)).count() == 0 {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Kills a process if it carries the id. Returns whether it did.
    fn kill(&self, pid: i32) -> bool {
        // Opened first, so that the signal goes to the inspected process, and not to one that has got its number since.
        // SAFETY: returns a descriptor that no other code has, or an error.
        let process = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
            if fd < 0 {
                return false;
            }
            OwnedFd::from_raw_fd(fd)
        };
        // Processes of other users, and those that have ended, have nothing to read.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if !self.is_in(&environment) {
            return false;
        }
        let (fd, nothing) = (process.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: the descriptor is open, and no information goes with the signal.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, Signal::SIGKILL as i32, nothing, 0) == 0 }
    }

    fn is_in(&self, environment: &[u8]) -> bool {
        let mut values = environment
            .split(|byte| *byte == 0)
            .filter_map(|variable| variable.strip_prefix(JOBS.as_bytes())?.strip_prefix(b"="));
        values.any(|value| value.split(|byte| *byte == b',').any(|id| id == self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_among_others_and_nowhere_else() {
        let (id, other) = (JobId("7-abc".into()), JobId::new());
        for (environment, found) in [
            (&b"HOME=/\0SYMRAIL_LAUNCHER_JOBS=1-f,7-abc\0A=b\0"[..], true),
            (b"SYMRAIL_LAUNCHER_JOBS=7-abc\0", true),
            (b"SYMRAIL_LAUNCHER_JOBS=7-abcd\0OTHER=7-abc\0XSYMRAIL_LAUNCHER_JOBS=7-abc\0", false),
            (b"SYMRAIL_LAUNCHER_JOBS=\0", false),
            (b"", false),
        ] {
            assert_eq!((id.is_in(environment), other.is_in(environment)), (found, false), "{environment:?}");
        }
    }
}
