//! Starting one PE: what happens between fork and exec.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid, pipe2, write};
use symrail::Settings;
use symrail::bootstrap::rendezvous::Secret;

use super::job::{Job, LaunchError};
use super::job_id;

/// What PEs get from the launcher besides their environment.
pub(super) struct Inheritance {
    /// What was blocked before the launcher took its signals.
    pub(super) signals: SigSet,
    /// How many descriptors a process may have, before the launcher allowed itself more.
    pub(super) files: Option<Files>,
    /// The misspelt variables that the launcher has reported.
    pub(super) reported: String,
    /// The ids of the job and of those around it.
    pub(super) jobs: String,
}

/// A limit on descriptors: the one in force, and how far it may be raised.
#[derive(Clone, Copy)]
pub(super) struct Files {
    soft: rlim_t,
    hard: rlim_t,
}

impl Files {
    /// Lets this process have as many descriptors as it may: it needs one for each PE, three with `--prefix`. Returns
    /// the limit before.
    pub(super) fn raise() -> Option<Files> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok().map(|()| Files { soft, hard })
    }
}

/// The PEs' standard streams.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// What PE 0 reads; the others read nothing.
    pub(super) input: Input,
    /// Whether output comes by pipes, and does not go where this process's goes.
    pub(super) piped: bool,
}

/// Where PE 0's standard input comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// It has none.
    Nothing,
    /// It is this process's.
    Inherited,
    /// It comes by a pipe.
    Piped,
}

/// Starts PE `pe`. It dies when the calling thread does, so the caller stays until the job is over.
pub(super) fn spawn(
    job: &Job,
    pe: u32,
    (service, secret): (SocketAddr, &Secret),
    cores: Option<CpuSet>,
    inheritance: &Inheritance,
    streams: Streams,
) -> Result<Child, LaunchError> {
    let secret = secret_pipe(secret)?;
    let mut command = Command::new(&job.program);
    command.args(&job.args).envs(job.variables(pe, service, secret.as_raw_fd(), Settings::is_set));
    command.env(Settings::REPORTED, &inheritance.reported).env(job_id::JOBS, &inheritance.jobs);
    command.stdin(match streams.input {
        Input::Inherited if pe == 0 => Stdio::inherit(),
        Input::Piped if pe == 0 => Stdio::piped(),
        _ => Stdio::null(),
    });
    if streams.piped {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // A group of its own: what the PE starts can be ended with it, and a terminal's Ctrl-C comes through the launcher
    // only.
    command.process_group(0);
    let launcher = getpid();
    let (signals, files) = (inheritance.signals, inheritance.files);
    let prepare = move || {
        prepare(launcher, &signals, files)?;
        prepare_pe(&secret, cores.as_ref())
    };
    // SAFETY: the closure runs in the forked child and makes system calls only: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
    command.spawn().map_err(|reason| LaunchError::Start {
        pe,
        host: None,
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

/// Runs in the child before exec: it dies with the launcher, and has the signals and limits that the launcher had.
pub(super) fn prepare(launcher: Pid, signals: &SigSet, files: Option<Files>) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // The launcher may have died before that took effect.
    if getppid() != launcher {
        return Err(io::Error::from_raw_os_error(libc::ECHILD));
    }
    // The launcher blocks the signals that it passes on, and a blocked signal stays blocked over exec.
    signals.thread_set_mask()?;
    if let Some(Files { soft, hard }) = files {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    Ok(())
}

/// What only PEs get.
fn prepare_pe(secret: &OwnedFd, cores: Option<&CpuSet>) -> io::Result<()> {
    fcntl(secret, FcntlArg::F_SETFD(FdFlag::empty()))?;
    if let Some(cores) = cores {
        sched_setaffinity(Pid::from_raw(0), cores)?;
    }
    Ok(())
}
