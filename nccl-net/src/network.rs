//! The sessions of the process, which all connections share, and the properties of the device.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use symrail_heap::CopyEngine;
use symrail_heap::cuda::{CudaCopyEngine, Gpu};
use symrail_proxy::session::kept::Kept;
use symrail_proxy::session::{Progress, Session};
use symrail_proxy::stage::{MAX_COPIES, STAGING_BUFFER_BYTES};
use symrail_transport::env::{HeapKind, Settings, log};
use symrail_transport::topology::allowed_cpus;

use crate::abi::{MOST_BYTES, PTR_HOST, Properties};
use crate::report::{Failure, Result};

/// The number of devices: one, with all rails.
pub const DEVICES: c_int = 1;
/// The speed of a rail that the system does not tell, in Mbit/s.
const UNKNOWN_SPEED: u64 = 10_000;
/// A bound for the number of connections; descriptors are the limit.
const MOST_CONNECTIONS: c_int = 1 << 16;

/// Cores of the process for each session of its own thread, and the most such sessions that are opened unasked.
const CORES_PER_SESSION: usize = 8;
const MOST_SESSIONS: usize = 4;

/// For so long a session that ends serves peers that have not closed their ends of its connections.
const LINGER: Duration = Duration::from_secs(1);

/// A session. Each connection uses one of them, and so does each group of one-sided operations.
pub struct Network {
    pub session: Arc<Session>,
    /// The time after which operations fail.
    pub timeout: Duration,
    /// The GPU whose memory the session stages.
    pub gpu: Option<Arc<Gpu>>,
    _kept: Option<Kept>,
}

/// All sessions of the process, in use.
pub type Networks = Vec<Arc<Network>>;

/// The sessions while anything uses them, and the use of NCCL versions that do not finalize.
static CURRENT: Mutex<Vec<Weak<Network>>> = Mutex::new(Vec::new());
static FOR_EVER: OnceLock<Networks> = OnceLock::new();
/// The sessions for one-sided operations: one for each GPU, by its number, and one without.
static ONE_SIDED: Mutex<Vec<(Option<i32>, Weak<Network>)>> = Mutex::new(Vec::new());
/// Counts the connections, which take the sessions in turn.
static TURN: AtomicUsize = AtomicUsize::new(0);

impl Drop for Network {
    fn drop(&mut self) {
        self.session.wait_for_closed_links(LINGER);
    }
}

impl Network {
    /// The sessions of the process, opened if nothing uses them.
    ///
    /// NCCL calls from one thread. Where there are cores for it, several sessions' threads copy for that one at the
    /// same time, each for other connections.
    pub fn open() -> Result<Networks> {
        let mut current = symrail_core::lock(&CURRENT);
        let in_use: Networks = current.iter().filter_map(Weak::upgrade).collect();
        if !in_use.is_empty() && in_use.len() == current.len() {
            return Ok(in_use);
        }
        let settings = settings()?;
        let by_cores = (allowed_cpus().len() / CORES_PER_SESSION).clamp(1, MOST_SESSIONS);
        let count = settings.proxy_threads.unwrap_or(by_cores);
        let progress = if count > 1 { Progress::Delegated } else { Progress::Thread };
        let timeout = Duration::from_secs(settings.timeout_s);
        let open = || {
            let session = Session::open_without_peers(&settings, progress, None)?;
            Ok(Network::new(session, timeout, None))
        };
        let networks: Networks = (0..count).map(|_| open()).collect::<Result<_>>()?;
        for reason in networks.iter().take(1).flat_map(|network| network.session.reasons()) {
            tracing::info!("{reason}");
        }
        tracing::info!(count, "sessions, each with a thread");
        *current = networks.iter().map(Arc::downgrade).collect();
        Ok(networks)
    }

    /// The session for one-sided operations on host memory and on that of the GPU that is current on this thread.
    pub fn one_sided() -> Result<Arc<Network>> {
        let ordinal = Gpu::current();
        let mut all = symrail_core::lock(&ONE_SIDED);
        let found = all.iter().find(|(of, _)| *of == ordinal).and_then(|(_, network)| network.upgrade());
        if let Some(network) = found {
            return Ok(network);
        }
        let mut settings = settings()?;
        let gpu = ordinal.map(Gpu::open).transpose()?;
        if gpu.is_some() {
            settings.heap_kind = HeapKind::Device;
        }
        let copy_engine = gpu.as_ref().map(copy_engine).transpose()?;
        let spare = allowed_cpus().len() >= 2 * CORES_PER_SESSION;
        let progress = if spare { Progress::Delegated } else { Progress::Thread };
        let session = Session::open_without_peers(&settings, progress, copy_engine)?;
        let network = Network::new(session, Duration::from_secs(settings.timeout_s), gpu);
        all.retain(|(of, _)| *of != ordinal);
        all.push((ordinal, Arc::downgrade(&network)));
        Ok(network)
    }

    fn new(session: Session, timeout: Duration, gpu: Option<Arc<Gpu>>) -> Arc<Network> {
        let session = Arc::new(session);
        Arc::new(Network { _kept: Kept::new(&session), session, timeout, gpu })
    }

    /// As [`Network::open`], without an end.
    pub fn open_for_ever() -> Result<()> {
        let networks = Network::open()?;
        FOR_EVER.get_or_init(|| networks);
        Ok(())
    }

    /// The session for the next connection, while a connection or context uses them.
    pub fn next() -> Result<Arc<Network>> {
        let current = symrail_core::lock(&CURRENT);
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let network = (0..current.len()).find_map(|i| current[(turn + i) % current.len()].upgrade());
        network.ok_or_else(|| Failure::usage("the network is not initialized"))
    }
}

fn settings() -> Result<Settings> {
    let settings = Settings::from_env()?;
    log::start(&settings.log);
    settings.warn_unknown();
    Ok(settings)
}

/// The copy engine for a GPU's memory.
fn copy_engine(gpu: &Arc<Gpu>) -> Result<Box<dyn CopyEngine>> {
    Ok(Box::new(CudaCopyEngine::new([gpu, &gpu.for_copies()], STAGING_BUFFER_BYTES, MAX_COPIES)?))
}

/// What the system tells about the rails. Its text stays valid until the process ends.
struct Device {
    pci_path: Option<CString>,
    guid: u64,
    speed: u64,
}

fn device() -> Result<&'static Device> {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let network = Network::next().or_else(|_| Network::one_sided())?;
    let names: Vec<&str> = network.session.rails().iter().map(|rail| rail.name.as_str()).collect();
    let path = names.iter().find_map(|name| class(name, "device").canonicalize().ok());
    let text = path.map_or_else(|| names.join(","), |path| path.to_string_lossy().into_owned());
    let pci_path = text.starts_with('/').then(|| CString::new(text.clone()).unwrap_or_default());
    // All processes of a host compute the same number.
    let guid =
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let speed = names.iter().map(|name| speed(name).unwrap_or(UNKNOWN_SPEED)).sum();
    Ok(DEVICE.get_or_init(|| Device { pci_path, guid, speed }))
}

/// A file of the device behind a rail's name, which may have a port (`mlx5_0:1`).
fn class(name: &str, file: &str) -> PathBuf {
    let name = name.split(':').next().unwrap_or(name);
    let of = |class: &str| Path::new("/sys/class").join(class).join(name);
    let rdma = of("infiniband");
    if rdma.exists() { rdma.join(file) } else { of("net").join(file) }
}

/// The speed of a rail in Mbit/s.
fn speed(name: &str) -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(class(name, file)).ok();
    if let Some(text) = read("ports/1/rate") {
        let gigabits: f64 = text.split_whitespace().next()?.parse().ok()?;
        return Some((gigabits * 1000.0) as u64);
    }
    read("speed")?.trim().parse().ok().filter(|&speed| speed > 0)
}

/// The properties of device `dev`.
pub fn properties<const N: usize>(dev: c_int) -> Result<Properties<N>> {
    check_device(dev)?;
    let device = device()?;
    let mut devices = [0; N];
    devices[0] = dev;
    Ok(Properties {
        name: c"symrail".as_ptr(),
        pci_path: device.pci_path.as_ref().map_or(std::ptr::null::<c_char>(), |path| path.as_ptr()),
        guid: device.guid,
        ptr_support: PTR_HOST,
        reg_is_global: 0,
        force_flush: 0,
        speed: c_int::try_from(device.speed).unwrap_or(c_int::MAX),
        port: 0,
        latency: 0.0,
        max_comms: MOST_CONNECTIONS,
        max_recvs: 1,
        device_type: 0,
        device_version: 0,
        n_devices: 1,
        devices,
        max_p2p_bytes: MOST_BYTES,
        max_coll_bytes: MOST_BYTES,
    })
}

pub fn check_device(dev: c_int) -> Result<()> {
    let exists = (0..DEVICES).contains(&dev);
    if exists { Ok(()) } else { Err(Failure::argument(format!("device {dev}: there are {DEVICES}"))) }
}
