//! The place of a NIC of which only a name, a PCI address or an IP address is known.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use symrail_core::PciAddress;

use super::place::{Machine, Place};
use crate::pairing::is_link_local;

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
    getifaddrs().ok()?.find(|interface| ip(interface) == Some(address)).map(|interface| interface.interface_name)
}

/// The addresses of this machine's interfaces that are up, without those that mean another interface on every machine.
/// `None` if the system does not tell.
#[must_use]
pub fn own_addresses() -> Option<Vec<IpAddr>> {
    let up = getifaddrs().ok()?.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    Some(up.filter_map(|interface| ip(&interface)).filter(|ip| !(ip.is_ipv6() && is_link_local(*ip))).collect())
}

/// The length of the prefix of the subnet of an address of this machine.
#[must_use]
pub fn prefix_of(address: IpAddr) -> Option<u8> {
    let mask = getifaddrs().ok()?.find(|interface| ip(interface) == Some(address))?.netmask?;
    let v4 = mask.as_sockaddr_in().map(|mask| IpAddr::V4(mask.ip()));
    ipnet::ip_mask_to_prefix(v4.or_else(|| mask.as_sockaddr_in6().map(|mask| IpAddr::V6(mask.ip())))?).ok()
}

fn ip(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address?;
    let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::place::Device;

    #[test]
    fn addresses_of_interfaces_that_are_up_are_this_machines() {
        let own = own_addresses().unwrap();
        assert!(own.contains(&IpAddr::from([127, 0, 0, 1])), "{own:?}");
        assert_eq!(prefix_of(IpAddr::from([127, 0, 0, 1])), Some(8));
        // Reserved for documentation: no machine has it.
        assert!(!own.contains(&IpAddr::from([192, 0, 2, 1])));
    }

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
