//! Sockets of services: over TCP, or Unix-domain ones where processes of one machine reach each other by no IP address.
//!
//! Both are stream sockets, and the standard library's [`TcpStream`] stands for either: what is done with one after it
//! has connected are the same system calls.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::str::FromStr;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr as Name, connect, socket};
use serde::{Deserialize, Serialize};

use super::wire::random;

/// How the text of an abstract Unix-domain address begins, as in gRPC's names; its number follows.
const ABSTRACT: &str = "unix-abstract:symrail-";

/// The address that a service or relay listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Address {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A Unix-domain socket in the abstract namespace, which all processes of one network namespace share. Its name has
    /// this number.
    Unix(u64),
}

impl Address {
    /// The length of its encoding.
    pub(in super::super) const LEN: usize = 20;

    /// Its encoding: family 1 (4, 6, or 1 for Unix) · 0 · port 2 · address 16. Zeros for none.
    pub(in super::super) fn encode(address: Option<Address>) -> [u8; Address::LEN] {
        let mut bytes = [0; Address::LEN];
        let (family, port) = match address {
            None => (0, 0),
            Some(Address::Unix(number)) => {
                bytes[4..12].copy_from_slice(&number.to_le_bytes());
                (1, 0)
            }
            Some(Address::Ip(at)) => {
                match at.ip() {
                    IpAddr::V4(ip) => bytes[4..8].copy_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => bytes[4..20].copy_from_slice(&ip.octets()),
                }
                (if at.is_ipv4() { 4 } else { 6 }, at.port())
            }
        };
        bytes[0] = family;
        bytes[2..4].copy_from_slice(&port.to_le_bytes());
        bytes
    }

    /// Decodes an address; `None` for zeros, and for what is no address.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Address> {
        let bytes: &[u8; Address::LEN] = bytes.try_into().ok()?;
        let port = u16::from_le_bytes([bytes[2], bytes[3]]);
        let (number, _) = bytes[4..].split_first_chunk()?;
        let ip = match bytes[0] {
            1 => return Some(Address::Unix(u64::from_le_bytes(*number))),
            4 => IpAddr::V4(Ipv4Addr::from(*bytes[4..].first_chunk::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(*bytes[4..].first_chunk::<16>()?)),
            _ => return None,
        };
        (port != 0).then(|| Address::Ip(SocketAddr::new(ip, port)))
    }

    /// The IP address and port, if it is one.
    #[must_use]
    pub fn ip(self) -> Option<SocketAddr> {
        match self {
            Address::Ip(at) => Some(at),
            Address::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(at: SocketAddr) -> Address {
        Address::Ip(at)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(at) => at.fmt(f),
            Address::Unix(number) => write!(f, "{ABSTRACT}{number:016x}"),
        }
    }
}

impl FromStr for Address {
    type Err = ();

    fn from_str(text: &str) -> Result<Address, ()> {
        match text.strip_prefix(ABSTRACT) {
            Some(number) => u64::from_str_radix(number, 16).map(Address::Unix).map_err(drop),
            None => text.parse().map(Address::Ip).map_err(drop),
        }
    }
}

/// A socket that accepts connections, without blocking.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, u64),
}

impl Listener {
    /// A socket on a random port of one interface, or without one on a random name in the abstract namespace.
    pub fn bind(interface: Option<IpAddr>) -> io::Result<Listener> {
        let listener = match interface {
            Some(interface) => {
                let listener = TcpListener::bind((interface, 0))?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            None => {
                let number = u64::from_le_bytes(random().map_err(io::Error::other)?);
                let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name(number))?)?;
                listener.set_nonblocking(true)?;
                Listener::Unix(listener, number)
            }
        };
        Ok(listener)
    }

    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Ip),
            Listener::Unix(_, number) => Ok(Address::Unix(*number)),
        }
    }

    /// The next connection, and its address: over a Unix-domain socket, which has none at the other end, this one's.
    pub fn accept(&self) -> io::Result<(TcpStream, Address)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok((stream, Address::Ip(from)))
            }
            Listener::Unix(listener, number) => {
                Ok((OwnedFd::from(listener.accept()?.0).into(), Address::Unix(*number)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Connects to a service.
pub(super) fn dial(address: Address, timeout: Duration) -> io::Result<TcpStream> {
    match address {
        Address::Ip(at) => {
            let stream = TcpStream::connect_timeout(&at, timeout)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        }
        Address::Unix(number) => {
            let flags = SockFlag::SOCK_CLOEXEC;
            let stream = TcpStream::from(socket(AddressFamily::Unix, SockType::Stream, flags, None)?);
            // It limits a connection that waits until the service accepts others, too.
            stream.set_write_timeout(Some(timeout))?;
            let name = Name::new_abstract(name(number).as_bytes())?;
            loop {
                match connect(stream.as_raw_fd(), &name) {
                    Err(Errno::EINTR) => {}
                    Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                    connected => return connected.map(|()| stream).map_err(io::Error::from),
                }
            }
        }
    }
}

/// The interface of this end of a connection; `None` for a Unix-domain one.
pub(super) fn interface_of(stream: &TcpStream, to: Address) -> io::Result<Option<IpAddr>> {
    to.ip().map(|_| stream.local_addr().map(|at| at.ip())).transpose()
}

fn name(number: u64) -> String {
    format!("symrail-{number:016x}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_text_and_bytes() {
        for text in ["10.0.0.1:7", "[fd00::1]:65535", "unix-abstract:symrail-00000000000000ab"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(Address::decode(&Address::encode(Some(address))), Some(address));
        }
        assert_eq!(Address::decode(&Address::encode(None)), None);
        let mut unknown = Address::encode(Some(Address::Unix(7)));
        unknown[0] = 9;
        assert_eq!((Address::decode(&unknown), Address::decode(&[4])), (None, None));
        assert!(
            ["unix-abstract:symrail-", "unix-abstract:symrail-x", "10.0.0.1", ""]
                .iter()
                .all(|it| it.parse::<Address>().is_err())
        );
    }

    #[test]
    fn processes_connect_without_an_interface() {
        let listener = Listener::bind(None).unwrap();
        let address = listener.address().unwrap();
        let stream = dial(address, Duration::from_secs(9)).unwrap();
        assert_eq!(interface_of(&stream, address).unwrap(), None);
        let (accepted, from) = listener.accept().unwrap();
        assert_eq!(from, address);
        io::Write::write_all(&mut &accepted, b"word").unwrap();
        let mut word = [0; 4];
        io::Read::read_exact(&mut &stream, &mut word).unwrap();
        assert_eq!(&word, b"word");
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert_eq!(dial(address, Duration::from_secs(9)).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
