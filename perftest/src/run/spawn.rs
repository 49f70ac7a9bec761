//! Starts one PE: the steps between fork and exec.

use std::io;
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
use symrail::bootstrap::rendezvous::{Address, Secret};

use super::job::{Job, LaunchError};
use super::job_id;

/// State that PEs inherit from the launcher besides their environment.
pub(super) struct Inheritance {
    /// The signals that were blocked before the launcher took its signals.
    pub(super) signals: SigSet,
    /// The limit on descriptors before the launcher raised its own.
    pub(super) files: Option<Files>,
    /// The misspelt variables that the launcher has reported.
    pub(super) reported: String,
    /// The ids of the job and of those around it.
    pub(super) jobs: String,
}

/// A limit on descriptors: the one in force, and the highest to which it may be raised.
#[derive(Clone, Copy)]
pub(super) struct Files {
    soft: rlim_t,
    hard: rlim_t,
}

impl Files {
    /// Raises this process's limit on descriptors as far as allowed: it needs one for each PE, three with `--prefix`.
    /// Returns the limit before.
    pub(super) fn raise() -> Option<Files> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok().map(|()| Files { soft, hard })
    }
}

/// The PEs' standard streams.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// PE 0's input; the others read nothing.
    pub(super) input: Input,
    /// Whether output passes through pipes, instead of going to this process's output.
    pub(super) piped: bool,
}

/// The source of PE 0's standard input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// It has none.
    Nothing,
    /// This process's standard input.
    Inherited,
    /// A pipe.
    Piped,
}

/// Starts PE `pe`. It dies when the calling thread does, so the caller stays until the job is over.
pub(super) fn spawn(
    job: &Job,
    pe: u32,
    (service, secret): (Address, &Secret),
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
    // Each PE has its own group: a signal to it also ends processes that the PE starts, and a terminal's Ctrl-C arrives
    // through the launcher only.
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

/// A pipe that holds the secret and then ends. It is closed on exec, except in the PE that it is for.
fn secret_pipe(secret: &Secret) -> Result<OwnedFd, LaunchError> {
    let system = |reason| LaunchError::System { what: "making a pipe for the secret", reason };
    let (read, written) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    // An empty pipe accepts this much at once.
    write(&written, secret.bytes()).map_err(system)?;
    Ok(read)
}

/// Runs in the child before exec: makes it die with the launcher, and restores the signals and limits that the launcher
/// had.
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

/// Preparations that only PEs get.
fn prepare_pe(secret: &OwnedFd, cores: Option<&CpuSet>) -> io::Result<()> {
    fcntl(secret, FcntlArg::F_SETFD(FdFlag::empty()))?;
    if let Some(cores) = cores {
        sched_setaffinity(Pid::from_raw(0), cores)?;
    }
    Ok(())
}
