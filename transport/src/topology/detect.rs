//! Detection: fills a [`Machine`] from the kernel's files in `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use super::place::{CpuSet, Device, Domain, DomainKind, Machine, Place, allowed_cpus};
use symrail_core::PciAddress;

/// This machine, or the one that a folder like `/sys` describes. Facts that the folder lacks are left out. Without
/// cores in it, each processing unit that this process may run on counts as one.
#[must_use]
pub fn machine(sys: Option<&Path>) -> Machine {
    let sys = sys.unwrap_or(Path::new("/sys"));
    let units = list(&sys.join("devices/system/cpu/online"));
    let of_units = |file| units.iter().map(move |unit| unit_file(sys, *unit, file));
    let mut cores = sets(of_units("core_cpus_list"));
    if cores.is_empty() {
        cores = allowed_cpus().into_iter().map(|unit| [unit].into()).collect();
    }
    let mut domains: Vec<Domain> = list(&sys.join("devices/system/node/online"))
        .into_iter()
        .map(|number| node(&sys.join(format!("devices/system/node/node{number}")), number))
        .collect();
    let memory = match domains.iter().map(|node| node.memory).sum() {
        0 => total_memory(Path::new("/proc/meminfo")),
        of_nodes => of_nodes,
    };
    domains.extend(sets(of_units("package_cpus_list")).into_iter().map(|cpus| {
        let first = cpus.first().and_then(|unit| unit_file(sys, *unit, "physical_package_id")?.trim().parse().ok());
        Domain { kind: DomainKind::Package, number: first.unwrap_or(0), cpus, memory: 0 }
    }));
    Machine {
        // A node without cores (memory of a GPU or of CXL) is near to no core.
        domains: domains.into_iter().filter(|domain| !domain.cpus.is_empty()).collect(),
        cores,
        devices: devices(sys),
        memory,
    }
}

/// Reads a set in the kernel's format: `0-3,8`. Empty if there is no such file.
fn list(path: &Path) -> CpuSet {
    fs::read_to_string(path).map(|text| parse(&text)).unwrap_or_default()
}

fn parse(text: &str) -> CpuSet {
    // A bound that no machine reaches.
    const MOST: usize = 1 << 16;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(MOST))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// A file of a processing unit. Kernels before 5.0 have the same files under older names.
fn unit_file(sys: &Path, unit: usize, file: &str) -> Option<String> {
    let older = match file {
        "core_cpus_list" => "thread_siblings_list",
        "package_cpus_list" => "core_siblings_list",
        same => same,
    };
    let folder = sys.join(format!("devices/system/cpu/cpu{unit}/topology"));
    [file, older].iter().find_map(|file| fs::read_to_string(folder.join(file)).ok())
}

/// The distinct sets in the units' files, in the order of their first members.
fn sets(texts: impl Iterator<Item = Option<String>>) -> Vec<CpuSet> {
    let mut sets: Vec<CpuSet> = texts.flatten().map(|text| parse(&text)).filter(|set| !set.is_empty()).collect();
    sets.sort();
    sets.dedup();
    sets
}

fn node(folder: &Path, number: usize) -> Domain {
    let (cpus, memory) = (list(&folder.join("cpulist")), total_memory(&folder.join("meminfo")));
    Domain { kind: DomainKind::Numa, number, cpus, memory }
}

/// Bytes of memory, of the machine or of a node; 0 if there is no such file.
fn total_memory(meminfo: &Path) -> u64 {
    let text = fs::read_to_string(meminfo).unwrap_or_default();
    let kib =
        text.lines().find_map(|line| line.split_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.unwrap_or(0u64) << 10
}

/// All PCI devices but bridges.
fn devices(sys: &Path) -> Vec<Device> {
    let names: Vec<(PciAddress, String)> = ["net", "infiniband"]
        .iter()
        .flat_map(|class| entries(&sys.join("class").join(class)))
        // The path continues behind the device for virtio's interfaces and some NICs'.
        .filter_map(|(name, path)| Some((*on_path(&path).last()?.pci.as_ref()?, name)))
        .collect();
    let device = |(_, path): (String, PathBuf)| {
        let class = fs::read_to_string(path.join("class")).ok()?;
        let mut way = on_path(&path);
        let pci = way.pop()?.pci?;
        (!class.starts_with("0x06")).then(|| Device {
            pci,
            place: Place {
                cpus: list(&path.join("local_cpulist")),
                bridges: way.into_iter().map(|bridge| bridge.number).collect(),
            },
            names: names.iter().filter(|(of, _)| *of == pci).map(|(_, name)| name.clone()).collect(),
        })
    };
    let mut devices: Vec<Device> = entries(&sys.join("bus/pci/devices")).into_iter().filter_map(device).collect();
    devices.sort_by_key(|device| device.pci);
    devices
}

/// The links in a folder, and their targets.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let entry = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, entry.path().canonicalize().ok()?));
    entries.flatten().filter_map(entry).collect()
}

/// A host bridge, or a PCI device or bridge.
struct OnPath {
    pci: Option<PciAddress>,
    /// Unique in the machine.
    number: u64,
}

/// The host bridges, bridges and the device on a path such as `pci0000:00/0000:00:01.0/0000:01:00.0`.
fn on_path(path: &Path) -> Vec<OnPath> {
    let host = |text: &str| {
        let (domain, bus) = text.strip_prefix("pci")?.split_once(':')?;
        let (domain, bus) = (u64::from_str_radix(domain, 16).ok()?, u64::from_str_radix(bus, 16).ok()?);
        Some(OnPath { pci: None, number: 1 << 63 | domain << 16 | bus << 8 })
    };
    let device = |text: &str| {
        let pci: PciAddress = text.parse().ok()?;
        let (domain, bus) = (u64::from(pci.domain), u64::from(pci.bus));
        let number = domain << 16 | bus << 8 | u64::from(pci.device) << 3 | u64::from(pci.function);
        Some(OnPath { pci: Some(pci), number })
    };
    path.iter().filter_map(|part| part.to_str()).filter_map(|part| host(part).or_else(|| device(part))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::Distance;

    /// The machine that a script in `testdata` describes.
    pub fn described(script: &str) -> Machine {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/topology/testdata").join(script);
        let folder =
            std::env::temp_dir().join(format!("symrail-sys-{}-{:?}", std::process::id(), std::thread::current().id()));
        fs::create_dir_all(&folder).unwrap();
        let made = std::process::Command::new("sh").arg(script).arg(&folder).status().unwrap();
        let machine = machine(Some(&folder));
        fs::remove_dir_all(&folder).unwrap();
        assert!(made.success());
        machine
    }

    #[test]
    fn this_machine_has_cores_and_we_may_use_some() {
        let machine = machine(None);
        assert!(!machine.cores.is_empty() && machine.memory > 0);
        assert!(allowed_cpus().is_subset(&machine.cpus()));
    }

    #[test]
    fn a_described_machine_is_read() {
        let machine = described("two-sockets.sh");
        assert_eq!((machine.cores.len(), machine.numa_nodes().count(), machine.devices.len()), (16, 4, 9));
        assert_eq!((machine.domains.len(), machine.memory), (6, 4 << 38));
        let core = |index: usize| Place::cores(machine.cores[index].clone());
        let distance = |a, b| machine.distance(Some(&core(a)), Some(&core(b)));
        assert_eq!(
            (distance(0, 3), distance(0, 4), distance(0, 8)),
            (Distance::Numa, Distance::Package, Distance::Machine)
        );
        let gpu = machine.at("0000:03:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.place.cpus, (0..4).collect());
        let to = |name| machine.distance(Some(&gpu.place), machine.named(name).map(|device| &device.place));
        assert_eq!(to("mlx5_3"), Distance::Switch { bridges: 2 });
        assert_eq!(to("eno1"), Distance::Numa);
        assert_eq!(to("mlx5_2"), Distance::Package);
        assert_eq!(to("ib0"), Distance::Machine);
        assert_eq!(to("lo"), Distance::Unknown);
    }

    #[test]
    fn where_the_kernel_tells_nothing_each_allowed_unit_is_a_core() {
        let machine = machine(Some(Path::new("/nonexistent")));
        assert_eq!((machine.cpus(), machine.cores.len()), (allowed_cpus(), allowed_cpus().len()));
        assert!(machine.domains.is_empty() && machine.devices.is_empty());
    }

    #[test]
    fn an_interface_behind_its_device_names_it_and_nonsense_is_left_out() {
        let way = on_path(Path::new("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0"));
        assert_eq!(way.iter().map(|part| part.pci.map(|pci| pci.device)).collect::<Vec<_>>(), [None, Some(3)]);
        assert!(on_path(Path::new("/sys/devices/virtual/net/lo")).is_empty());
        assert_eq!(parse("0-2,5,x,7-y,9-8\n"), [0, 1, 2, 5].into());
    }
}
