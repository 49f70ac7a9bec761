//! Fills a [`Machine`] from hwloc.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hwlocality::Topology;
use hwlocality::cpu::binding::CpuBindingFlags;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{TopologyBuilder, TypeFilter};

use super::place::{CpuSet, Device, Domain, DomainKind, Machine, Place};
use crate::error::{Error, Result};
use symrail_core::PciAddress;

/// What hwloc could ask besides the kernel. It is left out: these start GPU drivers or talk to a display server, which
/// costs seconds and makes a later fork unsafe, and what they know we take from PCI.
const UNWANTED: [&str; 6] = ["cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"];

/// This machine, as far as this process may use it, and the cores that this process may run on.
///
/// # Errors
/// [`Error::Library`] with what hwloc said.
pub fn this_machine() -> Result<(Machine, CpuSet)> {
    guarded(|| {
        let topology = load(Topology::builder())?;
        let bound = topology.cpu_binding(CpuBindingFlags::PROCESS).map_err(|error| failed(&error))?;
        let machine = read(&topology);
        let allowed = cpu_set(bound.iter_set().map(usize::from)).intersection(&machine.cpus()).copied().collect();
        Ok((machine, allowed))
    })
}

/// A machine that hwloc recorded as XML (`lstopo machine.xml`).
///
/// # Errors
/// As for [`this_machine`].
pub fn from_xml(xml: &str) -> Result<Machine> {
    guarded(|| Ok(read(&load(Topology::builder().from_xml(xml).map_err(|error| failed(&error))?)?)))
}

/// A machine without devices from hwloc's short description, such as `pack:2 numa:1 core:4 pu:1`.
///
/// # Errors
/// As for [`this_machine`].
pub fn from_synthetic(description: &str) -> Result<Machine> {
    guarded(|| Ok(read(&load(Topology::builder().from_synthetic(description).map_err(|error| failed(&error))?)?)))
}

/// The binding asserts what it expects of hwloc; on a machine that surprises it we go without affinity, and live.
fn guarded<T>(detect: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(detect)).unwrap_or_else(|_| Err(failed(&"its binding met something unexpected")))
}

fn failed(reason: &dyn std::fmt::Display) -> Error {
    Error::Library {
        library: "libhwloc".into(),
        reason: reason.to_string(),
        remedy: "rails are used in the order in which they are found; \
                 SYMRAIL_NIC_LIST and SYMRAIL_NIC_PE_MAPPING set another"
            .into(),
    }
}

fn load(builder: TopologyBuilder) -> Result<Topology> {
    let mut builder = builder.with_io_type_filter(TypeFilter::KeepImportant).map_err(|error| failed(&error))?;
    for component in UNWANTED {
        // hwloc refuses names of plugins that are not installed, and the refusal consumes the builder: ask first.
        if Topology::builder().without_component(component).is_ok() {
            builder = builder.without_component(component).map_err(|error| failed(&error))?;
        }
    }
    builder.build().map_err(|error| failed(&error))
}

fn read(topology: &Topology) -> Machine {
    let domain = |kind, object: &TopologyObject| Domain {
        kind,
        number: object.os_index().unwrap_or_else(|| object.logical_index()),
        cpus: cpus_of(object),
        memory: match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map_or(0, u64::from),
            _ => 0,
        },
    };
    let nodes = topology.objects_with_type(ObjectType::NUMANode).map(|node| domain(DomainKind::Numa, node));
    let packages = topology.objects_with_type(ObjectType::Package).map(|package| domain(DomainKind::Package, package));
    Machine {
        // A node without cores (memory of a GPU or of CXL) is near to nobody.
        domains: nodes.chain(packages).filter(|domain| !domain.cpus.is_empty()).collect(),
        cores: cores(topology),
        devices: topology.pci_devices().filter_map(device).collect(),
        memory: topology.root_object().total_memory(),
    }
}

/// Where a virtual machine hides cores, each processing unit counts as one.
fn cores(topology: &Topology) -> Vec<CpuSet> {
    let of = |ty| topology.objects_with_type(ty).map(cpus_of).filter(|cpus| !cpus.is_empty()).collect::<Vec<_>>();
    let cores = of(ObjectType::Core);
    if cores.is_empty() { of(ObjectType::PU) } else { cores }
}

fn device(object: &TopologyObject) -> Option<Device> {
    let Some(ObjectAttributes::PCIDevice(pci)) = object.attributes() else { return None };
    let above = object.ancestors().filter(|above| above.object_type() == ObjectType::Bridge);
    let mut bridges: Vec<u64> = above.map(|bridge| bridge.global_persistent_index()).collect();
    bridges.reverse();
    Some(Device {
        #[allow(clippy::useless_conversion, reason = "hwloc 3 widens the domain")]
        pci: PciAddress {
            domain: pci.domain().into(),
            bus: pci.bus_id(),
            device: pci.bus_device(),
            function: pci.function(),
        },
        place: Place { cpus: object.first_non_io_ancestor().map(cpus_of).unwrap_or_default(), bridges },
        names: object
            .io_children()
            .filter(|child| child.object_type() == ObjectType::OSDevice)
            .filter_map(|child| Some(child.name()?.to_string_lossy().into_owned()))
            .collect(),
    })
}

fn cpus_of(object: &TopologyObject) -> CpuSet {
    object.cpuset().map(|cpus| cpu_set(cpus.iter_set().map(usize::from))).unwrap_or_default()
}

/// An infinite set, which hwloc uses for "all", ends where no machine reaches.
fn cpu_set(cpus: impl Iterator<Item = usize>) -> CpuSet {
    const MOST: usize = 1 << 16;
    cpus.take_while(|cpu| *cpu < MOST).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::Distance;

    #[test]
    fn this_machine_has_cores_and_we_may_use_some() {
        let (machine, allowed) = this_machine().unwrap();
        assert!(!machine.cores.is_empty() && machine.memory > 0);
        assert!(!allowed.is_empty() && allowed.is_subset(&machine.cpus()));
    }

    #[test]
    fn a_synthetic_machine_is_read() {
        let machine = from_synthetic("pack:2 numa:2 core:4 pu:2").unwrap();
        assert_eq!((machine.cores.len(), machine.cpus().len()), (16, 32));
        assert_eq!(machine.numa_nodes().count(), 4);
        assert_eq!(machine.domains.len(), 6);
        let core = |index: usize| Place::cores(machine.cores[index].clone());
        let distance = |a, b| machine.distance(Some(&core(a)), Some(&core(b)));
        assert_eq!(distance(0, 3), Distance::Numa);
        assert_eq!(distance(0, 4), Distance::Package);
        assert_eq!(distance(0, 8), Distance::Machine);
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(matches!(from_synthetic("bananas:2"), Err(Error::Library { .. })));
    }
}
