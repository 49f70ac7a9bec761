//! Starting one PE. The only unsafe code of the launcher: what happens between fork and exec.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid, pipe2, write};
use symrail::Settings;
use symrail::bootstrap::star::Secret;

use super::job::{Job, LaunchError};

/// Starts PE `pe` with `signals` blocked. It dies when the calling thread does, so the caller stays until the job is over.
pub(super) fn spawn(
    job: &Job,
    pe: u32,
    service: SocketAddr,
    secret: &Secret,
    cores: Option<CpuSet>,
    signals: SigSet,
) -> Result<Child, LaunchError> {
    let secret = secret_pipe(secret)?;
    let mut command = Command::new(&job.program);
    command.args(&job.args).envs(job.variables(pe, service, secret.as_raw_fd(), Settings::is_set));
    command.stdin(if pe == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() });
    if job.prefix {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // A group of its own: what the PE starts can be ended with it, and a terminal's Ctrl-C comes through the launcher only.
    command.process_group(0);
    let launcher = getpid();
    let prepare = move || prepare(launcher, &secret, cores.as_ref(), &signals);
    // SAFETY: the closure runs in the forked child and makes system calls only: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
    command.spawn().map_err(|reason| LaunchError::Start {
        pe,
        program: job.program.to_string_lossy().into_owned(),
        reason,
    })
}

/// A pipe that holds the secret and then ends. It is closed on exec, except by the PE that it is for.
fn secret_pipe(secret: &Secret) -> Result<OwnedFd, LaunchError> {
    let system = |reason| LaunchError::System { what: "making a pipe for the secret", reason };
    let (read, written) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    // An empty pipe takes this much at once.
    write(&written, secret.bytes()).map_err(system)?;
    Ok(read)
}

/// Runs in the child before exec.
fn prepare(launcher: Pid, secret: &OwnedFd, cores: Option<&CpuSet>, signals: &SigSet) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // The launcher may have died before that took effect.
    if getppid() != launcher {
        return Err(io::Error::from_raw_os_error(libc::ECHILD));
    }
    // The launcher blocks the signals that it passes on, and a blocked signal stays blocked over exec.
    signals.thread_set_mask()?;
    fcntl(secret, FcntlArg::F_SETFD(FdFlag::empty()))?;
    if let Some(cores) = cores {
        sched_setaffinity(Pid::from_raw(0), cores)?;
    }
    Ok(())
}
