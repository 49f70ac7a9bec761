//! The report as data: the fields of `symrail info --json`.

use serde::Serialize;
use symrail_transport::env::{Settings, VARIABLES, Variable};
use symrail_transport::ofi;

/// Why something is missing, and the remedy.
#[derive(Debug, Clone, Serialize)]
pub struct Missing {
    /// The reason.
    pub reason: String,
    /// The remedy.
    pub remedy: String,
}

/// All results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of this program.
    pub version: &'static str,
    pub host: Host,
    pub libfabric: Libfabric,
    pub ibverbs: Ibverbs,
    pub cuda: Cuda,
    /// The rails and cores that a PE started here would use.
    pub chosen: Chosen,
    pub collectives: Collectives,
    /// Settings that differ from their defaults.
    pub changed: Vec<Setting>,
    /// Problems of names in the environment.
    pub unknown: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Host {
    pub name: String,
    pub kernel: String,
    pub packages: usize,
    pub cores: usize,
    pub processing_units: usize,
    /// The processing units that this process may run on, as a list of ranges.
    pub allowed: String,
    pub memory_bytes: u64,
    pub numa_nodes: Vec<NumaNode>,
    /// Free space in `/dev/shm`, where libfabric's provider shm keeps its buffers. Heaps need none.
    pub shm_free_bytes: Option<u64>,
    /// The bytes that a process may lock, and so register with an RDMA NIC; `None` means no limit.
    pub memlock_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct NumaNode {
    pub number: usize,
    pub cpus: String,
    pub memory_bytes: u64,
}

#[derive(Debug, Default, Serialize)]
pub struct Libfabric {
    /// The path or name that was loaded.
    pub library: Option<String>,
    pub version: Option<String>,
    pub missing: Option<Missing>,
    pub providers: Vec<Provider>,
    /// The rails, in the order in which a PE started here would use them.
    pub rails: Vec<Rail>,
    /// Network interfaces that are no rails unless `SYMRAIL_NIC_LIST` names them.
    pub left_out: Vec<LeftOut>,
    /// Why there are no rails.
    pub no_rails: Option<String>,
}

/// A network interface that other hosts are unlikely to reach.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    pub name: String,
    pub address: String,
    pub reason: String,
}

impl From<&ofi::LeftOut> for LeftOut {
    fn from(found: &ofi::LeftOut) -> LeftOut {
        let ofi::LeftOut { name, address, reason } = found.clone();
        LeftOut { name, address, reason }
    }
}

/// A libfabric provider and the capabilities of its first rail.
#[derive(Debug, Serialize)]
pub struct Provider {
    pub name: String,
    pub rails: usize,
    pub caps: Option<Caps>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// The capabilities of an opened rail.
#[derive(Debug, Clone, Serialize)]
pub struct Caps {
    pub progress: String,
    pub write_after_write: bool,
    pub send_after_write: bool,
    pub send_after_send: bool,
    pub immediate: bool,
    pub inject_bytes: usize,
    pub max_rma_bytes: usize,
    pub queue_depth: usize,
    pub local_registration: bool,
}

/// A NIC that a PE started here can use.
#[derive(Debug, Clone, Serialize)]
pub struct Rail {
    pub name: String,
    /// The provider, or `verbs`.
    pub provider: String,
    /// Further details: domain, address, speed.
    pub details: String,
    pub pci: Option<String>,
    /// Its distance from the PE's GPU and cores.
    pub distance: String,
    /// Its IP address, or empty.
    pub address: String,
    /// Whether a CPU moves the bytes.
    pub software: bool,
    /// Whether another package than that of the PE's cores or GPU holds it.
    pub remote: bool,
}

#[derive(Debug, Default, Serialize)]
pub struct Ibverbs {
    pub library: Option<String>,
    pub missing: Option<Missing>,
    /// Every port of every device, in words with its GID table.
    pub ports: Vec<String>,
    /// The names of those that are not active.
    pub inactive: Vec<String>,
    pub rails: Vec<Rail>,
    /// Why there are no rails.
    pub no_rails: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct Cuda {
    /// The version that the driver supports, such as `12.4`.
    pub driver: Option<String>,
    pub missing: Option<Missing>,
    pub devices: Vec<Gpu>,
}

#[derive(Debug, Serialize)]
pub struct Gpu {
    pub number: usize,
    pub name: String,
    pub pci: Option<String>,
    pub memory_bytes: u64,
    /// For example `9.0`.
    pub compute_capability: String,
    /// Whether a NIC can register its memory as a dmabuf.
    pub dmabuf: bool,
    /// The numbers of the other GPUs whose memory it cannot map.
    pub cannot_map: Vec<usize>,
}

#[derive(Debug, Serialize)]
pub struct Chosen {
    /// `libfabric`, `ibverbs` or `none`.
    pub transport: &'static str,
    /// Rail names in order.
    pub rails: Vec<String>,
    /// The most PEs to which the hard limit of descriptors permits connections; `None` if they take no descriptors, or
    /// are not limited.
    pub most_pes: Option<u64>,
    /// The processing unit that each proxy thread is pinned to; `None` leaves it to the scheduler.
    pub proxy_cores: Vec<Option<usize>>,
    /// Reasons, one sentence each; or why there is no transport.
    pub why: Vec<String>,
    /// Settings that have no effect with this choice, one sentence each.
    pub ignored: Vec<String>,
}

/// The tables by which collectives of devices choose their algorithms.
#[derive(Debug, Serialize)]
pub struct Collectives {
    /// A communicator uses the table for its device, PEs and hosts, if all its PEs have the same one.
    pub tables: Vec<TuningTable>,
    /// Why there are no tables.
    pub no_tables: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct TuningTable {
    pub file: String,
    /// The kind of device: `cpu`, or a GPU's name.
    pub device: String,
    pub pes: usize,
    pub hosts: usize,
    pub rows: usize,
    /// Why it is not used.
    pub problem: Option<String>,
}

/// An environment variable and its value.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub name: &'static str,
    /// Empty when unset.
    pub value: String,
    pub default: String,
    pub kind: &'static str,
    pub accepted: String,
    pub about: &'static str,
}

impl Setting {
    fn of(variable: &Variable, settings: &Settings) -> Self {
        Setting {
            name: variable.name,
            value: (variable.show)(settings),
            default: (variable.show)(&Settings::default()),
            kind: variable.kind,
            accepted: (variable.accepted)(),
            about: variable.about,
        }
    }

    /// All variables.
    pub fn all(settings: &Settings) -> Vec<Self> {
        VARIABLES.iter().map(|variable| Self::of(variable, settings)).collect()
    }

    /// The variables that differ from their defaults.
    pub fn changed(settings: &Settings) -> Vec<Self> {
        settings.changed().map(|variable| Self::of(variable, settings)).collect()
    }
}
