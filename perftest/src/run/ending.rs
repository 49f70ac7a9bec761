//! How a process ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ending {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal { number: i32, core: bool },
    /// Another call has reaped its status.
    Unknown,
    /// The connection to its host ended before it did, with this exit code of ssh.
    HostLost { ssh: i32 },
}

impl Ending {
    /// From a wait; `None` while the process runs.
    pub(super) fn from_wait(status: WaitStatus) -> Option<Ending> {
        match status {
            WaitStatus::Exited(_, code) => Some(Ending::Code(code)),
            WaitStatus::Signaled(_, signal, core) => Some(Ending::Signal { number: signal as i32, core }),
            _ => None,
        }
    }

    pub(super) fn from_status(status: ExitStatus) -> Ending {
        match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Code(code),
            (None, Some(number)) => Ending::Signal { number, core: status.core_dumped() },
            (None, None) => Ending::Unknown,
        }
    }

    pub(super) fn failed(self) -> bool {
        self != Ending::Code(0)
    }

    /// The exit code that a shell would use.
    pub(super) fn exit_code(self) -> i32 {
        match self {
            Ending::Code(code) => code,
            Ending::Signal { number, .. } => 128 + number,
            Ending::Unknown | Ending::HostLost { .. } => 1,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exited with code {code}"),
            Ending::Signal { number, core } => {
                write!(f, "was killed by signal {number}")?;
                if let Ok(signal) = Signal::try_from(*number) {
                    write!(f, " ({})", signal.as_str())?;
                }
                f.write_str(if *core { ", core dumped" } else { "" })
            }
            Ending::Unknown => f.write_str("ended in a way that nobody can tell any more"),
            Ending::HostLost { ssh } => {
                write!(
                    f,
                    "was lost with the connection to its host, as were the others there: ssh ended with code {ssh}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_told_as_shells_do() {
        let killed = Ending::Signal { number: 9, core: false };
        assert_eq!((killed.to_string().as_str(), killed.exit_code()), ("was killed by signal 9 (SIGKILL)", 137));
        assert_eq!(Ending::Signal { number: 40, core: true }.to_string(), "was killed by signal 40, core dumped");
        assert_eq!((Ending::Code(3).to_string().as_str(), Ending::Code(3).exit_code()), ("exited with code 3", 3));
        assert!(!Ending::Code(0).failed() && Ending::Unknown.failed() && Ending::Unknown.exit_code() != 0);
        assert_eq!(Ending::from_status(ExitStatus::from_raw(9)), killed);
        assert_eq!(Ending::from_status(ExitStatus::from_raw(3 << 8)), Ending::Code(3));
    }
}
