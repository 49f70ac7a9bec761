//! The address at which processes of one machine reach each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Duration;

use symrail_transport::topology::own_addresses;

/// A connection within one machine is there at once, or not at all.
const LIMIT: Duration = Duration::from_secs(2);

/// An address by which processes of this machine reach each other: 127.0.0.1, ::1, or the first of an interface that
/// can be reached. `None` where the loopback interface, which carries what a machine sends to itself, is down: processes
/// then reach each other by Unix-domain sockets only.
#[must_use]
pub fn nearby() -> Option<IpAddr> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let found = loopback.into_iter().find(|address| reaches_itself(*address));
    found.or_else(|| own_addresses()?.into_iter().find(|address| reaches_itself(*address)))
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
        assert_eq!(nearby(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        // Reserved for documentation: no machine has it.
        assert!(!reaches_itself("192.0.2.1".parse().unwrap()));
    }
}
