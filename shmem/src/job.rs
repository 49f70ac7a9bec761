//! The job, as this PE knows it: who it is, who the others are and where they run, and what all have agreed on.

use std::sync::{Arc, Mutex, OnceLock};

use symrail_transport::Pe;
use symrail_transport::env::Settings;

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Result};
use crate::interrupt::GoOn;
use crate::process::Process;
use crate::team::group::Group;

/// What a PE knows of its job.
pub(crate) struct Job {
    pub me: Pe,
    pub n_pes: u32,
    /// The process that has joined.
    pub process: Process,
    /// NICs perform all AMOs and signals; agreed by all PEs.
    pub native_amo: bool,
    /// The first PE of each PE's host; one that nobody may map is by itself.
    pub hosts: Arc<[Pe]>,
    pub settings: Settings,
    pub bootstrap: Arc<Mutex<Box<dyn Bootstrap>>>,
    /// What may end this PE's waits, those on the wire too.
    pub interrupt: Arc<OnceLock<GoOn>>,
}

impl Job {
    /// Refuses to do anything in a process that was forked from the one that has joined.
    #[inline]
    pub fn here(&self) -> Result<()> {
        if self.process.is_here() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::Forked { pe: self.me, joined: self.process.pid(), here: std::process::id() }
    }

    /// All PEs.
    pub fn everybody(&self) -> Group {
        Group::world(self.me, self.n_pes)
    }
}
