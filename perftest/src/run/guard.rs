//! A process that outlives the launcher, to end processes that the launcher can no longer end.
//!
//! The kernel kills a PE when the launcher dies, but not the processes that the PE has started: behind a shell, the
//! program itself would run on. So the launcher sends the guard every process group that it starts. If the connection
//! between them ends without a farewell, the launcher is gone, and the guard kills those groups, and every other
//! process with the job's id.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, setsid};

use super::job::LaunchError;
use super::job_id::JobId;

/// Sent in place of a group: the job is over, and nothing is left to kill.
const OVER: i32 = 0;

/// The launcher's end.
pub(super) struct Guard(UnixStream);

impl Guard {
    /// Starts the guard. It is no child of the launcher, so that the launcher's children are PEs only.
    pub(super) fn start(job_id: &JobId) -> Result<Guard, LaunchError> {
        let system = |reason| LaunchError::System { what: "starting the process that outlives this one", reason };
        let from = |error: std::io::Error| error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        let (ours, theirs) = UnixStream::pair().map_err(|error| system(from(error)))?;
        // SAFETY: the child only runs `become_guard`, and never returns from here.
        match unsafe { fork() }.map_err(system)? {
            ForkResult::Child => {
                // SAFETY: as above; this child only exists so that its own child has no parent that waits.
                match unsafe { fork() } {
                    Ok(ForkResult::Child) => become_guard(theirs.into_raw_fd(), job_id),
                    Ok(ForkResult::Parent { .. }) | Err(_) => exit(),
                }
            }
            ForkResult::Parent { child } => {
                let _ = waitpid(child, None);
                Ok(Guard(ours))
            }
        }
    }

    /// From now on the group dies with the launcher.
    pub(super) fn watch(&self, group: Pid) {
        // If the guard has been killed, the launcher continues without it.
        let _ = (&self.0).write_all(&group.as_raw().to_ne_bytes());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = (&self.0).write_all(&OVER.to_ne_bytes());
        // Waits until the guard is gone too, so that nothing of a job outlives it.
        let _ = (&self.0).read(&mut [0]);
    }
}

/// The guard's life. The process was forked from one with a single thread, so it may call any function.
fn become_guard(connection: RawFd, job_id: &JobId) -> ! {
    // The guard gets no signals from terminals, and blocks all others but SIGKILL.
    let _ = setsid();
    let _ = SigSet::all().thread_block();
    let _ = nix::sys::prctl::set_name(c"symrail-guard");
    let _ = std::env::set_current_dir("/");
    let connection = alone_with(connection);
    let mut groups = Vec::new();
    let mut word = [0; 4];
    loop {
        match (&connection).read_exact(&mut word).map(|()| i32::from_ne_bytes(word)) {
            Ok(OVER) => exit(),
            Ok(group) => groups.push(Pid::from_raw(group)),
            Err(_) => break,
        }
    }
    for group in groups {
        let _ = killpg(group, Signal::SIGKILL);
    }
    job_id.kill_all();
    exit()
}

/// Closes everything but the connection: no process must wait for the guard's end of a pipe that the launcher has
/// inherited.
fn alone_with(connection: RawFd) -> UnixStream {
    use std::os::fd::FromRawFd;
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        (0..3).for_each(|fd| {
            // SAFETY: the standard streams of this process, which no code here uses.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        });
    }
    let (below, above) = (connection.unsigned_abs() - 1, connection.unsigned_abs() + 1);
    // SAFETY: no code in this process uses any of them again: it never returns to their owners.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, below, 0_u32);
        libc::syscall(libc::SYS_close_range, above, u32::MAX, 0_u32);
        UnixStream::from_raw_fd(connection)
    }
}

/// Ends this process without running any of the launcher's destructors.
fn exit() -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(0) }
}
