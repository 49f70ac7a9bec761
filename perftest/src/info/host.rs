//! The host: cores, NUMA nodes, memory and limits.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use symrail_transport::env::Settings;
use symrail_transport::topology::place::{DomainKind, cpu_list};
use symrail_transport::topology::{CpuSet, Machine, allowed_cpus, detect};

use super::report::{Host, NumaNode};

/// The machine, and the processing units that this process may run on.
pub struct Here {
    pub machine: Machine,
    pub allowed: CpuSet,
}

/// Queries the kernel.
pub fn find_out(settings: &Settings) -> (Host, Here) {
    let machine = detect::machine(settings.sysfs.as_deref());
    // For a recorded machine no core is excluded.
    let allowed = if settings.sysfs.is_some() { machine.cpus() } else { allowed_cpus() };
    let here = Here { machine, allowed };
    let Here { machine, allowed } = &here;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".into(), |release| format!("Linux {}", release.trim()));
    let nodes = machine.numa_nodes().map(|node| NumaNode {
        number: node.number,
        cpus: cpu_list(&node.cpus),
        memory_bytes: node.memory,
    });
    let host = Host {
        name: nix::unistd::gethostname().map(|name| name.display().to_string()).unwrap_or_default(),
        kernel,
        packages: machine.domains.iter().filter(|domain| domain.kind == DomainKind::Package).count(),
        cores: machine.cores.len(),
        processing_units: machine.cpus().len(),
        allowed: cpu_list(allowed),
        memory_bytes: machine.memory,
        numa_nodes: nodes.collect(),
        shm_free_bytes: statvfs("/dev/shm").ok().map(|fs| fs.blocks_available() * fs.fragment_size()),
        memlock_bytes: getrlimit(Resource::RLIMIT_MEMLOCK)
            .ok()
            .map(|(soft, _)| soft)
            .filter(|soft| *soft != RLIM_INFINITY),
    };
    (host, here)
}
