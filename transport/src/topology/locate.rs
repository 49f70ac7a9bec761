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
    Some(interfaces()?.map(|(_, address)| address).collect())
}

/// The interfaces of [`own_addresses`], each with its name.
fn interfaces() -> Option<impl Iterator<Item = (String, IpAddr)>> {
    let up = getifaddrs().ok()?.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    let named = up.filter_map(|interface| Some((ip(&interface)?, interface.interface_name)));
    Some(named.filter(|(ip, _)| !(ip.is_ipv6() && is_link_local(*ip))).map(|(ip, name)| (name, ip)))
}

/// The address of the interface that is given by an address or by its name (`eth0`); IPv4 before IPv6. `None` if no
/// interface of that name is up with an address.
#[must_use]
pub fn address_of(interface: &str) -> Option<IpAddr> {
    interface.parse().ok().or_else(|| first_address(|name| name == interface))
}

/// The address of the first interface that `NCCL_SOCKET_IFNAME` admits, by NCCL's rule: beginnings of names with commas
/// between them; `=` before them asks for whole names, `^` for interfaces that do not match.
#[must_use]
pub fn address_by_ifname(rule: &str) -> Option<IpAddr> {
    let unwanted = rule.starts_with('^');
    let rule = rule.strip_prefix('^').unwrap_or(rule);
    let whole = rule.starts_with('=');
    let names: Vec<&str> = rule.strip_prefix('=').unwrap_or(rule).split(',').filter(|name| !name.is_empty()).collect();
    let matches =
        |name: &str| names.iter().any(|&wanted| if whole { name == wanted } else { name.starts_with(wanted) });
    first_address(|name| matches(name) != unwanted)
}

fn first_address(admitted: impl Fn(&str) -> bool) -> Option<IpAddr> {
    interfaces()?.filter(|(name, _)| admitted(name)).map(|(_, address)| address).min_by_key(IpAddr::is_ipv6)
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
    fn interfaces_have_addresses_by_name_and_by_nccl_s_rule() {
        let loopback = Some(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(
            [address_of("lo"), address_of("127.0.0.1"), address_of("l"), address_of("")],
            [loopback, loopback, None, None]
        );
        for (rule, found) in
            [("lo", true), ("none,l", true), ("=lo", true), ("=l", false), ("none", false), ("", false)]
        {
            assert_eq!(address_by_ifname(rule), loopback.filter(|_| found), "{rule}");
        }
        let others = [address_by_ifname("^lo"), address_by_ifname("^=lo")];
        assert!(others[0] == others[1] && others[0] != loopback, "{others:?}");
        assert!(address_by_ifname("^=l").is_some());
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
