//! One PE of a running job: the parts that it is made of, and what it tells about itself.
//!
//! Its methods only hand on to the parts, each of which is given what it needs.
//!
//! | file | what users call |
//! |---|---|
//! | here | questions about the PE and its rails |
//! | `memory` | the heap's calls, and what is symmetric |
//! | `operations` | puts, gets, AMOs and the order between them, on the default context and on others |
//! | `waits` | waiting for words |
//! | `together` | what all PEs do together: barriers, teams, leaving |

mod memory;
mod operations;
mod together;
mod waits;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use symrail_core::lock;
use symrail_proxy::channel::Producer;
use symrail_transport::Pe;
use symrail_transport::endpoint::LaneCounters;
use symrail_transport::env::Settings;
use symrail_transport::rail::RailCaps;

use crate::alloc::Allocator;
use crate::devices::Devices;
use crate::observe::Observation;
use crate::observe::description::Description;
use crate::operations::{Communicator, Operations};
use crate::process::OfProcess;
use crate::sync::{Everybody, SyncArea};
use crate::team::World;

/// One PE of a running job.
///
/// Made by [`Runtime::init`] and shared by reference between threads; dropping it leaves the job, without waiting for
/// the others: those who wait for this PE are then told that it has left. All PEs make the same collective calls
/// (marked so) in the same order.
///
/// It belongs to the process that has made it. In a child that is forked from that one, operations are errors
/// ([`Error::Forked`](crate::Error::Forked)), and so is [`Runtime::finalize`]; that, dropping it and `exit` do no harm
/// there, neither to the child nor to the job.
pub struct Runtime(OfProcess<Parts>);

/// What a PE has of the job that it has joined.
pub(crate) struct Parts {
    // Before the endpoints, which it reads.
    pub observation: Observation,
    pub comm: Communicator,
    pub sync: SyncArea,
    /// Made when the team of all PEs is first asked for.
    pub world: OnceLock<World>,
    pub devices: Devices,
}

impl Runtime {
    pub(crate) fn new(parts: Parts) -> Runtime {
        let process = parts.comm.job.process;
        Runtime(OfProcess::new(parts, process))
    }

    #[inline]
    pub(crate) fn comm(&self) -> &Communicator {
        &self.0.comm
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.0.devices
    }

    /// All PEs, and their barriers.
    pub(crate) fn everybody(&self) -> Everybody<'_> {
        Everybody { ops: self.operations(), area: &self.0.sync }
    }

    pub(crate) fn allocator(&self) -> Allocator<'_> {
        Allocator::new(self.everybody())
    }

    /// The operations on the default context, which are the runtime's own.
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations::of(&self.0.comm)
    }

    /// Whether this process was forked from the one that has joined the job, and so takes no part in it.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !self.comm().job.process.is_here()
    }

    /// This PE.
    #[inline]
    #[must_use]
    pub fn my_pe(&self) -> Pe {
        self.comm().job.me
    }

    /// The first PE that shares memory with a PE: the same for all PEs of a host, and on all PEs. A PE that nobody may
    /// map is by itself, and so is one that does not exist.
    #[must_use]
    pub fn first_on_host(&self, pe: Pe) -> Pe {
        self.comm().job.hosts.get(pe as usize).copied().unwrap_or(pe)
    }

    /// Notes a phase of a program on the time line of `SYMRAIL_TRACE`; nothing without a trace.
    pub fn trace_phase(&self, name: &'static str, begun: Instant, took: Duration) {
        self.0.observation.phase(name, begun, took);
    }

    /// The number of PEs in the job.
    #[inline]
    #[must_use]
    pub fn n_pes(&self) -> u32 {
        self.comm().job.n_pes
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.comm().job.settings
    }

    /// Whether CPUs perform AMOs and signals, so that those on mapped memory are done here; else NICs perform all of
    /// them.
    #[inline]
    #[must_use]
    pub fn cpu_performs_amos(&self) -> bool {
        self.comm().cpu_performs_amos()
    }

    /// What devices of this PE need to start operations: see `symrail_kernels::cpu`.
    #[must_use]
    pub fn producers(&self) -> &[Producer] {
        &self.devices().producers
    }

    /// How many proxy threads drive its rails: as many on all PEs that have a wire. 0 without one.
    #[must_use]
    pub fn proxy_threads(&self) -> usize {
        self.comm().wire.as_ref().map_or(0, |wire| wire.drivers().len())
    }

    /// What the proxy threads' rails are and can do, in lane order; none without a wire.
    #[must_use]
    pub fn rails(&self) -> Vec<RailCaps> {
        let wire = self.comm().wire.as_ref();
        wire.map_or_else(|_| Vec::new(), |wire| wire.rails().to_vec())
    }

    /// What this PE has, and how it reaches each of the others and why.
    #[must_use]
    pub fn description(&self) -> Description {
        Description::of(self.comm())
    }

    /// Counters of the proxy threads' lanes, one thread after the other, then of the host endpoints'.
    #[must_use]
    pub fn counters(&self) -> Vec<LaneCounters> {
        let Ok(wire) = &self.comm().wire else { return Vec::new() };
        wire.counters()
    }

    /// Ends the whole job with an exit code. Returns; the caller ends this process.
    pub fn abort(&self, code: i32, why: &str) {
        if self.is_forked() {
            return; // it is not this process's job
        }
        lock(&self.comm().job.bootstrap).abort(code, why);
    }
}
