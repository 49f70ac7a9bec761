//! The signals that the launcher reads as events.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::job::LaunchError;

/// Signals that request the end of the job.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Signals that are passed on, whatever they mean to the program.
const OTHERS: [Signal; 4] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGTSTP, Signal::SIGCONT];

/// Whether a signal requests the end of the job.
pub(super) fn asks_for_the_end(signal: Signal) -> bool {
    ENDING.contains(&signal)
}

/// The signals that are read as events. Drop restores their previous effect.
pub(super) struct Signals {
    pub(super) fd: SignalFd,
    /// The signals that were blocked before, for the PEs.
    pub(super) before: SigSet,
}

impl Signals {
    /// Takes over the signals that are passed on, except those that this process was started to ignore: the PEs ignore
    /// them too.
    pub(super) fn take() -> Result<Signals, LaunchError> {
        let ignored = ignored();
        Signals::of(ENDING.into_iter().chain(OTHERS).filter(|signal| !is_in(ignored, *signal)))
    }

    /// Takes over the signal that reports the ends of processes, and no other.
    pub(super) fn of_children() -> Result<Signals, LaunchError> {
        Signals::of([])
    }

    fn of(signals: impl IntoIterator<Item = Signal>) -> Result<Signals, LaunchError> {
        let system = |reason: Errno| LaunchError::System { what: "taking over signals", reason };
        let set: SigSet = signals.into_iter().chain([Signal::SIGCHLD]).collect();
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(system)?;
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(system)?;
        Ok(Signals { fd, before })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Signals that arrived while the job was ending were meant for the job.
        while let Ok(Some(_)) = self.fd.read_signal() {}
        let _ = self.before.thread_set_mask();
    }
}

/// The signals that this process ignores, as the kernel reports them: signal 1 is bit 0.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask >> (signal as i32 - 1) & 1 == 1
}
