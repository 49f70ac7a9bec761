//! One PE of a running job: its parts, and queries about it.
//!
//! Its methods only call the parts, each of which gets the data that it needs.
//!
//! | file | methods |
//! |---|---|
//! | here | queries about the PE and its rails |
//! | `memory` | the heap's calls, and other symmetric memory |
//! | `operations` | puts, gets, AMOs and their order, on the default context and on others |
//! | `waits` | waiting for words |
//! | `together` | collectives of all PEs: barriers, teams, leaving |

mod memory;
mod operations;
mod together;
mod waits;

use std::sync::{Arc, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use symrail_core::clock;
use symrail_proxy::channel::Producer;
use symrail_transport::Pe;
use symrail_transport::endpoint::LaneCounters;
use symrail_transport::env::Settings;
use symrail_transport::rail::RailCaps;

use crate::alloc::Allocator;
use crate::devices::Devices;
use crate::error::Result;
use crate::observe::Observation;
use crate::observe::description::Description;
use crate::operations::{Communicator, Operations};
use crate::process::OfProcess;
use crate::sync::{Everybody, SyncArea};
use crate::team::World;
use crate::wire::MAX_CONTEXTS;

/// The longest that a PE which ends the job waits for its other threads' steps.
const LONGEST_ABORT: Duration = Duration::from_secs(1);

/// One PE of a running job.
///
/// [`Runtime::init`] makes it. It is a handle: clones are of the same PE, and threads share it by reference. Slices,
/// teams, contexts, devices and all other objects that are made from it keep the PE's memory mapped themselves, so they
/// may be dropped in any order. Dropping the last of them leaves the job without waiting for the others: PEs that wait
/// for this PE then get an error. [`Runtime::finalize`] leaves at once, whatever handles exist: from then on their
/// operations return [`Error::Finalized`](crate::Error::Finalized), and this PE's own elements stay accessible. All PEs
/// make the same collective calls (marked so) in the same order.
///
/// It belongs to the process that made it. In a child forked from that process, operations return errors
/// ([`Error::Forked`](crate::Error::Forked)), and so does [`Runtime::finalize`]; finalizing, dropping and `exit` do no
/// harm there, neither to the child nor to the job.
#[derive(Clone)]
pub struct Runtime(Arc<OfProcess<Parts>>);

/// The parts of a PE in the job that it has joined.
pub(crate) struct Parts {
    // Dropped before the endpoints, which it reads.
    pub observation: Observation,
    pub comm: Communicator,
    pub sync: SyncArea,
    /// Made at the first request for the team of all PEs.
    pub world: OnceLock<World>,
    pub devices: Devices,
}

impl Runtime {
    pub(crate) fn new(parts: Parts) -> Runtime {
        let process = parts.comm.job.membership.process();
        Runtime(Arc::new(OfProcess::new(parts, process)))
    }

    /// Whether both are handles of the same PE in the same job.
    #[inline]
    #[must_use]
    pub fn is_same(&self, other: &Runtime) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Fails if this PE has left ([`Runtime::finalize`]), or this process was forked from the one that joined.
    ///
    /// # Errors
    /// [`Error::Finalized`](crate::Error::Finalized), [`Error::Forked`](crate::Error::Forked).
    #[inline]
    pub fn check_joined(&self) -> Result<()> {
        self.comm().job.here()
    }

    #[inline]
    pub(crate) fn comm(&self) -> &Communicator {
        &self.0.comm
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.0.devices
    }

    /// All PEs, with their barriers.
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

    /// The operations on the context with a number ([`Context::number`](crate::Context::number)), for interfaces whose
    /// programs name contexts by numbers. Without such a context, those on the one that had the number or will have it.
    #[inline]
    #[must_use]
    pub fn operations_on(&self, number: usize) -> Option<Operations<'_>> {
        (number < MAX_CONTEXTS).then(|| Operations::on(&self.0.comm, number))
    }

    /// The number of contexts that a PE can have at a time; their numbers are below it.
    pub const MAX_CONTEXTS: usize = MAX_CONTEXTS;

    /// Whether this process was forked from the one that joined the job, and so takes no part in it.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !self.comm().job.membership.process().is_here()
    }

    /// This PE.
    #[inline]
    #[must_use]
    pub fn my_pe(&self) -> Pe {
        self.comm().job.me
    }

    /// The first PE that shares memory with a PE: the same for all PEs of a host, and on all PEs. A PE that no PE may
    /// map counts as its own host, and so does a PE that does not exist.
    #[must_use]
    pub fn first_on_host(&self, pe: Pe) -> Pe {
        self.comm().job.hosts.get(pe as usize).copied().unwrap_or(pe)
    }

    /// Records a phase of a program on the time line of `SYMRAIL_TRACE`; no effect without a trace.
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

    /// Whether CPUs perform AMOs and signals, so that those on mapped memory are performed here; otherwise NICs perform
    /// all of them.
    #[inline]
    #[must_use]
    pub fn cpu_performs_amos(&self) -> bool {
        self.comm().cpu_performs_amos()
    }

    /// The channels through which devices of this PE start operations: see `symrail_kernels::cpu`.
    #[must_use]
    pub fn producers(&self) -> &[Producer] {
        &self.devices().producers
    }

    /// The number of proxy threads that drive its rails, equal on all PEs that have a wire. 0 without one.
    #[must_use]
    pub fn proxy_threads(&self) -> usize {
        self.comm().wire.as_ref().map_or(0, |wire| wire.drivers().len())
    }

    /// The capabilities of the proxy threads' rails, in lane order; none without a wire.
    #[must_use]
    pub fn rails(&self) -> Vec<RailCaps> {
        let wire = self.comm().wire.as_ref();
        wire.map_or_else(|_| Vec::new(), |wire| wire.rails().to_vec())
    }

    /// A description of this PE, and of its path to each of the others with the reason.
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

    /// How many fences the proxy threads, by devices too, and the host endpoints were asked for.
    #[must_use]
    pub fn fences(&self) -> u64 {
        self.comm().wire.as_ref().map_or(0, |wire| wire.fences())
    }

    /// Ends the whole job with an exit code. Returns; the caller ends this process. A signal's handler may call it: if
    /// the thread that it interrupts takes part in a step of the bootstrap, the launcher learns of the end by that of
    /// this process.
    pub fn abort(&self, code: i32, why: &str) {
        if self.is_forked() {
            return; // the job does not belong to this process
        }
        let (since, bootstrap) = (clock::now(), &self.comm().job.bootstrap);
        while clock::since(since) < LONGEST_ABORT {
            match bootstrap.try_lock() {
                Ok(mut bootstrap) => return bootstrap.abort(code, why),
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner().abort(code, why),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}
