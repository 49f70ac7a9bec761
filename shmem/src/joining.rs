//! Joining a job: what a PE opens, and what it exchanges with the others, in order.
//!
//! There are three exchanges: where all PEs run (which determines the rails), all PEs' addresses and keys, and which
//! heaps all PEs' kernels access. A PE that fails on the way takes part to the end, with a connection info that reports
//! the failure: other PEs must not wait for it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use symrail_core::lock;
use symrail_heap::{HeapHandle, PeerMap, Reach, SymmetricHeap};
use symrail_proxy::channel::{Channel, DEFAULT_REPLIES, DEFAULT_SLOTS, Producer};
use symrail_proxy::stage::WordLocks;
use symrail_proxy::{Engine, Options, Proxy};
use symrail_transport::Pe;
use symrail_transport::backend::{self, Choice, HostPes};
use symrail_transport::endpoint::{Endpoint, Policy, Role};
use symrail_transport::env::{HeapKind, ProxyPoll, Settings};
use symrail_transport::proxy_threads::Share;
use symrail_transport::region::Segment;

use crate::bootstrap::{self, Bootstrap};
use crate::connection_info::{ConnectionInfo, Hello, Keys, OfThread};
use crate::devices::Devices;
use crate::direct;
use crate::directory::{self, Directory};
use crate::error::{Error, Result};
use crate::gpu::pinned::Pinned;
use crate::gpu::reach;
use crate::gpu::shared::{Shared, gpu_of};
use crate::job::Job;
use crate::observe::console::on_stderr;
use crate::observe::figures::Figures;
use crate::observe::{Observation, Reporter, Trace};
use crate::operations::Communicator;
use crate::process::{Membership, Process, WipedOnFork};
use crate::program_data::ProgramData;
use crate::runtime::{Parts, Runtime};
use crate::space::Space;
use crate::staged::Staged;
use crate::stages::Stages;
use crate::sync::SyncArea;
use crate::team::group::Group;
use crate::wire::{ContextState, Contexts, EndpointOpener, Wire};

/// The first PE that shares memory with each PE: a table on which all PEs agree, whatever each could really map.
fn hosts(handles: &[HeapHandle]) -> Box<[Pe]> {
    let mut firsts: Vec<(&HeapHandle, Pe)> = Vec::new();
    let mut first_of = |handle, pe| match firsts.iter().find(|(first, _)| first.may_share(handle)) {
        Some(&(_, first)) => first,
        None => {
            firsts.push((handle, pe));
            pe
        }
    };
    handles.iter().zip(0..).map(|(handle, pe)| first_of(handle, pe)).collect()
}

/// The parts of a wire that exist before the peers are known.
struct Opened {
    host: Endpoint,
    /// One for each proxy thread, with the keys of the memory that it has registered.
    engines: Vec<(Engine, Keys)>,
    producers: Vec<Producer>,
}

impl Runtime {
    /// Joins the job that this process was started in, with the settings of the environment. Collective.
    ///
    /// Call it early, before the program starts other threads, unless `symrail run` starts the program. libfabric reads
    /// some settings from the environment only. If several threads may read the environment, it is not changed, and
    /// libfabric keeps its own defaults.
    ///
    /// # Errors
    /// A setting that is not accepted, a peer that cannot be reached, PEs that do not agree, a peer that does not
    /// arrive.
    pub fn init() -> Result<Runtime> {
        on_stderr(|| {
            let mut stages = Stages::begin();
            let settings = Settings::from_env()?;
            let bootstrap = bootstrap::open(&settings)?;
            stages.ended("finding the job");
            Self::join_by(settings, bootstrap, stages)
        })
    }

    /// Joins a job over a bootstrap that the caller has opened. Collective.
    ///
    /// # Errors
    /// As for [`Runtime::init`].
    pub fn join(settings: Settings, bootstrap: Box<dyn Bootstrap>) -> Result<Runtime> {
        on_stderr(|| Self::join_by(settings, bootstrap, Stages::begin()))
    }

    fn join_by(settings: Settings, mut bootstrap: Box<dyn Bootstrap>, mut stages: Stages) -> Result<Runtime> {
        let (me, n_pes) = (bootstrap.pe(), bootstrap.n_pes());
        let mut staged = Staged::new(me, n_pes, &settings)?;
        // The runtime's own memory is host memory in any case.
        let mut own = settings.clone();
        own.heap_kind = HeapKind::Host;
        let pinned_for = if settings.heap_kind == HeapKind::Pinned { Some(gpu_of(me)?) } else { None };
        let heap = match pinned_for {
            // A GPU's kernels learn the heap's mapping only once, so the heap has its full size from the start.
            Some(_) => SymmetricHeap::with_growth(me, &own, settings.heap_size as u64)?,
            None => SymmetricHeap::new(me, &own)?,
        };
        let first = heap.first_segment();
        let gpu = staged.as_ref().and_then(Staged::shared).map(Shared::gpu).or(pinned_for.as_ref());
        let gpu = gpu.and_then(|gpu| gpu.pci());
        let hello = Hello::new(heap.handle(), gpu);
        stages.ended("heap");
        let hellos = stages.step("who is where", &mut *bootstrap, |all| all.allgather(&hello.encode()))?;
        let (handles, host) = Hello::decode_all(&hellos, me)?;
        drop(hellos);
        let own_gpu = host.gpus.get(host.local_pe);
        let sharers = host.gpus.iter().filter(|&gpu| Some(gpu) == own_gpu).count() as u32;
        let choice = choose(&settings, me, &host);
        let mut threads = choice.as_ref().map_or(1, |choice| choice.threads.number);
        let (opened, mine, encoded, connection_infos) = loop {
            let opened = choice.as_ref().map_err(Error::clone).and_then(|choice| {
                let opened = open(&settings, choice, me, n_pes, threads)?;
                register(opened, first, staged.as_ref(), &settings)
            });
            let mine = connection_info_of(&opened, choice.as_ref().ok(), &settings, staged.as_ref());
            stages.ended("rails");
            let encoded = stages.step("exchange of addresses", &mut *bootstrap, |all| all.allgather(&mine.encode()))?;
            let connection_infos = ConnectionInfo::decode_all(&encoded)?;
            let Some((fewer, why)) = ConnectionInfo::fewer_threads(&connection_infos) else {
                break (opened, mine, encoded, connection_infos);
            };
            tracing::info!("{fewer} of {threads} proxy threads: {why}");
            threads = fewer;
        };
        let directory = Arc::new(Directory::new(&encoded, threads, first));
        drop(encoded);
        let (peers, unmapped) = map_peers(me, n_pes, &heap, &handles)?;
        if let Some(staged) = &mut staged {
            let connection_infos: Vec<_> =
                connection_infos.iter().map(|connection_info| connection_info.device.clone()).collect();
            staged.open(me, &connection_infos, Duration::from_secs(settings.timeout_s))?;
        }
        stages.ended("mapping");
        let wire = opened
            .and_then(|opened| connect(opened, choice?, &settings, me, &connection_infos, staged.as_ref(), directory));
        let (mut wire, producers) = unless_needed(wire, staged.is_some(), unmapped)?;
        stages.ended("connecting");
        let interrupt = Arc::default();
        if let Ok(wire) = &mut wire {
            wire.interrupt = Arc::clone(&interrupt);
        }
        let trace = begin_trace(&settings, me, wire.as_ref().ok());
        let (base, bases) = (heap.base().as_ptr().expose_provenance(), peers.bases_now());
        let committed = first.bytes() as usize;
        let pinned = pinned_for.map(|gpu| Pinned::new(&gpu, &bases, committed)).transpose()?;
        // No PE may be written to before all proxies run.
        let hosts: Arc<[Pe]> = hosts(&handles).into();
        let direct = connection_infos.iter().all(ConnectionInfo::is_direct);
        if let Some(staged) = &mut staged {
            staged.direct = direct;
            staged.sharers = sharers;
        }
        let mine_reach = [reach::say(me, &hosts, &bases, staged.as_ref(), direct)];
        let said = stages.step("reach of devices", &mut *bootstrap, |all| all.allgather(&mine_reach))?;
        let (device_atomics, device_hosts) = reach::agree(&said, &hosts);
        let device_hosts = if device_hosts == hosts { Arc::clone(&hosts) } else { device_hosts };
        let membership = Membership::of(Process::this());
        let mut heap = heap;
        let (sync, board) = SyncArea::allocate(&mut heap, Group::world(me, n_pes), &hosts)?;
        let space = Space {
            base,
            reserved: heap.capacity() as usize,
            committed: AtomicUsize::new(committed),
            growth_refused: OnceLock::new(),
            bases: WipedOnFork::new(&bases)?,
            all_mapped: unmapped.is_none() && staged.is_none(),
            data: ProgramData::default(),
            pinned,
            peers,
            heap: Mutex::new(heap),
            staged,
        };
        let bootstrap = Arc::new(Mutex::new(bootstrap));
        let mapped = (0..n_pes).filter(|&pe| matches!(space.peers.reach(pe), Ok(Reach::Mapped))).count();
        let figures = Figures {
            pe: me,
            n_pes,
            pid: std::process::id(),
            mapped: mapped as u32,
            job: handles.first().map_or(0, job_of),
            fabric: mine.fabric().to_owned(),
            heap: settings.heap_size as u64,
            ..Figures::default()
        };
        let lanes = wire.as_ref().ok().map(Wire::lanes);
        let reporter = Reporter::start(figures, lanes, Arc::clone(&bootstrap));
        let reporter = reporter.inspect_err(|error| tracing::warn!(%error, "nobody can read this PE's figures")).ok();
        let job = Job { me, n_pes, membership, native_amo: mine.native_amo, hosts, settings, bootstrap, interrupt };
        let context = wire.as_ref().map_or_else(|_| ContextState::default(), ContextState::first);
        let comm = Communicator { wire, context, contexts: Contexts::default(), board, job, space };
        let observation = Observation::new(trace, reporter);
        let devices = Devices { producers, atomics: device_atomics, hosts: device_hosts };
        let traffic = {
            let mut bootstrap = lock(&comm.job.bootstrap);
            stages.step("last words", &mut **bootstrap, |all| all.barrier())?;
            bootstrap.traffic()
        };
        stages.log(n_pes, traffic);
        Ok(Runtime::new(Parts { observation, comm, sync, world: OnceLock::new(), devices }))
    }
}

/// A number for the job whose PE 0 has this heap: the same on all PEs, and different for every other job of the host.
fn job_of(first: &HeapHandle) -> u64 {
    let mut hasher = DefaultHasher::new();
    first.encode().hash(&mut hasher);
    hasher.finish()
}

/// This PE's connection info; without a wire, one that reports that.
fn connection_info_of(
    opened: &Result<Opened>,
    choice: Option<&Choice>,
    settings: &Settings,
    staged: Option<&Staged>,
) -> ConnectionInfo {
    let connection_info = match (opened, choice) {
        (Ok(o), Some(choice)) => ConnectionInfo::new(settings, choice, o.fabric(), o.host.addresses(), o.proxies()),
        _ => ConnectionInfo::without_wire(settings),
    };
    match staged {
        Some(staged) => connection_info.with_staged(staged.len, staged.connection_info()),
        None => connection_info,
    }
}

/// Maps the heaps that can be mapped, and returns the first PE whose heap cannot.
fn map_peers(me: Pe, n_pes: u32, heap: &SymmetricHeap, handles: &[HeapHandle]) -> Result<(PeerMap, Option<Pe>)> {
    let mut peers = PeerMap::new(me, n_pes, heap.handle().clone(), heap.base())?;
    let (mut unmapped, mut warned) = (None, false);
    for (handle, pe) in handles.iter().zip(0..) {
        if let Reach::Wire(refusal) = peers.open(pe, handle)? {
            unmapped.get_or_insert(pe);
            if refusal.is_fault() && !std::mem::replace(&mut warned, true) {
                tracing::warn!(
                    pe,
                    reason = %refusal,
                    "a PE of this host is reached over the wire; run all PEs as one user, or set SYMRAIL_DISABLE_P2P=1 if that is meant"
                );
            }
        }
    }
    Ok((peers, unmapped))
}

/// The wire, or the reason why there is none; an error if this PE can reach some memory only over a wire.
fn unless_needed(
    wire: Result<(Wire, Vec<Producer>)>,
    staged: bool,
    unmapped: Option<Pe>,
) -> Result<(Result<Wire>, Vec<Producer>)> {
    let error = match wire {
        Ok((wire, producers)) => return Ok((Ok(wire), producers)),
        Err(error) => error,
    };
    if staged {
        return Err(error); // even this PE's own memory needs the wire
    }
    if let Some(pe) = unmapped {
        tracing::info!(pe, "a peer cannot be mapped, and there is no wire");
        return Err(error);
    }
    if let Error::Transport(symrail_transport::Error::Setting { .. }) = &error {
        return Err(error); // the user asks for something that does not exist here, needed or not
    }
    tracing::info!(%error, "no wire; all PEs are mapped");
    Ok((Err(error), Vec::new()))
}

/// Chooses rails and proxy threads, and logs the reasons; those that hold for a whole host on its first PE.
fn choose(settings: &Settings, me: Pe, host: &HostPes) -> Result<Choice> {
    let choice = backend::choose(settings, host)?;
    for reason in choice.reasons.iter().chain([&choice.threads.reason]) {
        tracing::info!("{reason}");
    }
    choice.log(host);
    if me == 0 {
        let fewer = choice.threads.fewer.then(|| format!("SYMRAIL_PROXY_THREADS: {}", choice.threads.reason));
        for ignored in choice.ignored(settings).into_iter().chain(fewer) {
            tracing::warn!("{ignored}");
        }
    }
    Ok(choice)
}

/// Opens the host endpoint, the endpoints of `threads` proxy threads, and their channels.
fn open(settings: &Settings, choice: &Choice, me: Pe, n_pes: u32, threads: usize) -> Result<Opened> {
    let policy = Policy::new(settings, choice.native_amo(settings));
    let endpoint = |role, thread| -> Result<Endpoint> {
        let share = Share::of(thread, threads, choice.names().len());
        let rails = choice.open_share(&share, role, n_pes, settings)?;
        let mut endpoint = Endpoint::new(role, me, n_pes, rails, policy)?;
        if share.spare {
            endpoint.keep_others_spare();
        }
        Ok(endpoint)
    };
    let host = endpoint(Role::Host, 0)?;
    let engine = |thread| {
        let mut endpoint = endpoint(Role::Proxy, thread)?;
        endpoint.share_token(&host);
        Ok((Engine::new(endpoint), Keys::default()))
    };
    let mut engines = (0..threads).map(engine).collect::<Result<Vec<_>>>()?;
    let mut producers = Vec::with_capacity(settings.proxy_channels);
    for number in 0..settings.proxy_channels {
        let channel = Channel::new(DEFAULT_SLOTS, DEFAULT_REPLIES);
        let (producer, consumer) = channel.map_err(|e| Error::Channel(e.to_string()))?;
        engines[number % threads].0.add_channel(consumer);
        producers.push(producer);
    }
    Ok(Opened { host, engines, producers })
}

/// Begins the trace that the settings ask for.
fn begin_trace(settings: &Settings, me: Pe, wire: Option<&Wire>) -> Option<Trace> {
    let path = settings.trace.as_ref()?;
    if let Some(wire) = wire {
        wire.lanes().record();
    }
    Trace::begin(path, me)
        .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "there will be no trace"))
        .ok()
}

/// Registers the first segment with all endpoints, and returns their keys. Memory that the CPU cannot access is staged;
/// each proxy thread stages for its own rails and channels.
fn register(mut opened: Opened, first: Segment, staged: Option<&Staged>, settings: &Settings) -> Result<Opened> {
    if let Some(staged) = staged {
        if opened.host.policy().native_amo {
            let what = "AMOs by NICs on a heap that they do not reach".into();
            let remedy = "set SYMRAIL_AMO_PATH=agent, or SYMRAIL_IB_MODE=write-with-imm, on all PEs".into();
            return Err(symrail_transport::Error::Unsupported { what, by: "staging".into(), remedy }.into());
        }
        let locks = WordLocks::default();
        let several = opened.engines.len() > 1;
        for ((engine, keys), thread) in opened.engines.iter_mut().zip(0..) {
            keys.staging_buffer = engine.stage(staged.copy_engine(thread)?)?;
            if several {
                engine.share_words(&locks);
            }
            // SAFETY: the heap lives as long as the runtime, which closes the engine first.
            unsafe { engine.add_staged_segment(staged.segment()) };
            keys.direct = direct::offer(engine, staged, settings)?;
        }
    }
    // SAFETY: the heap outlives the endpoints (see the order of `Communicator`'s fields) and never unmaps.
    unsafe {
        opened.host.register(first)?;
        for (engine, keys) in &mut opened.engines {
            keys.segment = engine.register(first)?;
        }
    }
    Ok(opened)
}

fn connect(
    mut opened: Opened,
    choice: Choice,
    settings: &Settings,
    me: Pe,
    connection_infos: &[ConnectionInfo],
    staged: Option<&Staged>,
    directory: Arc<Directory>,
) -> Result<(Wire, Vec<Producer>)> {
    let endpoints = opened.engines.iter_mut().map(|(engine, _)| engine.endpoint()).enumerate();
    for (thread, endpoint) in std::iter::once((0, &mut opened.host)).chain(endpoints) {
        endpoint.set_directory(Arc::new(directory::OfThread { directory: Arc::clone(&directory), thread }));
        if endpoint.caps().iter().any(|caps| caps.paired) {
            endpoint.connect_all()?;
        }
    }
    if let Some(staged) = staged {
        for ((engine, _), thread) in opened.engines.iter_mut().zip(0..) {
            // SAFETY: the addresses where this PE's device has mapped its peers' heaps, which `staged` keeps mapped.
            let refused = unsafe { engine.map_peers(&staged.segment(), staged.bases()) };
            for (pe, reason) in refused.into_iter().filter(|_| thread == 0) {
                tracing::warn!(
                    pe,
                    reason,
                    "no copies between the heaps of two GPUs: they go through the host's memory, as with SYMRAIL_DISABLE_P2P=1"
                );
            }
            engine.learn_window(&ConnectionInfo::keys(connection_infos, thread, |keys| &keys.staging_buffer))?;
        }
        direct::agree(opened.engines.iter_mut().map(|(engine, _)| engine), connection_infos, settings)?;
    }
    let spin = settings.proxy_poll == ProxyPoll::Spin;
    let spare_core = choice.spare_core(opened.engines.len());
    let system = |e: std::io::Error| Error::System { what: "starting a proxy thread", reason: e.to_string() };
    let start = |(number, (engine, _))| {
        let core = choice.proxy_cores.get(number).copied().flatten();
        Proxy::start(engine, Options { spin, core, spare_core, number }).map_err(system)
    };
    let proxies = opened.engines.into_iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    let staged = staged.map(|s| s.base..s.base + s.len);
    let opener = EndpointOpener {
        policy: *opened.host.policy(),
        choice,
        settings: settings.clone(),
        me,
        n_pes: connection_infos.len() as u32,
        segments: vec![*directory.first()],
        directory,
    };
    Ok((Wire::new(opened.host, opener, proxies, staged), opened.producers))
}

impl Opened {
    fn fabric(&self) -> String {
        self.host.caps().first().map_or_else(String::new, |c| c.provider.clone())
    }

    fn proxies(&self) -> Vec<OfThread> {
        let of_thread =
            |(engine, keys): &(Engine, Keys)| OfThread { addresses: engine.addresses(), keys: keys.clone() };
        self.engines.iter().map(of_thread).collect()
    }
}
