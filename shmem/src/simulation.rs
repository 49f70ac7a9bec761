//! PEs of a simulation: runtimes over a timed fabric, many in one thread.
//!
//! Endpoints, engine, target agent, heap, operations, teams and collectives are those of every PE. A simulated PE has
//! no proxy thread (a waiting thread drives the engine, and [`serve`] does when none waits), no channels for devices,
//! no mapped peers (PEs of a host use the fabric, which is fast there), and no figures for `symrail top`. Constant
//! tables that are the same on all PEs exist once.

use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use symrail_heap::{PeerMap, SymmetricHeap};
use symrail_proxy::{Engine, Proxy};
use symrail_transport::Pe;
use symrail_transport::backend::{Choice, Nics};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::Settings;
use symrail_transport::mock::timed::TimedFabric;
use symrail_transport::proxy_threads::Threads;

use crate::bootstrap::Bootstrap;
use crate::connection_info::{ConnectionInfo, Keys, OfThread};
use crate::devices::Devices;
use crate::directory::{self, Directory};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::observe::Observation;
use crate::operations::Communicator;
use crate::process::{Membership, Process, WipedOnFork};
use crate::program_data::ProgramData;
use crate::runtime::{Parts, Runtime};
use crate::space::Space;
use crate::sync::SyncArea;
use crate::team::group::Group;
use crate::wire::{ContextState, Contexts, EndpointOpener, Wire};

/// Constant data that all PEs of a simulated job share.
#[derive(Clone)]
pub struct SharedTables {
    directory: Arc<Directory>,
    /// The first PE of each PE's host.
    hosts: Arc<[Pe]>,
}

impl SharedTables {
    /// The tables of PEs with these connection infos ([`SimulatedPe::connection_info`]); `hosts` has the first PE of
    /// each one's host.
    ///
    /// # Errors
    /// As for joining: connection infos that are malformed, or differ where all PEs must agree.
    pub fn new(connection_infos: &[Vec<u8>], hosts: Arc<[Pe]>) -> Result<SharedTables> {
        ConnectionInfo::decode_all(connection_infos)?;
        // SAFETY: no code dereferences the address; only the id is kept.
        let first = unsafe { symrail_transport::region::Segment::new(0, 0, std::ptr::null_mut(), 0) };
        Ok(SharedTables { directory: Arc::new(Directory::new(connection_infos, 1, first)), hosts })
    }

    /// Bytes that a PE keeps for each PE of the job, if each PE has its own tables.
    #[must_use]
    pub fn bytes_each(&self) -> usize {
        self.directory.bytes_each() + size_of::<Pe>()
    }
}

/// A PE that has opened its endpoints and its heap, and knows no peers so far.
pub struct SimulatedPe {
    me: Pe,
    n_pes: u32,
    settings: Settings,
    policy: Policy,
    heap: SymmetricHeap,
    host: Endpoint,
    engine: Engine,
    keys: Keys,
}

impl SimulatedPe {
    /// Opens a PE whose heap is `bytes` at `memory`.
    ///
    /// # Safety
    /// The memory is all zeros, belongs to the PE alone and outlives it.
    ///
    /// # Errors
    /// As for joining.
    pub unsafe fn open(
        fabric: &TimedFabric,
        me: Pe,
        n_pes: u32,
        settings: &Settings,
        memory: NonNull<u8>,
        bytes: u64,
    ) -> Result<SimulatedPe> {
        let policy = Policy::new(settings, false);
        let mut host = Endpoint::new(Role::Host, me, n_pes, vec![fabric.open(me)], policy)?;
        let mut proxy = Endpoint::new(Role::Proxy, me, n_pes, vec![fabric.open(me)], policy)?;
        proxy.share_token(&host);
        let mut engine = Engine::new(proxy);
        // SAFETY: the caller's promise.
        let heap = unsafe { SymmetricHeap::over(me, settings, memory, bytes) }?;
        let mut keys = Keys::default();
        // SAFETY: as above.
        unsafe {
            host.register(heap.first_segment())?;
            keys.segment = engine.register(heap.first_segment())?;
        }
        Ok(SimulatedPe { me, n_pes, settings: settings.clone(), policy, heap, host, engine, keys })
    }

    /// Its connection info.
    #[must_use]
    pub fn connection_info(&self) -> Vec<u8> {
        let of_thread = OfThread { addresses: self.engine.addresses(), keys: self.keys.clone() };
        let (fabric, choice) = ("timed".to_owned(), choice(&self.settings));
        ConnectionInfo::new(&self.settings, &choice, fabric, self.host.addresses(), vec![of_thread]).encode()
    }

    /// Makes it a PE of a job. `bootstrap` only reports lost PEs.
    ///
    /// # Errors
    /// As for joining.
    pub fn join(self, tables: &SharedTables, bootstrap: Box<dyn Bootstrap>) -> Result<Runtime> {
        let SimulatedPe { me, n_pes, settings, policy, mut heap, mut host, mut engine, .. } = self;
        let directory = Arc::clone(&tables.directory);
        for endpoint in [&mut host, engine.endpoint()] {
            let of_thread = directory::OfThread { directory: Arc::clone(&directory), thread: 0 };
            endpoint.set_directory(Arc::new(of_thread));
        }
        let system = |e: std::io::Error| Error::System { what: "making an engine's driver", reason: e.to_string() };
        let proxy = Proxy::without_thread(engine).map_err(system)?;
        let segments = heap.segments().to_vec();
        let committed = segments.iter().map(|segment| segment.bytes() as usize).sum();
        let choice = choice(&settings);
        let opener = EndpointOpener { choice, settings: settings.clone(), policy, me, n_pes, directory, segments };
        let wire = Wire::new(host, opener, vec![proxy], None);
        let peers = PeerMap::new(me, n_pes, heap.handle().clone(), heap.base())?;
        let (hosts, bases) = (Arc::clone(&tables.hosts), peers.bases_now());
        // The allocator does not count the bases.
        symrail_core::simulation::count(size_of_val(&*bases) as i64);
        let (sync, board) = SyncArea::allocate(&mut heap, Group::world(me, n_pes), &hosts)?;
        let space = Space {
            base: heap.base().as_ptr().expose_provenance(),
            reserved: heap.capacity() as usize,
            committed: AtomicUsize::new(committed),
            growth_refused: OnceLock::new(),
            bases: WipedOnFork::new(&bases)?,
            all_mapped: false,
            data: ProgramData::default(),
            pinned: None,
            peers,
            heap: Mutex::new(heap),
            staged: None,
        };
        let job = Job {
            me,
            n_pes,
            membership: Membership::of(Process::this()),
            native_amo: false,
            hosts: Arc::clone(&hosts),
            settings,
            bootstrap: Arc::new(Mutex::new(bootstrap)),
            interrupt: Arc::clone(&wire.interrupt),
        };
        let (context, contexts) = (ContextState::first(&wire), Contexts::default());
        let comm = Communicator { wire: Ok(wire), context, contexts, board, job, space };
        let devices = Devices { producers: Vec::new(), atomics: false, hosts };
        Ok(Runtime::new(Parts {
            observation: Observation::new(None, None),
            comm,
            sync,
            world: OnceLock::new(),
            devices,
        }))
    }
}

/// Bytes of a heap that the runtime uses itself in a job of `n_pes` PEs.
#[must_use]
pub fn own_bytes(n_pes: u32) -> usize {
    crate::team::area::own_bytes(n_pes)
}

/// Does one round of a PE's proxy thread.
pub fn serve(runtime: &Runtime) {
    runtime.operations().progress();
}

/// No NICs; one engine.
fn choice(settings: &Settings) -> Choice {
    Choice {
        nics: Nics::Ibverbs(Vec::new()),
        ib_mode: None,
        threads: Threads::choose(settings, 1, 1, false),
        proxy_cores: Vec::new(),
        cores_each: 1,
        reasons: Vec::new(),
        left_out: None,
        unknown: None,
    }
}
