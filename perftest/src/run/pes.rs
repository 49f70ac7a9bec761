//! The PEs of a job, wherever they run: on this machine (`local`) or on hosts reached by ssh (`remote`).

use std::fmt;
use std::io;
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use symrail::bootstrap::rendezvous::Server;

use super::ending::Ending;
use super::job::LaunchError;

/// A PE that has been started.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) pe: u32,
    pub(super) pid: Pid,
    /// Its host, unless it runs here.
    pub(super) host: Option<String>,
    pub(super) ending: Option<Ending>,
    /// It was ending before it could know that the job is broken.
    pub(super) unprompted: bool,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PE {}", self.pe)?;
        self.host.as_ref().map_or(Ok(()), |host| write!(f, " on {host}"))?;
        write!(f, " (pid {})", self.pid)
    }
}

/// The launcher's loop uses these.
pub(super) trait Pes {
    /// Starts some of the remaining PEs.
    fn start_some(&mut self, server: &Server) -> Result<(), LaunchError>;
    /// Whether PEs remain to be started.
    fn starts(&self) -> bool;
    /// Starts no more.
    fn start_no_more(&mut self);
    /// Whether no PE remains to be started, and none runs.
    fn over(&self) -> bool;
    /// The number of running PEs.
    fn running(&self) -> usize;
    /// A PE that has been started.
    fn get(&self, pe: u32) -> Option<Process>;
    /// The PEs that have failed.
    fn failed(&self) -> Vec<Process>;
    /// Sends a signal to the groups of all running PEs.
    fn signal_all(&mut self, signal: Signal);
    /// Whether all ends that had begun when this was called first, since it last returned true, have been taken. False
    /// until then.
    fn settles(&mut self) -> bool;
    /// The system has reported that a process has ended, perhaps several.
    fn note_end_of(&mut self, pid: Pid);
    /// When [`Pes::take_ended`] has something to do.
    fn due(&self) -> Option<Instant>;
    /// The PEs that have ended since the last call.
    fn take_ended(&mut self) -> Vec<u32>;
    /// Leaves nothing behind, and waits until the PEs' output is written. Returns why output was lost, if any was.
    fn finish(&mut self) -> Option<io::Error>;
}
