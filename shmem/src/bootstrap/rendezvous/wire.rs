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
//! another connection. Both nonces, the PE and the job's size determine the connection's key. Frames and their tags
//! are those of [`symrail_transport::frames`].

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use symrail_transport::{frames, token};

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
const TAG: usize = frames::TAG;
pub(super) const CHALLENGE: usize = MAGIC.len() + NONCE;
pub(super) const HELLO: usize = MAGIC.len() + 8 + Address::LEN + NONCE + TAG;

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
        frames::hmac(&self.0).chain_update(purpose)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Fresh random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    token::random_bytes().map_err(|error| Error::System { what: "random numbers", reason: error.to_string() })
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

/// A frame's kind and payload.
pub(super) type Frame = (Kind, Arc<[u8]>);

/// The receiving half of a connection.
pub(super) struct Opener(frames::Opener);

impl Opener {
    pub(super) fn new(session_key: &[u8; frames::KEY], direction: Direction) -> Opener {
        Opener(frames::Opener::new(session_key, direction as u8, MAX_PAYLOAD))
    }

    /// Adds bytes that arrived.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.0.feed(bytes);
    }

    /// The next complete frame, if there is one. After an error the connection must be closed.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, &'static str> {
        let Some((kind, payload)) = self.0.next_frame()? else { return Ok(None) };
        Ok(Some((Kind::from_repr(kind).ok_or("a frame of unknown kind")?, payload)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
