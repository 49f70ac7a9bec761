//! Exchange of file descriptors among the PEs of this host, pairwise and without a server thread.
//!
//! Every PE listens under a random name, and sends it to the others with its connection info. It connects to all of
//! them (which needs no PE to accept yet), then serves the PEs that have connected, then collects their descriptors. No
//! step waits for a PE that waits for this one.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg, sockopt};

use symrail_cuda::error::{CudaError, Result};

/// Bytes of a socket's name.
pub const NAME_LEN: usize = 32;

/// One exchange: a listening socket with a name that peers know.
#[derive(Debug)]
pub struct Exchange {
    name: [u8; NAME_LEN],
    listener: UnixListener,
}

fn error(pe: u32, what: &'static str) -> impl Fn(std::io::Error) -> CudaError {
    move |reason| CudaError::Exchange { pe, what, reason: reason.to_string() }
}

impl Exchange {
    /// Starts to listen.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(me: u32) -> Result<Self> {
        let mut random = [0u8; 12];
        let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut random));
        read.map_err(error(me, "drawing a name"))?;
        let text = random.iter().fold(String::from("symrail-"), |text, byte| format!("{text}{byte:02x}"));
        let mut name = [0; NAME_LEN];
        name.copy_from_slice(text.as_bytes());
        let address = SocketAddr::from_abstract_name(name).map_err(error(me, "naming a socket"))?;
        let listener = UnixListener::bind_addr(&address).map_err(error(me, "listening"))?;
        listener.set_nonblocking(true).map_err(error(me, "listening"))?;
        Ok(Self { name, listener })
    }

    /// The name for peers.
    #[must_use]
    pub fn name(&self) -> [u8; NAME_LEN] {
        self.name
    }

    /// Sends a copy of `fd` to every PE in `peers`, and returns theirs in the same order. Collective among PEs of one
    /// host.
    ///
    /// # Errors
    /// A peer that does not arrive in time, or the error of the system.
    pub fn swap(
        self,
        me: u32,
        fd: RawFd,
        peers: &[(u32, [u8; NAME_LEN])],
        time_limit: Duration,
    ) -> Result<Vec<OwnedFd>> {
        let deadline = Instant::now() + time_limit;
        let mut calls = Vec::with_capacity(peers.len());
        for (pe, name) in peers {
            let address = SocketAddr::from_abstract_name(name).map_err(error(*pe, "its socket's name"))?;
            let mut call = UnixStream::connect_addr(&address).map_err(error(*pe, "connecting"))?;
            call.set_read_timeout(Some(time_limit)).map_err(error(*pe, "connecting"))?;
            call.write_all(&me.to_le_bytes()).map_err(error(*pe, "connecting"))?;
            calls.push((*pe, call));
        }
        let mut served = 0;
        while served < peers.len() {
            match self.listener.accept() {
                Ok((mut stream, _)) => served += usize::from(serve(me, &mut stream, fd, peers, time_limit)?),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    let missing = CudaError::Exchange {
                        pe: me,
                        what: "waiting for peers",
                        reason: format!("{served} of {} came within {} s", peers.len(), time_limit.as_secs()),
                    };
                    wait_readable(&self.listener, deadline).ok_or(missing)?;
                }
                Err(e) => return Err(error(me, "accepting")(e)),
            }
        }
        calls.iter().map(|(pe, call)| receive(*pe, call)).collect()
    }
}

fn wait_readable(listener: &UnixListener, deadline: Instant) -> Option<()> {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let left = deadline.checked_duration_since(Instant::now())?;
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    // An interrupted wait counts as readable: the caller checks again.
    (poll(&mut fds, timeout) != Ok(0)).then_some(())
}

/// Answers one connection. Returns `false` when it is from none of the peers.
fn serve(
    me: u32,
    stream: &mut UnixStream,
    fd: RawFd,
    peers: &[(u32, [u8; NAME_LEN])],
    time_limit: Duration,
) -> Result<bool> {
    let fail = error(me, "serving a peer");
    stream.set_nonblocking(false).map_err(&fail)?;
    stream.set_read_timeout(Some(time_limit)).map_err(&fail)?;
    let ours = std::fs::metadata("/proc/self").map_err(&fail)?.uid();
    let theirs = nix::sys::socket::getsockopt(stream, sockopt::PeerCredentials).map_err(|e| fail(e.into()))?.uid();
    let mut pe = [0; 4];
    if theirs != ours || stream.read_exact(&mut pe).is_err() {
        return Ok(false);
    }
    let pe = u32::from_le_bytes(pe);
    if !peers.iter().any(|(known, _)| *known == pe) {
        return Ok(false);
    }
    let fds = [fd];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(b"h")], &rights, MsgFlags::MSG_NOSIGNAL, None)
        .map_err(|e| error(pe, "sending a descriptor")(e.into()))?;
    Ok(true)
}

fn receive(pe: u32, call: &UnixStream) -> Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut room = nix::cmsg_space!(RawFd);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let fail = error(pe, "receiving a descriptor");
    let message = recvmsg::<()>(call.as_raw_fd(), &mut parts, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC)
        .map_err(|e| fail(e.into()))?;
    let none = || fail(std::io::Error::other("the peer sent none"));
    for control in message.cmsgs().map_err(|e| fail(e.into()))? {
        if let ControlMessageOwned::ScmRights(fds) = control
            && let [fd] = fds[..]
        {
            // SAFETY: a new descriptor that the kernel made for this process; there was room for only one.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Err(none())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn each_pe_gets_the_descriptors_of_all_others() {
        let files: Vec<_> = (0..3).map(|_| tempfile()).collect();
        let inodes: Vec<_> = files.iter().map(|f| fstat(f.as_fd()).unwrap().st_ino).collect();
        let exchanges: Vec<_> = (0..3).map(|pe| Exchange::listen(pe).unwrap()).collect();
        let names: Vec<_> = exchanges.iter().map(Exchange::name).collect();
        std::thread::scope(|scope| {
            for (exchange, pe) in exchanges.into_iter().zip(0u32..) {
                let peers: Vec<_> = (0u32..3).filter(|p| *p != pe).map(|p| (p, names[p as usize])).collect();
                let (fd, inodes) = (files[pe as usize].as_raw_fd(), &inodes);
                scope.spawn(move || {
                    let got = exchange.swap(pe, fd, &peers, Duration::from_secs(10)).unwrap();
                    for ((peer, _), fd) in peers.iter().zip(&got) {
                        assert_eq!(fstat(fd.as_fd()).unwrap().st_ino, inodes[*peer as usize]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_peer_that_does_not_come_is_named_in_time() {
        let (mine, theirs) = (Exchange::listen(0).unwrap(), Exchange::listen(1).unwrap());
        let file = tempfile();
        let peers = [(1, theirs.name())];
        let error = mine.swap(0, file.as_raw_fd(), &peers, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("0 of 1 came"), "{error}");
    }

    #[test]
    fn another_user_gets_nothing_and_keeps_nobody_waiting() {
        // SAFETY: the call has no arguments and accesses no memory.
        if unsafe { nix::libc::geteuid() } != 0 {
            println!("SKIPPED: to be another user for a while, a test has to be started by root");
            return;
        }
        let exchanges = [0, 1].map(|pe| Exchange::listen(pe).unwrap());
        let names = exchanges.each_ref().map(Exchange::name);
        let inodes = std::thread::scope(|scope| {
            // One stranger sends nothing, one claims to be the peer.
            let strangers = scope.spawn(|| {
                // SAFETY: the system call itself, unlike libc's function, affects only this thread, which ends soon.
                assert_eq!(unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
                let address = SocketAddr::from_abstract_name(names[0]).unwrap();
                let [silent, mut liar] = [(); 2].map(|()| UnixStream::connect_addr(&address).unwrap());
                liar.write_all(&1u32.to_le_bytes()).unwrap();
                [silent, liar]
            });
            let strangers = strangers.join().unwrap();
            let pes = exchanges.into_iter().zip([0u32, 1]).map(|(exchange, pe)| {
                let peer = 1 - pe;
                let name = names[peer as usize];
                scope.spawn(move || {
                    let (file, begun) = (tempfile(), Instant::now());
                    let got = exchange.swap(pe, file.as_raw_fd(), &[(peer, name)], Duration::from_secs(60)).unwrap();
                    assert!(begun.elapsed() < Duration::from_secs(30));
                    (fstat(file.as_fd()).unwrap().st_ino, fstat(got[0].as_fd()).unwrap().st_ino)
                })
            });
            let inodes: Vec<_> = pes.collect::<Vec<_>>().into_iter().map(|pe| pe.join().unwrap()).collect();
            for stranger in strangers {
                assert!(receive(0, &stranger).is_err());
            }
            inodes
        });
        assert_eq!((inodes[0].0, inodes[1].0), (inodes[1].1, inodes[0].1));
    }

    fn tempfile() -> OwnedFd {
        nix::sys::memfd::memfd_create(c"exchange", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap()
    }
}
