//! The address at which processes of one machine reach each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;

use super::super::error::{Error, Result};

/// A connection within one machine is there at once, or not at all.
const LIMIT: Duration = Duration::from_secs(2);

/// An address by which processes of this machine reach each other: 127.0.0.1, ::1, or the first of an interface that
/// can be reached.
///
/// # Errors
/// There is none: the loopback interface, which carries what a machine sends to itself, is down.
pub fn nearby() -> Result<IpAddr> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let found = loopback.into_iter().find(|address| reaches_itself(*address));
    let found = found.or_else(|| own_addresses().into_iter().find(|address| reaches_itself(*address)));
    found.ok_or_else(|| Error::Service {
        address: "this machine".into(),
        reason: "no address of its own can be reached; the loopback interface carries all traffic within a machine"
            .into(),
        remedy: "bring it up (ip link set lo up)",
    })
}

/// The addresses of this machine's interfaces, without those that mean another interface on every machine.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    let addresses = getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    });
    addresses.filter(|address| !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())).collect()
}

fn reaches_itself(address: IpAddr) -> bool {
    let connects = || TcpStream::connect_timeout(&TcpListener::bind((address, 0))?.local_addr()?, LIMIT);
    connects().is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_taken_where_it_is() {
        assert_eq!(nearby().unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(own_addresses().contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
        // Reserved for documentation: no machine has it.
        assert!(!reaches_itself("192.0.2.1".parse().unwrap()));
    }
}
