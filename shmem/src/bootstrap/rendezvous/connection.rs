//! One connection of the service. It never blocks, and its peer is untrusted until the hello has been checked.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendmsg};
use symrail_transport::Pe;
use symrail_transport::frames::Sealer;

use super::dial::Dialed;
use super::socket::Address;
use super::wire::{Direction, Frame, HELLO, Hello, Kind, NONCE, Opener, REFUSAL, Secret, challenge};

/// The most bytes read from one connection before the other connections are served.
const TURN: usize = 1 << 20;

/// The state of a connection.
enum Phase {
    /// The service has sent a challenge; the peer has until `deadline` to answer it.
    Greeting { nonce: [u8; NONCE], deadline: Instant, hello: Vec<u8> },
    /// The peer is a PE.
    Member { pe: Pe, opener: Box<Opener>, sealer: Box<Sealer> },
}

pub(super) struct Connection {
    stream: TcpStream,
    /// The peer's address.
    pub(super) from: Address,
    phase: Phase,
    out: VecDeque<Arc<[u8]>>,
    /// The number of bytes of `out` that are written.
    written: usize,
    /// The connection closes once everything is written.
    pub(super) closing: bool,
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        from: Address,
        nonce: [u8; NONCE],
        deadline: Instant,
    ) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        let phase = Phase::Greeting { nonce, deadline, hello: Vec::with_capacity(HELLO) };
        let out = VecDeque::from([Arc::from(challenge(&nonce).as_slice())]);
        Ok(Connection { stream, from, phase, out, written: 0, closing: false })
    }

    /// A relay's connection to the node above it. PE `pe` is the first of the relay's PEs.
    pub(super) fn to_parent(dialed: Dialed, pe: Pe) -> io::Result<Connection> {
        let Dialed { address: from, stream, sealer, opener, .. } = dialed;
        stream.set_nonblocking(true)?;
        let phase = Phase::Member { pe, opener: Box::new(opener), sealer: Box::new(sealer) };
        Ok(Connection { stream, from, phase, out: VecDeque::new(), written: 0, closing: false })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The PE at the other end, once that is proven.
    pub(super) fn pe(&self) -> Option<Pe> {
        match self.phase {
            Phase::Member { pe, .. } => Some(pe),
            Phase::Greeting { .. } => None,
        }
    }

    /// The deadline of the hello; `None` for a PE.
    pub(super) fn hello_due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Greeting { deadline, .. } => Some(deadline),
            Phase::Member { .. } => None,
        }
    }

    /// Receives the bytes that have arrived. `Ok(false)` at the end of the stream.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        let mut taken = 0;
        while taken < TURN {
            let most = match &self.phase {
                // From an unauthenticated peer the service reads no byte beyond a hello.
                Phase::Greeting { hello, .. } => HELLO - hello.len(),
                Phase::Member { .. } => scratch.len(),
            };
            if most == 0 {
                return Ok(true);
            }
            match self.stream.read(&mut scratch[..most]) {
                Ok(0) => return Ok(false),
                Ok(bytes) => {
                    taken += bytes;
                    match &mut self.phase {
                        Phase::Greeting { hello, .. } => hello.extend_from_slice(&scratch[..bytes]),
                        Phase::Member { opener, .. } => opener.feed(&scratch[..bytes]),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Checks the hello once it is complete, and then switches to the connection's own key.
    pub(super) fn greeted(&mut self, secret: &Secret) -> Result<Option<Hello>, &'static str> {
        let Phase::Greeting { nonce, hello, .. } = &self.phase else { return Ok(None) };
        let Ok(bytes) = <&[u8; HELLO]>::try_from(hello.as_slice()) else { return Ok(None) };
        let hello = Hello::decode(bytes, secret, nonce)?;
        let key = hello.session_key(secret, nonce);
        let opener = Box::new(Opener::new(&key, Direction::ToService));
        let sealer = Box::new(Sealer::new(&key, Direction::ToPe as u8));
        self.phase = Phase::Member { pe: hello.pe, opener, sealer };
        Ok(Some(hello))
    }

    /// The next complete frame of a PE.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, &'static str> {
        match &mut self.phase {
            Phase::Member { opener, .. } => opener.next_frame(),
            Phase::Greeting { .. } => Ok(None),
        }
    }

    /// Queues a frame for a PE. The payload is shared, not copied, when many PEs get it.
    pub(super) fn send(&mut self, kind: Kind, payload: &Arc<[u8]>) {
        if let Phase::Member { sealer, .. } = &mut self.phase {
            let (header, tag) = sealer.seal(kind as u8, payload);
            self.out.push_back(Arc::from(header.as_slice()));
            self.out.push_back(Arc::clone(payload));
            self.out.push_back(Arc::from(tag.as_slice()));
        }
    }

    /// Tells the peer that its hello was wrong, if the socket accepts that at once. The caller then closes the
    /// connection.
    pub(super) fn turn_down(&mut self) {
        if self.out.is_empty() {
            let _ = self.stream.write(&REFUSAL);
        }
    }

    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Writes as much as the socket accepts now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(front) = self.out.front() {
            if self.written == front.len() {
                self.out.pop_front();
                self.written = 0;
                continue;
            }
            let mut slices = [io::IoSlice::new(&front[self.written..]), io::IoSlice::new(&[]), io::IoSlice::new(&[])];
            for (slice, next) in slices[1..].iter_mut().zip(self.out.iter().skip(1)) {
                *slice = io::IoSlice::new(next);
            }
            // The standard library's write of several buffers raises SIGPIPE, which ends a C program.
            match sendmsg::<()>(self.stream.as_raw_fd(), &slices, &[], MsgFlags::MSG_NOSIGNAL, None) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.advance(bytes),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        while let Some(front) = self.out.front().filter(|front| self.written >= front.len()) {
            self.written -= front.len();
            self.out.pop_front();
        }
    }
}
