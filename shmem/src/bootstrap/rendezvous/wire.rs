//! The wire format of the rendezvous service.
//!
//! ```text
//! service → PE   challenge   magic 8 · nonce 32                                        (once, in the clear)
//! PE → service   hello       magic 8 · pe 4 · n_pes 4 · relay 20 · nonce 32 · tag 32   (once)
//! both ways      frame       length 4 · kind 1 · payload `length` · tag 32             (from then on)
//! service → PE   refusal     magic 8                                    (in place of a frame, after a wrong hello)
//! ```
//! Integers are little endian. A relay's hello names the first of its PEs, and the address where it listens, which is
//! all zeros in a PE's own hello. Nodes of the tree talk to each other as PEs do to a service.
//!
//! The hello's tag is keyed with the job's secret and covers the service's nonce, so a recorded hello is useless on
//! another connection. Both nonces, the PE and the job's size determine the connection's key. A frame's tag covers its
//! direction and its number on the connection, so a frame that was replayed, reflected, dropped or reordered fails like
//! one that was changed. Tags are compared in constant time.

use std::fmt;
use std::sync::Arc;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use rand::TryRng;
use sha2::Sha256;

use super::super::error::{Error, Result};
use super::socket::Address;

/// The largest contribution to one allgather, in bytes.
pub const MAX_CONTRIBUTION: usize = 16 << 20;
/// The largest payload of a frame: a contribution and its header.
pub(super) const MAX_PAYLOAD: usize = MAX_CONTRIBUTION + 64;
/// The name and version of the protocol; both ends send it first.
pub(super) const MAGIC: [u8; 8] = *b"SYMRAIL\x06";
/// Sent in place of a frame: the hello was wrong. It is not authenticated, and only a message depends on it.
pub(super) const REFUSAL: [u8; 8] = *b"SYMRAIL\xff";
pub(super) const NONCE: usize = 32;
pub(super) const TAG: usize = 32;
pub(super) const CHALLENGE: usize = MAGIC.len() + NONCE;
pub(super) const HELLO: usize = MAGIC.len() + 8 + Address::LEN + NONCE + TAG;
const HEADER: usize = 5;

/// The key of a job. Any process that has it can join; it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub(in super::super) [u8; Secret::LEN]);

impl Secret {
    /// Its length in bytes.
    pub const LEN: usize = 32;

    /// A fresh secret from the system's random numbers.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Secret> {
        Ok(Secret(random()?))
    }

    /// A secret that the launcher of this process has generated.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Secret::LEN]) -> Secret {
        Secret(bytes)
    }

    /// The bytes, for the pipe or id that carries them to the PEs.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Secret::LEN] {
        &self.0
    }

    fn mac(&self, purpose: &[u8]) -> Hmac<Sha256> {
        keyed(&self.0).chain_update(purpose)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Fresh random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match rand::rngs::SysRng.try_fill_bytes(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::System { what: "random numbers", reason: error.to_string() }),
    }
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    // HMAC pads a short key with zeros to one block; doing so here makes the call infallible.
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    <Hmac<Sha256> as KeyInit>::new(&block.into())
}

/// The service's first bytes.
pub(super) fn challenge(nonce: &[u8; NONCE]) -> [u8; CHALLENGE] {
    let mut bytes = [0; CHALLENGE];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(nonce);
    bytes
}

/// A PE's claimed identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub pe: u32,
    pub n_pes: u32,
    /// The address where a relay listens.
    pub relay: Option<Address>,
    pub nonce: [u8; NONCE],
}

impl Hello {
    pub(super) fn encode(&self, secret: &Secret, service_nonce: &[u8; NONCE]) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let (body, tag) = bytes.split_at_mut(HELLO - TAG);
        body[..8].copy_from_slice(&MAGIC);
        body[8..12].copy_from_slice(&self.pe.to_le_bytes());
        body[12..16].copy_from_slice(&self.n_pes.to_le_bytes());
        body[16..16 + Address::LEN].copy_from_slice(&Address::encode(self.relay));
        body[16 + Address::LEN..].copy_from_slice(&self.nonce);
        tag.copy_from_slice(
            &secret.mac(b"hello").chain_update(service_nonce).chain_update(body).finalize().into_bytes(),
        );
        bytes
    }

    /// Decodes a hello and checks that its sender knows the secret and answers this very challenge.
    pub(super) fn decode(
        bytes: &[u8; HELLO],
        secret: &Secret,
        service_nonce: &[u8; NONCE],
    ) -> Result<Hello, &'static str> {
        let (body, tag) = bytes.split_at(HELLO - TAG);
        if body[..8] != MAGIC {
            return Err("it does not speak this protocol");
        }
        let mac = secret.mac(b"hello").chain_update(service_nonce).chain_update(body);
        mac.verify_slice(tag).map_err(|_| "wrong secret, or a hello recorded earlier")?;
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&body[16 + Address::LEN..]);
        let relay = Address::decode(&body[16..16 + Address::LEN]);
        Ok(Hello { pe: u32_at(body, 8), n_pes: u32_at(body, 12), relay, nonce })
    }

    /// The key of this connection alone.
    pub(super) fn session_key(&self, secret: &Secret, service_nonce: &[u8; NONCE]) -> [u8; 32] {
        let mac = secret.mac(b"session").chain_update(service_nonce).chain_update(self.nonce);
        let mac = mac.chain_update(self.pe.to_le_bytes()).chain_update(self.n_pes.to_le_bytes());
        mac.chain_update(Address::encode(self.relay)).finalize().into_bytes().into()
    }
}

/// Reads four bytes that the caller has checked to exist.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub enum Kind {
    /// Service → PE: the PE is admitted. The payload names the PE that runs the service, if any.
    Welcome = 1,
    /// PE → service: a contribution to the current round, of one PE or of a relay's.
    Contribute = 2,
    /// Service → PE: some consecutive PEs' contributions.
    Result = 3,
    /// Service → PE: the job is broken, and why. A relay also sends it up.
    Fault = 4,
    /// PE → service: the PE leaves; the payload is `FINISHED` if all PEs leave together, empty if it has not waited for
    /// them.
    Bye = 5,
    /// PE → service: a request to end the job.
    Abort = 6,
    /// Service → PE: PEs that are late and alive.
    Late = 7,
    /// Service → PE: faults of PEs that take part in no further step. A relay also sends it up.
    LostPes = 8,
    /// Service → PE: the address of the relay that serves the PE.
    Redirect = 9,
    /// Service → PE: the PE must run the relay of these PEs.
    Serve = 10,
    /// Service → relay: the question which of its PEs are missing.
    Ask = 11,
    /// Relay → service: its missing PEs.
    Missing = 12,
}

/// A PE's [`Kind::Bye`] payload when all others were done too.
pub(super) const FINISHED: &[u8] = &[1];

/// The direction of a frame; part of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToService = 1,
    ToPe = 2,
}

/// Computes the tags of one direction of one connection.
#[derive(Clone)]
struct Seal {
    key: Hmac<Sha256>,
    direction: Direction,
    sequence: u64,
}

impl Seal {
    fn mac(&self, header: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        let mac = self.key.clone().chain_update([self.direction as u8]).chain_update(self.sequence.to_le_bytes());
        mac.chain_update(header).chain_update(payload)
    }
}

/// The sending half of a connection.
pub(super) struct Sealer(Seal);

impl Sealer {
    pub(super) fn new(session_key: &[u8; 32], direction: Direction) -> Sealer {
        Sealer(Seal { key: keyed(session_key), direction, sequence: 0 })
    }

    /// The bytes before and after `payload` on the wire. `payload` is at most [`MAX_PAYLOAD`] bytes.
    pub(super) fn seal(&mut self, kind: Kind, payload: &[u8]) -> ([u8; HEADER], [u8; TAG]) {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
        header[4] = kind as u8;
        let tag = self.0.mac(&header, payload).finalize().into_bytes().into();
        self.0.sequence += 1;
        (header, tag)
    }
}

/// A frame's kind and payload.
pub(super) type Frame = (Kind, Arc<[u8]>);

/// The receiving half of a connection: collects bytes and returns frames whose tags are right.
pub(super) struct Opener {
    seal: Seal,
    bytes: Vec<u8>,
}

impl Opener {
    pub(super) fn new(session_key: &[u8; 32], direction: Direction) -> Opener {
        Opener { seal: Seal { key: keyed(session_key), direction, sequence: 0 }, bytes: Vec::new() }
    }

    /// Adds bytes that arrived. Memory grows with bytes received, never with an announced length.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one. After an error the connection must be closed.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, &'static str> {
        if self.bytes.len() < HEADER {
            return Ok(None);
        }
        let length = u32_at(&self.bytes, 0) as usize;
        if length > MAX_PAYLOAD {
            return Err("a frame above the size limit");
        }
        let whole = HEADER + length + TAG;
        if self.bytes.len() < whole {
            return Ok(None);
        }
        let (header, rest) = self.bytes.split_at(HEADER);
        let (payload, tag) = rest[..length + TAG].split_at(length);
        let mac = self.seal.mac(header, payload);
        mac.verify_slice(tag).map_err(|_| "a frame with a wrong tag: changed, replayed or out of order")?;
        let kind = Kind::from_repr(header[4]).ok_or("a frame of unknown kind")?;
        let payload = Arc::from(payload);
        self.seal.sequence += 1;
        self.bytes.drain(..whole);
        Ok(Some((kind, payload)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn frame(sealer: &mut Sealer, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let (header, tag) = sealer.seal(kind, payload);
        [&header[..], payload, &tag[..]].concat()
    }

    #[test]
    fn frames_pass_in_order_and_in_pieces() {
        let mut sealer = Sealer::new(&KEY, Direction::ToService);
        let mut opener = Opener::new(&KEY, Direction::ToService);
        let bytes = [frame(&mut sealer, Kind::Contribute, b"one"), frame(&mut sealer, Kind::Bye, b"")].concat();
        let mut seen = Vec::new();
        for byte in bytes {
            opener.feed(&[byte]);
            seen.extend(opener.next_frame().unwrap());
        }
        assert_eq!(seen, [(Kind::Contribute, Arc::from(&b"one"[..])), (Kind::Bye, Arc::from([]))]);
    }

    #[test]
    fn replayed_reflected_reordered_or_changed_frames_are_refused() {
        let mut sealer = Sealer::new(&KEY, Direction::ToService);
        let first = frame(&mut sealer, Kind::Contribute, b"one");
        let second = frame(&mut sealer, Kind::Contribute, b"two");

        let mut replay = Opener::new(&KEY, Direction::ToService);
        replay.feed(&first);
        assert!(replay.next_frame().unwrap().is_some());
        replay.feed(&first);
        assert!(replay.next_frame().is_err());

        let mut reflected = Opener::new(&KEY, Direction::ToPe);
        reflected.feed(&first);
        assert!(reflected.next_frame().is_err());

        let mut reordered = Opener::new(&KEY, Direction::ToService);
        reordered.feed(&second);
        assert!(reordered.next_frame().is_err());

        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 0x10;
            let mut opener = Opener::new(&KEY, Direction::ToService);
            opener.feed(&changed);
            // A longer length waits for bytes that never arrive; no frame is ever accepted.
            assert!(!matches!(opener.next_frame(), Ok(Some(_))), "byte {at}");
        }
    }

    #[test]
    fn an_announced_length_is_checked_before_memory_is_taken() {
        let mut opener = Opener::new(&KEY, Direction::ToService);
        opener.feed(&[0xff, 0xff, 0xff, 0xff, Kind::Contribute as u8]);
        assert_eq!(opener.next_frame(), Err("a frame above the size limit"));
        let mut opener = Opener::new(&KEY, Direction::ToService);
        opener.feed(&u32::try_from(MAX_PAYLOAD).unwrap().to_le_bytes());
        opener.feed(&[Kind::Contribute as u8]);
        assert_eq!(opener.next_frame(), Ok(None));
        assert!(opener.bytes.capacity() < 1024);
    }

    #[test]
    fn a_hello_is_good_for_its_own_challenge_only() {
        let secret = Secret([1; 32]);
        let hello = Hello { pe: 3, n_pes: 9, relay: Some(Address::Unix(99)), nonce: [5; NONCE] };
        let bytes = hello.encode(&secret, &[8; NONCE]);
        assert_eq!(Hello::decode(&bytes, &secret, &[8; NONCE]), Ok(hello));
        assert!(Hello::decode(&bytes, &secret, &[9; NONCE]).is_err(), "another challenge");
        assert!(Hello::decode(&bytes, &Secret([2; 32]), &[8; NONCE]).is_err(), "another secret");
        for at in 0..HELLO {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert!(Hello::decode(&changed, &secret, &[8; NONCE]).is_err(), "byte {at}");
        }
        assert_ne!(hello.session_key(&secret, &[8; NONCE]), hello.session_key(&secret, &[9; NONCE]));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret([0xab; 32])), "Secret(..)");
    }
}
