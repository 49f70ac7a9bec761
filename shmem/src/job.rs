//! The job in this PE's view: its number, the other PEs and their hosts, and what all have agreed on.

use std::sync::{Arc, Mutex, OnceLock};

use symrail_transport::Pe;
use symrail_transport::env::Settings;

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Result};
use crate::interrupt::GoOn;
use crate::process::Membership;
use crate::team::group::Group;

/// A PE's data about its job.
pub(crate) struct Job {
    pub me: Pe,
    pub n_pes: u32,
    /// Whether this process takes part in the job.
    pub membership: Membership,
    /// NICs perform all AMOs and signals; all PEs agree on it.
    pub native_amo: bool,
    /// The first PE of each PE's host; a PE that no PE may map counts as its own host.
    pub hosts: Arc<[Pe]>,
    pub settings: Settings,
    pub bootstrap: Arc<Mutex<Box<dyn Bootstrap>>>,
    /// The check that may end this PE's waits, also those on the wire.
    pub interrupt: Arc<OnceLock<GoOn>>,
}

impl Job {
    /// Fails when this PE has left, and in a process that was forked from the one that joined.
    #[inline]
    pub fn here(&self) -> Result<()> {
        if self.membership.lasts() { Ok(()) } else { Err(self.not_here()) }
    }

    #[cold]
    fn not_here(&self) -> Error {
        let process = self.membership.process();
        if process.is_here() {
            return Error::Finalized { pe: self.me };
        }
        Error::Forked { pe: self.me, joined: process.pid(), here: std::process::id() }
    }

    /// All PEs.
    pub fn everybody(&self) -> Group {
        Group::world(self.me, self.n_pes)
    }

    /// This PE and another one, or this PE alone if it is that one.
    pub fn with_other(&self, other: Pe) -> Result<Group> {
        let (stride, size) = (i64::from(self.me) - i64::from(other), if other == self.me { 1 } else { 2 });
        let no_such_pe = || symrail_transport::Error::NoSuchPe { pe: other.into(), last: self.n_pes - 1 };
        Ok(Group::new(other.into(), stride, size, self.me, self.n_pes).ok_or_else(no_such_pe)?)
    }
}
