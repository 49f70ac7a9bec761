//! Authenticated, not encrypted, frames over a stream of bytes whose ends share a key.
//!
//! ```text
//! length 4 · kind 1 · payload `length` · tag 32
//! ```
//! The length is little endian. The tag is the HMAC-SHA-256 of the direction, the frame's number in it, the first five
//! bytes and the payload. So a frame that was replayed, reflected, dropped or reordered fails like one that was
//! changed. Tags are compared in constant time.

use std::sync::Arc;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The bytes of a key.
pub const KEY: usize = 32;
/// The bytes of a tag.
pub const TAG: usize = 32;
/// The bytes before the payload.
pub const HEADER: usize = 5;

/// HMAC-SHA-256 with a key.
#[must_use]
pub fn hmac(key: &[u8; KEY]) -> Hmac<Sha256> {
    // HMAC pads a short key with zeros to one block; doing so here makes the call infallible.
    let mut block = [0; 64];
    block[..KEY].copy_from_slice(key);
    <Hmac<Sha256> as KeyInit>::new(&block.into())
}

/// Computes the tags of one direction of one connection.
#[derive(Clone)]
struct Tags {
    key: Hmac<Sha256>,
    direction: u8,
    number: u64,
}

impl Tags {
    fn new(key: &[u8; KEY], direction: u8) -> Tags {
        Tags { key: hmac(key), direction, number: 0 }
    }

    fn tag(&self, header: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        let mac = self.key.clone().chain_update([self.direction]).chain_update(self.number.to_le_bytes());
        mac.chain_update(header).chain_update(payload)
    }
}

/// The sending half of a connection.
pub struct Sealer(Tags);

impl Sealer {
    /// The sender of frames in this direction of a connection with this key.
    #[must_use]
    pub fn new(key: &[u8; KEY], direction: u8) -> Sealer {
        Sealer(Tags::new(key, direction))
    }

    /// The bytes before and after the payload of the next frame. The payload is at most as long as the other end's
    /// [`Opener`] permits.
    pub fn seal(&mut self, kind: u8, payload: &[u8]) -> ([u8; HEADER], [u8; TAG]) {
        let [a, b, c, d] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
        let header = [a, b, c, d, kind];
        let tag = self.0.tag(&header, payload).finalize().into_bytes().into();
        self.0.number += 1;
        (header, tag)
    }
}

/// A frame's kind and its payload.
pub type KindAndPayload = (u8, Arc<[u8]>);

/// The receiving half of a connection: collects bytes and returns frames whose tags are right.
pub struct Opener {
    tags: Tags,
    max_payload: usize,
    bytes: Vec<u8>,
}

impl Opener {
    /// The receiver of frames in this direction of a connection with this key.
    #[must_use]
    pub fn new(key: &[u8; KEY], direction: u8, max_payload: usize) -> Opener {
        Opener { tags: Tags::new(key, direction), max_payload, bytes: Vec::new() }
    }

    /// Adds bytes that arrived. Memory grows with bytes received, never with an announced length.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The kind and payload of the next complete frame, if there is one.
    ///
    /// # Errors
    /// Why the bytes are no frame. The connection must be closed then.
    pub fn next_frame(&mut self) -> Result<Option<KindAndPayload>, &'static str> {
        let Some((&[a, b, c, d, kind], rest)) = self.bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > self.max_payload {
            return Err("a frame above the size limit");
        }
        let (Some(payload), Some(tag)) = (rest.get(..length), rest.get(length..length + TAG)) else { return Ok(None) };
        let computed = self.tags.tag(&[a, b, c, d, kind], payload);
        computed.verify_slice(tag).map_err(|_| "a frame with a wrong tag: changed, replayed or out of order")?;
        let payload = Arc::from(payload);
        self.tags.number += 1;
        self.bytes.drain(..HEADER + length + TAG);
        Ok(Some((kind, payload)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SHARED: [u8; KEY] = [7; KEY];
    const MAX_PAYLOAD: usize = 1 << 16;

    fn opener(direction: u8) -> Opener {
        Opener::new(&SHARED, direction, MAX_PAYLOAD)
    }

    fn frame(sealer: &mut Sealer, kind: u8, payload: &[u8]) -> Vec<u8> {
        let (header, tag) = sealer.seal(kind, payload);
        [&header[..], payload, &tag[..]].concat()
    }

    #[test]
    fn frames_pass_in_order_and_in_pieces() {
        let mut sealer = Sealer::new(&SHARED, 1);
        let mut opener = opener(1);
        let bytes = [frame(&mut sealer, 2, b"one"), frame(&mut sealer, 5, b"")].concat();
        let mut seen = Vec::new();
        for byte in bytes {
            opener.feed(&[byte]);
            seen.extend(opener.next_frame().unwrap());
        }
        assert_eq!(seen, [(2, Arc::from(&b"one"[..])), (5, Arc::from([]))]);
    }

    #[test]
    fn replayed_reflected_reordered_or_changed_frames_are_refused() {
        let mut sealer = Sealer::new(&SHARED, 1);
        let first = frame(&mut sealer, 2, b"one");
        let second = frame(&mut sealer, 2, b"two");

        let mut replay = opener(1);
        replay.feed(&first);
        assert!(replay.next_frame().unwrap().is_some());
        replay.feed(&first);
        assert!(replay.next_frame().is_err());

        let mut reflected = opener(2);
        reflected.feed(&first);
        assert!(reflected.next_frame().is_err());

        let mut reordered = opener(1);
        reordered.feed(&second);
        assert!(reordered.next_frame().is_err());

        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 0x10;
            let mut opener = opener(1);
            opener.feed(&changed);
            // A longer length waits for bytes that never arrive; no frame is ever accepted.
            assert!(!matches!(opener.next_frame(), Ok(Some(_))), "byte {at}");
        }
    }

    #[test]
    fn an_announced_length_is_checked_before_memory_is_taken() {
        let mut refuses = opener(1);
        refuses.feed(&[0xff, 0xff, 0xff, 0xff, 2]);
        assert_eq!(refuses.next_frame(), Err("a frame above the size limit"));
        let mut waits = opener(1);
        waits.feed(&u32::try_from(MAX_PAYLOAD).unwrap().to_le_bytes());
        waits.feed(&[2]);
        assert_eq!(waits.next_frame(), Ok(None));
        assert!(waits.bytes.capacity() < 1024);
    }
}
