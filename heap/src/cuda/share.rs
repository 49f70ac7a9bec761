//! Exchange of file descriptors among the PEs of this host, pairwise and without a server thread.
//!
//! Every PE listens under a random name, and sends it to the others with its connection info. It connects to all of
//! them (which needs no PE to accept yet), then serves the PEs that have connected, then collects their descriptors. No
//! step waits for a PE that waits for this one.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
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
    /// host. `is_ended` is called at intervals while it waits, and ends the wait.
    ///
    /// # Errors
    /// A peer that does not arrive in time or before the end, or the error of the system.
    pub fn swap(
        self,
        me: u32,
        fd: RawFd,
        peers: &[(u32, [u8; NAME_LEN])],
        time_limit: Duration,
        is_ended: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<OwnedFd>> {
        let mut wait = Wait { deadline: Instant::now() + time_limit, time_limit, is_ended };
        let mut calls = Vec::with_capacity(peers.len());
        for (pe, name) in peers {
            let address = SocketAddr::from_abstract_name(name).map_err(error(*pe, "its socket's name"))?;
            let mut call = UnixStream::connect_addr(&address).map_err(error(*pe, "connecting"))?;
            call.write_all(&me.to_le_bytes()).map_err(error(*pe, "connecting"))?;
            calls.push((*pe, call));
        }
        let mut served = 0;
        while served < peers.len() {
            let missing = |how: String| CudaError::Exchange {
                pe: me,
                what: "waiting for peers",
                reason: format!("{served} of {} came {how}", peers.len()),
            };
            wait.left().map_err(missing)?;
            match self.listener.accept() {
                Ok((mut stream, _)) => served += usize::from(serve(me, &mut stream, fd, peers, &mut wait)?),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    wait.until_readable(&self.listener, None).map_err(missing)?;
                }
                Err(e) => return Err(error(me, "accepting")(e)),
            }
        }
        calls.iter().map(|(pe, call)| receive(*pe, call, &mut wait)).collect()
    }
}

/// How often a wait asks whether it is ended.
const POLL: Duration = Duration::from_millis(20);

/// How long a connection may say nothing.
const SILENT: Duration = Duration::from_secs(1);

/// The end of all waits of an exchange.
struct Wait<'a> {
    deadline: Instant,
    time_limit: Duration,
    is_ended: &'a mut dyn FnMut() -> bool,
}

impl Wait<'_> {
    /// The time that is left.
    ///
    /// # Errors
    /// How the wait ended.
    fn left(&mut self) -> std::result::Result<Duration, String> {
        if (self.is_ended)() {
            return Err("before the wait was ended".into());
        }
        let left = self.deadline.checked_duration_since(Instant::now());
        left.ok_or_else(|| format!("within {} s", self.time_limit.as_secs()))
    }

    /// Waits for input, a connection, or the end of one. `false`: there was none within `limit`.
    ///
    /// # Errors
    /// How the wait ended.
    fn until_readable(&mut self, what: &impl AsFd, limit: Option<Duration>) -> std::result::Result<bool, String> {
        let begun = Instant::now();
        loop {
            let left = self.left()?;
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                return Ok(false);
            }
            let timeout = PollTimeout::try_from(left.min(POLL)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(what.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(why) => return Err(format!("before the wait failed: {why}")),
            }
        }
    }
}

/// Answers one connection. Returns `false` when it is from none of the peers.
fn serve(
    me: u32,
    stream: &mut UnixStream,
    fd: RawFd,
    peers: &[(u32, [u8; NAME_LEN])],
    wait: &mut Wait<'_>,
) -> Result<bool> {
    let fail = error(me, "serving a peer");
    let ours = std::fs::metadata("/proc/self").map_err(&fail)?.uid();
    let theirs = nix::sys::socket::getsockopt(stream, sockopt::PeerCredentials).map_err(|e| fail(e.into()))?.uid();
    if theirs != ours {
        return Ok(false);
    }
    // A peer sends its number, which is one message, behind the connection.
    let said = wait.until_readable(stream, Some(SILENT));
    if !said.map_err(|how| fail(std::io::Error::other(format!("no number came {how}"))))? {
        return Ok(false);
    }
    stream.set_nonblocking(true).map_err(&fail)?;
    let mut pe = [0; 4];
    if stream.read_exact(&mut pe).is_err() {
        return Ok(false);
    }
    stream.set_nonblocking(false).map_err(&fail)?;
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

fn receive(pe: u32, call: &UnixStream, wait: &mut Wait<'_>) -> Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut room = nix::cmsg_space!(RawFd);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let fail = error(pe, "receiving a descriptor");
    wait.until_readable(call, None).map_err(|how| fail(std::io::Error::other(format!("none came {how}"))))?;
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
                    let got = exchange.swap(pe, fd, &peers, Duration::from_secs(10), &mut || false).unwrap();
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
        let error = mine.swap(0, file.as_raw_fd(), &peers, Duration::from_millis(50), &mut || false).unwrap_err();
        assert!(error.to_string().contains("0 of 1 came"), "{error}");
    }

    /// PE 1 does not connect, or connects and says nothing, or sends no descriptor.
    #[test]
    fn each_wait_for_a_peer_ends_when_it_is_to_end() {
        for (said, words) in
            [(None, "0 of 1 came before"), (Some(0), "no number came before"), (Some(4), "none came before")]
        {
            let (mine, theirs) = (Exchange::listen(0).unwrap(), Exchange::listen(1).unwrap());
            let address = SocketAddr::from_abstract_name(mine.name()).unwrap();
            let _connection = said.map(|bytes| {
                let mut call = UnixStream::connect_addr(&address).unwrap();
                call.write_all(&1u32.to_le_bytes()[..bytes]).unwrap();
                call
            });
            let (file, mut asked) = (tempfile(), 0);
            let mut is_ended = || {
                asked += 1;
                asked == 3
            };
            // Longer than any test.
            let limit = Duration::from_secs(3600);
            let error = mine.swap(0, file.as_raw_fd(), &[(1, theirs.name())], limit, &mut is_ended).unwrap_err();
            assert!(error.to_string().contains(words) && asked == 3, "{error}, asked {asked} times");
        }
    }

    #[test]
    fn a_connection_that_says_nothing_is_none_of_a_peer() {
        let exchanges = [0, 1].map(|pe| Exchange::listen(pe).unwrap());
        let names = exchanges.each_ref().map(Exchange::name);
        let addresses = names.map(|name| SocketAddr::from_abstract_name(name).unwrap());
        let _silent = addresses.map(|address| UnixStream::connect_addr(&address).unwrap());
        std::thread::scope(|scope| {
            for (exchange, pe) in exchanges.into_iter().zip([0u32, 1]) {
                scope.spawn(move || {
                    let (file, peers) = (tempfile(), [(1 - pe, names[1 - pe as usize])]);
                    exchange.swap(pe, file.as_raw_fd(), &peers, Duration::from_secs(60), &mut || false).unwrap();
                });
            }
        });
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
                    let limit = Duration::from_secs(60);
                    let got = exchange.swap(pe, file.as_raw_fd(), &[(peer, name)], limit, &mut || false).unwrap();
                    assert!(begun.elapsed() < Duration::from_secs(30));
                    (fstat(file.as_fd()).unwrap().st_ino, fstat(got[0].as_fd()).unwrap().st_ino)
                })
            });
            let inodes: Vec<_> = pes.collect::<Vec<_>>().into_iter().map(|pe| pe.join().unwrap()).collect();
            for stranger in strangers {
                let (deadline, time_limit) = (Instant::now() + Duration::from_secs(10), Duration::from_secs(10));
                assert!(receive(0, &stranger, &mut Wait { deadline, time_limit, is_ended: &mut || false }).is_err());
            }
            inodes
        });
        assert_eq!((inodes[0].0, inodes[1].0), (inodes[1].1, inodes[0].1));
    }

    fn tempfile() -> OwnedFd {
        nix::sys::memfd::memfd_create(c"exchange", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap()
    }
}
