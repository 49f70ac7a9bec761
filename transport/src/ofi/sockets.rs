//! The TCP connections of a rail, found among this process's sockets, since libfabric does not show them.
//!
//! A provider over TCP has one connection between two endpoints, from a port of its own to the one at which the other
//! endpoint listens, which is that endpoint's address.

use std::fs;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::rail::Ports;

/// Milliseconds without any answer of the other end's kernel after which a connection with unacknowledged bytes is
/// silent.
const SILENT_MS: u32 = 1500;

/// A connection between two rails.
pub(super) struct Connection {
    stream: TcpStream,
    /// This end has opened it.
    pub opened_here: bool,
    /// The port of the end that has opened it.
    pub port: u16,
}

/// The connections between two rails at these addresses, and others that the peer's host has opened to this rail.
pub(super) fn connections(ours: SocketAddr, theirs: SocketAddr) -> Vec<Connection> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    // Only sockets: to close the copy of a file's descriptor would release the file's locks.
    let is_socket = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    };
    let fds = entries.flatten().filter(is_socket).filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let fds: Vec<i32> = fds.collect();
    fds.into_iter().filter_map(|fd| Connection::find(fd, ours, theirs)).collect()
}

impl Connection {
    fn find(fd: i32, ours: SocketAddr, theirs: SocketAddr) -> Option<Connection> {
        // SAFETY: the descriptor is only copied. If another thread has closed it meanwhile, that fails, or the copy is
        // that of another socket, which has other addresses.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?;
        let stream = TcpStream::from(copy);
        let (here, there) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
        let same = |a: SocketAddr, b: SocketAddr| (a.ip(), a.port()) == (b.ip(), b.port());
        if same(there, theirs) && here.ip() == ours.ip() {
            return Some(Connection { stream, opened_here: true, port: here.port() });
        }
        let accepted = same(here, ours) && there.ip() == theirs.ip();
        accepted.then(|| Connection { stream, opened_here: false, port: there.port() })
    }

    /// Whether bytes are under way, and the other end's kernel has acknowledged nothing for a while, not even that
    /// there is no room.
    pub fn is_silent(&self) -> bool {
        let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: an open socket, and a place of this size.
        let code = unsafe {
            libc::getsockopt(
                self.stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        // SAFETY: integers, which may be zero where the kernel knows fewer.
        let info = unsafe { info.assume_init() };
        code == 0 && (info.tcpi_unacked > 0 || info.tcpi_probes > 0) && info.tcpi_last_ack_recv >= SILENT_MS
    }

    /// Ends the connection at this end at once: the kernel drops what it has yet to send and what has not been read,
    /// and refuses what still arrives.
    pub fn cut(&self) {
        // SAFETY: all zero is a valid address, of no family.
        let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
        // SAFETY: an open socket and an address. Without a family, the kernel disconnects.
        let _ = unsafe {
            libc::connect(self.stream.as_raw_fd(), &raw const nowhere, size_of_val(&nowhere) as libc::socklen_t)
        };
        // Wakes the provider, which then finds the connection ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The ports of connections that this end has opened.
pub(super) fn opened(connections: &[Connection]) -> Ports {
    let mut ports = Ports::default();
    let opened = connections.iter().filter(|connection| connection.opened_here);
    ports.iter_mut().zip(opened).for_each(|(port, connection)| *port = connection.port);
    ports
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_the_named_connection_is_cut_and_delivers_nothing_later() {
        let [here, there] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [ours, theirs] = [&here, &there].map(|listener| listener.local_addr().unwrap());
        // From here to there, from there to here twice, and one that has nothing to do with the rails.
        let mut out = TcpStream::connect(theirs).unwrap();
        let mut far = there.accept().unwrap().0;
        let (one, two) = (TcpStream::connect(ours).unwrap(), TcpStream::connect(ours).unwrap());
        let (mut at_one, mut at_two) = (here.accept().unwrap().0, here.accept().unwrap().0);
        let apart = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut foreign = TcpStream::connect(apart.local_addr().unwrap()).unwrap();
        let mut at_foreign = apart.accept().unwrap().0;
        far.write_all(b"late").unwrap();

        let port = |stream: &TcpStream| stream.local_addr().unwrap().port();
        let found = connections(ours, theirs);
        let mut ends: Vec<_> = found.iter().map(|c| (c.opened_here, c.port)).collect();
        ends.sort_unstable();
        let mut expected = vec![(false, port(&one)), (false, port(&two)), (true, port(&out))];
        expected.sort_unstable();
        assert_eq!(ends, expected);
        assert_eq!(opened(&found), [port(&out), 0, 0]);
        assert!(!found.iter().any(Connection::is_silent));

        found.iter().filter(|c| c.opened_here || c.port == port(&one)).for_each(Connection::cut);
        assert!(!matches!(out.read(&mut [0; 4]), Ok(1..)), "what had arrived is gone");
        assert!(!matches!(at_one.read(&mut [0; 4]), Ok(1..)));
        for (from, to) in [(&two, &mut at_two), (&foreign.try_clone().unwrap(), &mut at_foreign)] {
            let mut from = from;
            from.write_all(b"well").unwrap();
            let mut got = [0; 4];
            to.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"well");
        }
        foreign.write_all(b".").unwrap();
    }
}
