//! The abstract machine: domains of cores, devices behind bridges, and the distance between two places.

use std::collections::BTreeSet;
use std::fmt;

use symrail_core::PciAddress;

/// Processing units by their numbers in the operating system.
pub type CpuSet = BTreeSet<usize>;

/// The processing units that this process may use.
#[must_use]
pub fn allowed_cpus() -> CpuSet {
    let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return CpuSet::default() };
    (0..nix::sched::CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// A place: the cores that are local to it and, for a device, the bridges through which it is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The cores themselves, or those that are local to the device.
    pub cpus: CpuSet,
    /// For a device: the bridges above it, from the host bridge down, as numbers that are unique in the machine.
    pub bridges: Vec<u64>,
}

impl Place {
    /// The place of some cores.
    #[must_use]
    pub fn cores(cpus: CpuSet) -> Self {
        Place { cpus, bridges: Vec::new() }
    }
}

/// The kind of a [`Domain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DomainKind {
    /// The cores of a NUMA node.
    Numa,
    /// The cores of a package (socket).
    Package,
}

/// Cores that share something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// The resource that they share.
    pub kind: DomainKind,
    /// Its number in the operating system.
    pub number: usize,
    /// The cores.
    pub cpus: CpuSet,
    /// Local memory in bytes; 0 for packages.
    pub memory: u64,
}

/// A PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its address.
    pub pci: PciAddress,
    /// Its place.
    pub place: Place,
    /// The operating system's names for it, such as `eth0` and `mlx5_0`.
    pub names: Vec<String>,
}

/// A machine, with the properties that matter for affinity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// NUMA nodes and packages.
    pub domains: Vec<Domain>,
    /// Physical cores, as the processing units of each.
    pub cores: Vec<CpuSet>,
    /// NICs, GPUs and the like.
    pub devices: Vec<Device>,
    /// Memory in bytes.
    pub memory: u64,
}

/// The distance between two places, from near to far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Devices behind the same PCI switch, with so many bridges between them.
    Switch {
        /// Bridges on the path between them.
        bridges: usize,
    },
    /// Devices at the same host bridge.
    HostBridge,
    /// The same NUMA node.
    Numa,
    /// The same package.
    Package,
    /// Different packages.
    Machine,
    /// The place of one of them is not known.
    Unknown,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distance::Switch { bridges } => write!(f, "same PCI switch, {bridges} bridges between"),
            Distance::HostBridge => f.write_str("same host bridge"),
            Distance::Numa => f.write_str("same NUMA node"),
            Distance::Package => f.write_str("same package"),
            Distance::Machine => f.write_str("across packages"),
            Distance::Unknown => f.write_str("place unknown"),
        }
    }
}

impl Machine {
    /// The distance between two places; [`Distance::Unknown`] when one is `None`.
    #[must_use]
    pub fn distance(&self, a: Option<&Place>, b: Option<&Place>) -> Distance {
        let (Some(a), Some(b)) = (a, b) else { return Distance::Unknown };
        let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count();
        match shared {
            0 => {}
            1 => return Distance::HostBridge,
            _ => return Distance::Switch { bridges: a.bridges.len() + b.bridges.len() - 2 * shared },
        }
        // The smallest domain that holds both counts. So a PE that may run on two packages is equally far from both
        // packages' NICs, as is a NIC whose place the firmware does not report.
        let holds = |domain: &&Domain| a.cpus.is_subset(&domain.cpus) && b.cpus.is_subset(&domain.cpus);
        match self.domains.iter().filter(holds).map(|domain| domain.kind).min() {
            Some(DomainKind::Numa) => Distance::Numa,
            Some(DomainKind::Package) => Distance::Package,
            None => Distance::Machine,
        }
    }

    /// The device at a PCI address.
    #[must_use]
    pub fn at(&self, pci: PciAddress) -> Option<&Device> {
        self.devices.iter().find(|device| device.pci == pci)
    }

    /// The device with this name in the operating system.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.names.iter().any(|known| known == name))
    }

    /// All processing units.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.cores.iter().flatten().copied().collect()
    }

    /// The NUMA nodes.
    pub fn numa_nodes(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter().filter(|domain| domain.kind == DomainKind::Numa)
    }
}

/// Writes a set in the kernel's format: `0-3,8`; `none` when empty.
#[must_use]
pub fn cpu_list(cpus: &CpuSet) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == cpu => *end = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range = |(start, end): &(usize, usize)| if start == end { start.to_string() } else { format!("{start}-{end}") };
    let text = ranges.iter().map(range).collect::<Vec<_>>().join(",");
    if text.is_empty() { "none".into() } else { text }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A machine without devices: packages of NUMA nodes of cores of processing units.
    pub fn regular(packages: usize, nodes: usize, cores: usize, units: usize) -> Machine {
        let cut = |size: usize, parts: usize| (0..parts).map(move |part| (part * size..(part + 1) * size).collect());
        let domains = |kind, sets: Vec<CpuSet>| {
            sets.into_iter().enumerate().map(move |(number, cpus)| Domain { kind, number, cpus, memory: 0 })
        };
        let numa = domains(DomainKind::Numa, cut(cores * units, packages * nodes).collect());
        let package = domains(DomainKind::Package, cut(nodes * cores * units, packages).collect());
        Machine {
            domains: numa.chain(package).collect(),
            cores: cut(units, packages * nodes * cores).collect(),
            ..Machine::default()
        }
    }

    #[test]
    fn sets_are_written_as_ranges() {
        assert_eq!(cpu_list(&[0, 1, 2, 5, 7, 8].into()), "0-2,5,7-8");
        assert_eq!(cpu_list(&CpuSet::new()), "none");
    }

    #[test]
    fn distances_rank_from_switch_to_unknown() {
        let domain =
            |kind, number, cpus: std::ops::Range<usize>| Domain { kind, number, cpus: cpus.collect(), memory: 0 };
        let machine = Machine {
            domains: vec![
                domain(DomainKind::Numa, 0, 0..2),
                domain(DomainKind::Numa, 1, 2..4),
                domain(DomainKind::Package, 0, 0..4),
                domain(DomainKind::Numa, 2, 4..8),
                domain(DomainKind::Package, 1, 4..8),
            ],
            ..Machine::default()
        };
        let at = |cpus: std::ops::Range<usize>, bridges: &[u64]| {
            Some(Place { cpus: cpus.collect(), bridges: bridges.to_vec() })
        };
        let gpu = at(0..2, &[1, 10, 100, 101]);
        let distance = |to: &Option<Place>| machine.distance(gpu.as_ref(), to.as_ref());
        let places = [
            (at(0..2, &[1, 10, 100, 101]), Distance::Switch { bridges: 0 }),
            (at(0..2, &[1, 10, 100, 102]), Distance::Switch { bridges: 2 }),
            (at(0..2, &[1, 11]), Distance::HostBridge),
            (at(0..2, &[2, 12]), Distance::Numa),
            (at(0..1, &[]), Distance::Numa),
            (at(2..4, &[3]), Distance::Package),
            (at(4..8, &[4]), Distance::Machine),
            (at(0..8, &[]), Distance::Machine),
            (None, Distance::Unknown),
        ];
        for (place, expected) in &places {
            assert_eq!(distance(place), *expected, "{place:?}");
        }
        assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }
}
