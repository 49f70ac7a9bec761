//! The session of the process, which all connections share, and the properties of the device.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use symrail_proxy::session::{Progress, Session};
use symrail_transport::env::{Settings, log};

use crate::abi::{MOST_BYTES, PTR_HOST, Properties};
use crate::report::{Failure, Result};

/// The number of devices: one, with all rails.
pub const DEVICES: c_int = 1;
/// The speed of a rail that the system does not tell, in Mbit/s.
const UNKNOWN_SPEED: u64 = 10_000;
/// A bound for the number of connections; descriptors are the limit.
const MOST_CONNECTIONS: c_int = 1 << 16;

/// The session of the process.
pub struct Network {
    pub session: Session,
    /// The time after which operations fail.
    pub timeout: Duration,
}

/// The session while anything uses it, and the use of NCCL versions that do not finalize.
static CURRENT: Mutex<Weak<Network>> = Mutex::new(Weak::new());
static FOR_EVER: OnceLock<Arc<Network>> = OnceLock::new();

impl Network {
    /// The session of the process, opened if nothing uses one.
    pub fn open() -> Result<Arc<Network>> {
        let mut current = symrail_core::lock(&CURRENT);
        if let Some(network) = current.upgrade() {
            return Ok(network);
        }
        let settings = Settings::from_env()?;
        log::start(&settings.log);
        settings.warn_unknown();
        let session = Session::open_without_peers(&settings, Progress::Thread)?;
        for reason in session.reasons() {
            tracing::info!("{reason}");
        }
        let network = Arc::new(Network { session, timeout: Duration::from_secs(settings.timeout_s) });
        *current = Arc::downgrade(&network);
        Ok(network)
    }

    /// As [`Network::open`], without an end.
    pub fn open_for_ever() -> Result<()> {
        let network = Network::open()?;
        FOR_EVER.get_or_init(|| network);
        Ok(())
    }

    /// The session, while a connection or context uses it.
    pub fn current() -> Result<Arc<Network>> {
        symrail_core::lock(&CURRENT).upgrade().ok_or_else(|| Failure::usage("the network is not initialized"))
    }
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
    let network = Network::current()?;
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
