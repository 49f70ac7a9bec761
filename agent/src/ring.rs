//! The memory through which one end of a connection gets notifications from the other.
//!
//! A notification is cut into fragments of at most [`FRAGMENT`] bytes. A fragment has a number, and uses the slot with
//! this number modulo [`SLOTS`]: a stamp, and behind it the bytes. The sender writes the bytes and then the stamp
//! ([`stamp`]), so a stamp with the right number shows that the bytes are there. In front of the slots is the word by
//! which the other end tells how many fragments it has taken out of *its* ring.
//!
//! Messages to the agent itself have slots, numbers and such a word of their own: a program that takes no notifications
//! does not keep agents from answering each other.

use std::sync::Arc;

use symrail_proxy::session::{Session, Words};
use symrail_transport::Result;

/// The number of slots.
pub const SLOTS: u64 = 32;
/// The most bytes of a fragment.
pub const FRAGMENT: usize = 8 * (SLOT_WORDS - 1);
const SLOT_WORDS: usize = 64;
/// The words of a stream.
const WORDS: usize = 1 + SLOTS as usize * SLOT_WORDS;
/// Of a stamp: whether another fragment follows, and the bytes.
const MORE: u64 = 1 << 15;
const LEN: u64 = MORE - 1;

/// For whom messages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Program,
    /// The agent itself.
    Agent,
}

impl Stream {
    pub const ALL: [Stream; 2] = [Stream::Program, Stream::Agent];

    /// The word by which the other end tells how many fragments it has taken, and the first of the words of the slots
    /// behind it.
    fn first(self) -> usize {
        self as usize * WORDS
    }

    /// The offset in bytes of the word by which a fragment's receiver tells its sender how many it has taken.
    pub fn taken(self) -> u64 {
        8 * self.first() as u64
    }

    /// The offset in bytes of a fragment's stamp. Its bytes follow.
    pub fn slot(self, number: u64) -> u64 {
        8 * (self.first() as u64 + 1 + (number % SLOTS) * SLOT_WORDS as u64)
    }
}

/// The stamp of fragment `number` with `len` bytes; never 0.
pub fn stamp(number: u64, len: usize, more: bool) -> u64 {
    (number + 1) << 16 | if more { MORE } else { 0 } | len as u64
}

/// A fragment that has arrived.
pub struct Fragment {
    pub bytes: Vec<u8>,
    /// Another one of the message follows.
    pub more: bool,
}

/// The ring that the peer fills.
pub struct Ring(Words);

impl Ring {
    pub fn new(session: &Arc<Session>) -> Result<Ring> {
        Words::new(session, Stream::ALL.len() * WORDS).map(Ring)
    }

    /// The handle for the peer.
    pub fn handle(&self) -> Vec<u8> {
        self.0.memory().encode_short()
    }

    /// The number of fragments of a stream that the peer has taken out of its ring.
    pub fn taken_by_peer(&self, stream: Stream) -> u64 {
        self.0.load(stream.first())
    }

    /// Fragment `number` of a stream, if it has arrived.
    pub fn fragment(&self, stream: Stream, number: u64) -> Option<Fragment> {
        let first = stream.slot(number) as usize / 8;
        let found = self.0.load(first);
        if found & !(MORE | LEN) != stamp(number, 0, false) {
            return None;
        }
        let len = FRAGMENT.min((found & LEN) as usize);
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|word| self.0.load(first + 1 + word).to_ne_bytes()).collect();
        bytes.truncate(len);
        Some(Fragment { bytes, more: found & MORE != 0 })
    }
}
