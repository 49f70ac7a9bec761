//! The place of a NIC of which only a name, a PCI address or an IP address is known.

use std::net::IpAddr;

use symrail_core::PciAddress;

use super::place::{Machine, Place};

/// A NIC and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicLocation {
    /// The rail's name.
    pub name: String,
    /// `None` for NICs without a device (loopback, bridges) and for devices that the kernel does not show.
    pub place: Option<Place>,
}

impl NicLocation {
    /// Finds a NIC's place by its PCI address where the provider reports it, or else by its rail's name: a device
    /// (`mlx5_0`), a device and a port (`mlx5_0:1`), an interface (`eth0`), a libfabric domain named after one
    /// (`rdmap0s6-rdm`), or an address of an interface.
    #[must_use]
    pub fn find(machine: &Machine, name: &str, pci: Option<PciAddress>) -> Self {
        let at = pci.and_then(|pci| machine.at(pci));
        let device = at.or_else(|| names(name).find_map(|name| machine.named(&name)));
        NicLocation { name: name.into(), place: device.map(|device| device.place.clone()) }
    }
}

/// Possible operating system names of the device behind a rail's name, the likeliest first.
fn names(rail: &str) -> impl Iterator<Item = String> {
    let interface = rail.parse().ok().and_then(interface_with);
    let without = |end| rail.rsplit_once(end).map(|(device, _)| device.to_owned());
    [Some(rail.to_owned()), without(':'), without('-'), interface].into_iter().flatten()
}

/// The interface that has this address.
fn interface_with(address: IpAddr) -> Option<String> {
    let mut interfaces = nix::ifaddrs::getifaddrs().ok()?;
    let has = |interface: &nix::ifaddrs::InterfaceAddress| {
        let Some(found) = interface.address else { return false };
        match address {
            IpAddr::V4(wanted) => found.as_sockaddr_in().is_some_and(|found| found.ip() == wanted),
            IpAddr::V6(wanted) => found.as_sockaddr_in6().is_some_and(|found| found.ip() == wanted),
        }
    };
    interfaces.find(has).map(|interface| interface.interface_name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::place::Device;

    #[test]
    fn finds_by_address_and_by_every_sort_of_name() {
        let device = |pci: &str, names: &[&str]| Device {
            pci: pci.parse().unwrap(),
            place: Place { cpus: [usize::from(pci.parse::<PciAddress>().unwrap().bus)].into(), bridges: vec![1] },
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let machine = Machine {
            devices: vec![
                device("01:00.0", &["ib0", "mlx5_0"]),
                device("02:00.0", &["rdmap0s6"]),
                device("03:00.0", &["lo"]),
            ],
            ..Machine::default()
        };
        let bus = |name, pci: Option<&str>| {
            let found = NicLocation::find(&machine, name, pci.map(|pci| pci.parse().unwrap()));
            found.place.map(|place| place.cpus.into_iter().next().unwrap())
        };
        assert_eq!(bus("anything", Some("02:00.0")), Some(2));
        assert_eq!(bus("mlx5_0", Some("77:00.0")), Some(1));
        assert_eq!(bus("mlx5_0:1", None), Some(1));
        assert_eq!(bus("ib0", None), Some(1));
        assert_eq!(bus("rdmap0s6-rdm", None), Some(2));
        // The loopback interface, which every machine has, stands in for one with a device.
        assert_eq!(bus("127.0.0.1", None), Some(3));
        assert_eq!(bus("127.0.0.99", None), None);
        assert_eq!(bus("shm", None), None);
    }
}
