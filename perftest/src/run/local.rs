//! PEs on this machine: all of a job's, or those of an agent for a launcher on another host.

use std::io;
use std::ops::Range;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sched::CpuSet;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use symrail::bootstrap::rendezvous::{Address, Secret, Server};

use super::children::{Children, Unprompted};
use super::ending::Ending;
use super::guard::Guard;
use super::job::{Job, LaunchError};
use super::job_id::JobId;
use super::output::Carriers;
use super::pes::{Pes, Process};
use super::spawn::{Inheritance, Streams, spawn};

/// How long the last output may take.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The number of PEs that are started between two polls of everything else.
const TURN: u32 = 4;

/// Carries the output that a new PE writes to pipes, and the input that it reads from one.
pub(super) type Carry = Box<dyn FnMut(&mut Carriers, u32, &mut Child)>;

/// PEs of the job with consecutive numbers.
pub(super) struct Local {
    job: Job,
    /// The PEs to start; some have been started.
    pes: Range<u32>,
    cores: Vec<CpuSet>,
    inheritance: Inheritance,
    streams: Streams,
    carry: Carry,
    carriers: Carriers,
    children: Children,
    job_id: JobId,
    /// Dropped last: until then it can end processes that this one no longer can.
    guard: Guard,
}

impl Local {
    /// Starts none yet.
    pub(super) fn new(
        job: Job,
        pes: Range<u32>,
        (streams, carry): (Streams, Carry),
        (job_id, guard): (JobId, Guard),
        inheritance: Inheritance,
    ) -> Result<Local, LaunchError> {
        let cores = job.cores(pes.end - pes.start)?;
        let (carriers, children) = (Carriers::new(), Children::default());
        Ok(Local { job, pes, cores, inheritance, streams, carry, carriers, children, job_id, guard })
    }

    /// Starts some of the remaining PEs, and returns their numbers.
    pub(super) fn start(&mut self, service: (Address, &Secret)) -> Result<Range<u32>, LaunchError> {
        let new = self.started()..self.pes.end.min(self.started() + TURN);
        for pe in new.clone() {
            let cores = self.cores.get((pe - self.pes.start) as usize).copied();
            let mut child = spawn(&self.job, pe, service, cores, &self.inheritance, self.streams)?;
            (self.carry)(&mut self.carriers, pe, &mut child);
            self.guard.watch(self.children.add(child));
        }
        Ok(new)
    }

    /// For the thread that tells the PEs that the job is broken.
    pub(super) fn watched(&self) -> Unprompted {
        self.children.unprompted.clone()
    }

    /// The PEs that were ending when the PEs were told that the job is broken, or are ending now if that has not
    /// happened.
    pub(super) fn unprompted(&self) -> Vec<u32> {
        self.children.unprompted().into_iter().map(|index| self.pes.start + index).collect()
    }

    /// The first PE that has not been started.
    fn started(&self) -> u32 {
        self.pes.start + self.children.started()
    }
}

impl Pes for Local {
    fn start_some(&mut self, server: &Server) -> Result<(), LaunchError> {
        self.start((server.address(), server.secret())).map(drop)
    }

    fn starts(&self) -> bool {
        self.started() < self.pes.end
    }

    fn start_no_more(&mut self) {
        self.pes.end = self.started();
    }

    fn over(&self) -> bool {
        !self.starts() && self.running() == 0
    }

    fn running(&self) -> usize {
        self.children.running()
    }

    fn get(&self, pe: u32) -> Option<Process> {
        let child = self.children.get(pe.checked_sub(self.pes.start)?)?;
        let unprompted = self.children.unprompted.has(child.pid);
        Some(Process { pe, pid: child.pid, host: None, ending: child.ending, unprompted })
    }

    fn failed(&self) -> Vec<Process> {
        let all = (self.pes.start..self.started()).filter_map(|pe| self.get(pe));
        all.filter(|process| process.ending.is_some_and(Ending::failed)).collect()
    }

    fn signal_all(&mut self, signal: Signal) {
        self.children.signal_all(signal);
    }

    fn settles(&mut self) -> bool {
        !self.children.any_is_ending()
    }

    fn note_end_of(&mut self, pid: Pid) {
        self.children.note_end_of(pid);
    }

    fn due(&self) -> Option<Instant> {
        self.children.due()
    }

    fn take_ended(&mut self) -> Vec<u32> {
        let ended = self.children.take_ended();
        ended.into_iter().map(|index| self.pes.start + index).collect()
    }

    fn finish(&mut self) -> Option<io::Error> {
        drop(std::mem::take(&mut self.children));
        self.job_id.kill_all();
        std::mem::replace(&mut self.carriers, Carriers::new()).finish(LAST_WORDS)
    }
}

impl Drop for Local {
    /// Cleans up on every path out.
    fn drop(&mut self) {
        self.finish();
    }
}
