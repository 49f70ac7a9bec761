//! An authenticated, not encrypted, connection over TCP that never blocks: both ends have the secret of a handle.
//!
//! ```text
//! dialer → listener   magic 8 · nonce 32
//! listener → dialer   nonce 32 · tag 32
//! dialer → listener   tag 32
//! both ways           frames       (from then on)
//! ```
//! Tags are HMAC-SHA-256. Those of the handshake are keyed with the secret and cover both nonces and the end that
//! sends. [Frames](symrail_transport::frames) are keyed with a key that follows from both nonces.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use symrail_transport::frames::{Opener, Sealer, TAG, hmac};
use symrail_transport::{Error, Result, token};

const MAGIC: [u8; 8] = *b"SyRdzv\x04\0";
pub(super) const SECRET: usize = 32;
const NONCE: usize = 32;
/// The largest payload of a frame.
const MAX_PAYLOAD: usize = 1 << 16;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub(super) enum Kind {
    /// The first frame of an end: its card.
    Card = 1,
    /// The listener's operations can reach the dialer.
    Ready = 2,
    /// The end closes the connection.
    Goodbye = 3,
}

/// A frame's kind and payload.
pub(super) type Frame = (Kind, Arc<[u8]>);

/// How a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The other process has closed it, or does not exist any more.
    ByPeer(String),
    /// The path to the other end has failed, or nobody listens there.
    Unreached(String),
    /// The bytes were not those of an end that has the secret.
    Malformed(&'static str),
}

impl Ended {
    fn of(error: &std::io::Error) -> Ended {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ended::ByPeer(error.to_string()),
            ErrorKind::ConnectionRefused => Ended::Unreached(error.to_string()),
            _ => Ended::Unreached(format!("{error}: routes and firewalls must let this host connect to it")),
        }
    }

    pub fn why(self) -> String {
        match self {
            Ended::ByPeer(why) | Ended::Unreached(why) => why,
            Ended::Malformed(why) => why.into(),
        }
    }
}

/// One end of a connection.
pub(super) struct Stream {
    socket: TcpStream,
    dialer: bool,
    secret: [u8; SECRET],
    /// The nonces of the dialer and the listener.
    nonces: [[u8; NONCE]; 2],
    step: Step,
    /// What has arrived of the next step of the handshake.
    input: Vec<u8>,
    output: Vec<u8>,
    /// A path that fails does not end it.
    outlives_path: bool,
    /// A write has failed for another reason than an end.
    failed: bool,
    /// The path has failed.
    broken: bool,
}

enum Step {
    /// The listener waits for the dialer's nonce.
    Hello,
    /// The dialer waits for the listener's nonce and tag.
    Challenge,
    /// The listener waits for the dialer's tag.
    Proof,
    /// Both have verified each other.
    Open(Box<(Sealer, Opener)>),
}

impl Stream {
    /// One end of a connected or connecting socket that does not block.
    pub fn new(socket: TcpStream, dialer: bool, secret: [u8; SECRET]) -> Result<Stream> {
        // The handshake and cards are answered at once, and small.
        let system = |e: std::io::Error| Error::System { what: "connecting two sessions", reason: e.to_string() };
        socket.set_nodelay(true).map_err(system)?;
        let mine = token::random_bytes()?;
        let mut stream = Stream {
            socket,
            dialer,
            secret,
            nonces: [mine; 2],
            step: if dialer { Step::Challenge } else { Step::Hello },
            input: Vec::new(),
            output: Vec::new(),
            outlives_path: false,
            failed: false,
            broken: false,
        };
        if dialer {
            stream.output.extend_from_slice(&MAGIC);
            stream.output.extend_from_slice(&mine);
        }
        Ok(stream)
    }

    /// Whether the other end has shown that it has the secret.
    pub fn is_open(&self) -> bool {
        matches!(self.step, Step::Open(_))
    }

    /// From now on a path that fails says nothing about the other end, which may be reached over another rail. Until then
    /// it ends the connection, so that a dialer dials again.
    pub fn outlives_path(&mut self) {
        self.outlives_path = true;
    }

    /// Whether both ends know that they are connected.
    pub fn is_established(&self) -> bool {
        self.outlives_path
    }

    /// Whether its path has failed, which says nothing about the other end.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sends a frame, now or in a later [`Stream::receive`].
    ///
    /// # Errors
    /// The payload is too large.
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<()> {
        let Step::Open(halves) = &mut self.step else { return Ok(()) };
        if payload.len() > MAX_PAYLOAD {
            return Err(Error::Unsupported {
                what: format!("a payload of {} bytes", payload.len()),
                by: format!("the rendezvous, which carries {MAX_PAYLOAD}"),
                remedy: "send it over a rail".into(),
            });
        }
        let (header, tag) = halves.0.seal(kind as u8, payload);
        [&header[..], payload, &tag[..]].iter().for_each(|bytes| self.output.extend_from_slice(bytes));
        // A failure shows when it is read.
        let _ = self.flush();
        Ok(())
    }

    /// The next frame, if one has arrived.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn receive(&mut self) -> Result<Option<Frame>, Ended> {
        loop {
            self.flush()?;
            let needed = match &mut self.step {
                Step::Hello => MAGIC.len() + NONCE,
                Step::Challenge => NONCE + TAG,
                Step::Proof => TAG,
                Step::Open(halves) => {
                    if let Some((kind, payload)) = halves.1.next_frame().map_err(Ended::Malformed)? {
                        let kind = Kind::from_repr(kind).ok_or(Ended::Malformed("a frame of unknown kind"))?;
                        return Ok(Some((kind, payload)));
                    }
                    usize::MAX
                }
            };
            if self.input.len() == needed {
                let bytes = std::mem::take(&mut self.input);
                self.shake(&bytes)?;
            } else if !self.read(needed - self.input.len())? {
                return Ok(None);
            }
        }
    }

    /// Takes one step of the handshake.
    fn shake(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let nonce = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; NONCE]);
        let wrong = |_| Ended::Malformed("it does not have the secret of the handle");
        match self.step {
            Step::Hello => {
                if bytes[..MAGIC.len()] != MAGIC {
                    return Err(Ended::Malformed("it does not speak this protocol"));
                }
                self.nonces[0] = nonce(MAGIC.len());
                self.output.extend_from_slice(&self.nonces[1]);
                let tag = self.tag(b"listener").finalize().into_bytes();
                self.output.extend_from_slice(&tag);
                self.step = Step::Proof;
            }
            Step::Challenge => {
                self.nonces[1] = nonce(0);
                self.tag(b"listener").verify_slice(&bytes[NONCE..]).map_err(wrong)?;
                let tag = self.tag(b"dialer").finalize().into_bytes();
                self.output.extend_from_slice(&tag);
                self.open();
            }
            Step::Proof => {
                self.tag(b"dialer").verify_slice(bytes).map_err(wrong)?;
                self.open();
            }
            Step::Open(_) => {}
        }
        Ok(())
    }

    fn open(&mut self) {
        let key = self.tag(b"frames").finalize().into_bytes().into();
        let halves = (Sealer::new(&key, u8::from(self.dialer)), Opener::new(&key, u8::from(!self.dialer), MAX_PAYLOAD));
        self.step = Step::Open(Box::new(halves));
    }

    fn tag(&self, purpose: &[u8]) -> Hmac<Sha256> {
        hmac(&self.secret).chain_update(self.nonces[0]).chain_update(self.nonces[1]).chain_update(purpose)
    }

    fn flush(&mut self) -> Result<(), Ended> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if is_later(&error) => return Ok(()),
                // What the other end has sent before may still be read. The socket reports the error once.
                Err(error) if self.is_open() => {
                    self.failed |= error.kind() != ErrorKind::BrokenPipe;
                    self.output.clear();
                }
                Err(error) => return Err(Ended::of(&error)),
            }
        }
        Ok(())
    }

    /// Reads at most so many bytes. Returns `false` if none has arrived.
    fn read(&mut self, max: usize) -> Result<bool, Ended> {
        if self.broken {
            return Ok(false); // the socket would report an end
        }
        let mut buffer = [0; 4096];
        let max = buffer.len().min(max);
        match self.socket.read(&mut buffer[..max]) {
            Ok(0) if self.failed && self.outlives_path => {
                self.broken = true;
                Ok(false)
            }
            Ok(0) => Err(Ended::ByPeer("it has closed the connection".into())),
            Ok(read) => {
                match &mut self.step {
                    Step::Open(halves) => halves.1.feed(&buffer[..read]),
                    _ => self.input.extend_from_slice(&buffer[..read]),
                }
                Ok(true)
            }
            Err(error) if is_later(&error) => Ok(false),
            // The end of a process closes its connections in order, unless it has not read what came last.
            Err(_) if self.outlives_path => {
                self.broken = true;
                Ok(false)
            }
            Err(error) => Err(Ended::of(&error)),
        }
    }
}

/// Whether to try again later; a socket that is still connecting is not connected.
fn is_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}
