//! A process that outlives the launcher, to end what the launcher can no longer end.
//!
//! The kernel kills a PE when the launcher dies, but not what the PE has started: with a shell between, the program
//! itself would run on. So the launcher tells the guard of every process group that it starts. When the connection
//! between them ends without a word, the launcher is gone, and the guard kills those groups, and
//! whatever else carries the job's id.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, setsid};

use super::job::LaunchError;
use super::job_id::JobId;

/// In place of a group: the job is over, and nothing is left to kill.
const OVER: i32 = 0;

/// The launcher's end.
pub(super) struct Guard(UnixStream);

impl Guard {
    /// Starts the guard. It is not a child of the launcher, so that the launcher's children are PEs only.
    pub(super) fn start(job_id: &JobId) -> Result<Guard, LaunchError> {
        let system = |reason| LaunchError::System { what: "starting the process that outlives this one", reason };
        let from = |error: std::io::Error| error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        let (ours, theirs) = UnixStream::pair().map_err(|error| system(from(error)))?;
        // SAFETY: the child calls what `become_guard` says, and never returns from here.
        match unsafe { fork() }.map_err(system)? {
            ForkResult::Child => {
                // SAFETY: as above; this child's only purpose is that its own child has no parent that waits.
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
        // A guard that somebody has killed is done without.
        let _ = (&self.0).write_all(&group.as_raw().to_ne_bytes());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = (&self.0).write_all(&OVER.to_ne_bytes());
        // Until the guard is gone too, so that nothing of a job outlives it.
        let _ = (&self.0).read(&mut [0]);
    }
}

/// The guard's life. The process was forked from one with a single thread, so all functions may be called.
fn become_guard(connection: RawFd, job_id: &JobId) -> ! {
    // No terminal's signals, and none of anybody else's but SIGKILL.
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

/// Closes everything but the connection: nobody must wait for the guard's end of a pipe that the launcher has
/// inherited.
fn alone_with(connection: RawFd) -> UnixStream {
    use std::os::fd::FromRawFd;
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        (0..3).for_each(|fd| {
            // SAFETY: the standard streams of this process, which nothing here uses.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        });
    }
    let (below, above) = (connection.unsigned_abs() - 1, connection.unsigned_abs() + 1);
    // SAFETY: nobody in this process uses any of them again: it never returns to where they are owned.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, below, 0_u32);
        libc::syscall(libc::SYS_close_range, above, u32::MAX, 0_u32);
        UnixStream::from_raw_fd(connection)
    }
}

/// Ends this process without running anything of the launcher's.
fn exit() -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(0) }
}
