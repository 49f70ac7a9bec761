//! An authenticated, not encrypted, connection over TCP that never blocks: both ends have the secret of a handle.
//!
//! ```text
//! dialer → listener   magic 8 · nonce 32
//! listener → dialer   nonce 32 · tag 32
//! dialer → listener   tag 32
//! both ways           length 4 · tag 32 · payload `length`      (from then on)
//! ```
//! Tags are HMAC-SHA-256. Those of the handshake are keyed with the secret and cover both nonces and the end that
//! sends. Those of frames are keyed with a key that follows from both nonces, and cover the direction, the frame's
//! number and its payload. So what was recorded, reflected, dropped or reordered fails like what was changed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use symrail_transport::{Error, Result, token};

const MAGIC: [u8; 8] = *b"SyRdzv\x01\0";
pub(super) const SECRET: usize = 32;
const NONCE: usize = 32;
const TAG: usize = 32;
const HEAD: usize = 4 + TAG;
/// The largest payload of a frame.
const LARGEST: usize = 1 << 16;

/// 32 random bytes.
pub(super) fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&token::random()?.to_le_bytes());
    }
    Ok(bytes)
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    // HMAC pads a short key with zeros to one block; doing so here makes the call infallible.
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    <Hmac<Sha256> as KeyInit>::new(&block.into())
}

/// How a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The other process has closed it, or does not exist any more.
    ByPeer(String),
    /// The bytes were not those of an end that has the secret.
    Malformed(&'static str),
}

/// One end of a connection.
pub(super) struct Stream {
    socket: TcpStream,
    dialer: bool,
    secret: [u8; SECRET],
    /// The nonces of the dialer and the listener.
    nonces: [[u8; NONCE]; 2],
    step: Step,
    input: Vec<u8>,
    output: Vec<u8>,
    received: u64,
    sent: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The listener waits for the dialer's nonce.
    Hello,
    /// The dialer waits for the listener's nonce and tag.
    Challenge,
    /// The listener waits for the dialer's tag.
    Proof,
    /// Both have verified each other, with this key of the frames.
    Open([u8; 32]),
}

impl Stream {
    /// One end of a connected or connecting socket that does not block.
    pub fn new(socket: TcpStream, dialer: bool, secret: [u8; SECRET]) -> Result<Stream> {
        let mine = random()?;
        let mut stream = Stream {
            socket,
            dialer,
            secret,
            nonces: [mine; 2],
            step: if dialer { Step::Challenge } else { Step::Hello },
            input: Vec::new(),
            output: Vec::new(),
            received: 0,
            sent: 0,
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

    /// Sends a frame, now or in a later [`Stream::receive`].
    ///
    /// # Errors
    /// The payload is too large.
    pub fn send(&mut self, payload: &[u8]) -> Result<()> {
        let Step::Open(key) = self.step else { return Ok(()) };
        if payload.len() > LARGEST {
            return Err(Error::Unsupported {
                what: format!("a payload of {} bytes", payload.len()),
                by: format!("the rendezvous, which carries {LARGEST}"),
                remedy: "send it over a rail".into(),
            });
        }
        let tag = frame_tag(&key, self.dialer, self.sent, payload).finalize().into_bytes();
        self.sent += 1;
        self.output.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.output.extend_from_slice(&tag);
        self.output.extend_from_slice(payload);
        // A failure shows when it is read.
        let _ = self.flush();
        Ok(())
    }

    /// The next frame, if one has arrived.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Ended> {
        loop {
            self.flush()?;
            let (key, needed) = match self.step {
                Step::Hello => (None, MAGIC.len() + NONCE),
                Step::Challenge => (None, NONCE + TAG),
                Step::Proof => (None, TAG),
                Step::Open(key) => (Some(key), HEAD + self.announced()?),
            };
            if self.input.len() < needed {
                if !self.fill(needed)? {
                    return Ok(None);
                }
                continue;
            }
            let rest = self.input.split_off(needed);
            let bytes = std::mem::replace(&mut self.input, rest);
            let Some(key) = key else {
                self.shake(&bytes)?;
                continue;
            };
            let tag = frame_tag(&key, !self.dialer, self.received, &bytes[HEAD..]);
            tag.verify_slice(&bytes[4..HEAD]).map_err(|_| Ended::Malformed("a frame has a wrong tag"))?;
            self.received += 1;
            return Ok(Some(bytes[HEAD..].to_vec()));
        }
    }

    /// The length of the payload of the frame whose head has arrived.
    fn announced(&self) -> Result<usize, Ended> {
        let length = self.input.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        if length <= LARGEST { Ok(length) } else { Err(Ended::Malformed("a frame is too long")) }
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
        self.step = Step::Open(self.tag(b"frames").finalize().into_bytes().into());
    }

    fn tag(&self, purpose: &[u8]) -> Hmac<Sha256> {
        keyed(&self.secret).chain_update(self.nonces[0]).chain_update(self.nonces[1]).chain_update(purpose)
    }

    fn flush(&mut self) -> Result<(), Ended> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if is_later(&error) => return Ok(()),
                // What the other end has sent before may still be read.
                Err(error) if self.is_open() && error.kind() == ErrorKind::BrokenPipe => self.output.clear(),
                Err(error) => return Err(Ended::ByPeer(error.to_string())),
            }
        }
        Ok(())
    }

    /// Reads until there are `needed` bytes. Returns `false` while they have not arrived.
    fn fill(&mut self, needed: usize) -> Result<bool, Ended> {
        let mut buffer = [0; 4096];
        while self.input.len() < needed {
            let most = buffer.len().min(needed - self.input.len());
            match self.socket.read(&mut buffer[..most]) {
                Ok(0) => return Err(Ended::ByPeer("it has closed the connection".into())),
                Ok(read) => self.input.extend_from_slice(&buffer[..read]),
                Err(error) if is_later(&error) => return Ok(false),
                // The path has failed, which says nothing about the process: it may be reached over another rail.
                Err(error) if self.is_open() && !is_end(&error) => return Ok(false),
                Err(error) => return Err(Ended::ByPeer(error.to_string())),
            }
        }
        Ok(true)
    }
}

/// Whether to try again later; a socket that is still connecting is not connected.
fn is_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}

/// Whether the other end has ended the connection.
fn is_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
}

fn frame_tag(key: &[u8; 32], from_dialer: bool, number: u64, payload: &[u8]) -> Hmac<Sha256> {
    keyed(key).chain_update([u8::from(from_dialer)]).chain_update(number.to_le_bytes()).chain_update(payload)
}
