//! The layout of the rings: the words at each end of a connection into which the other end puts.
//!
//! A message that is put into its buffer has a number, and uses the slot with this number modulo [`SLOTS`] in both
//! rings. A slot of the sender's ring is a word, the number plus one, and behind it a descriptor. Where the number of
//! arrivals is counted ([`Session::counts_in`](symrail_proxy::session::Session::counts_in)) a message is one write of
//! its size, in the form of [`size_word`], and its bytes, and adds 1 to the slot's count. Else, and for a message that
//! travels with its signal, the signal is the word of the size.
//!
//! A small message whose descriptor has not arrived goes into one of [`EAGER_SLOTS`] of the receiver's ring, from which
//! the receiver copies it. Such messages have numbers of their own, and take the slots in turn. Each slot has a count of
//! its messages, and behind it which receive of which tag the last one is for, its size, and its bytes.

use symrail_proxy::session::memory::HANDLE_SIZE;

/// The number of slots: twice the requests that NCCL has under way, so that those that end out of order block nothing.
pub const SLOTS: usize = 64;
/// The words of a descriptor before the handle: size, offset in the registered memory, tag and length of the handle, and
/// how many messages in eager slots the receiver has taken.
pub const HEAD_WORDS: usize = 4;
/// The words of a descriptor, and those of a slot of the sender's ring.
pub const DESCRIPTOR_WORDS: usize = HEAD_WORDS + HANDLE_SIZE / 8;
pub const SLOT_WORDS: usize = 1 + DESCRIPTOR_WORDS;
/// Messages of up to so many bytes need no descriptor, and so many may be under way.
pub const EAGER_BYTES: usize = 32 << 10;
pub const EAGER_SLOTS: usize = 8;
/// The words of such a message before its bytes, without its slot's count: the receive's number among those of its tag
/// and the tag, and the size, as [`size_word`] of the message's number among the eager ones.
pub const EAGER_HEAD: usize = 2;
pub const EAGER_WORDS: usize = 1 + EAGER_HEAD + EAGER_BYTES / 8;
/// In place of a size: the message was larger than the buffer.
pub const REFUSED: u64 = (1 << 48) - 1;

/// The words of the sender's ring, by the first of each kind: descriptors, copies of eager messages, sizes for the slots
/// of the receiver's ring, the number of all messages so far, which the receiver reads when none comes, and what the
/// sender has read of [`receiver::ANSWER`].
pub mod sender {
    use super::{EAGER_SLOTS, EAGER_WORDS, SLOT_WORDS, SLOTS};
    pub const COPIES: usize = SLOTS * SLOT_WORDS;
    pub const SIZES: usize = COPIES + EAGER_SLOTS * EAGER_WORDS;
    pub const SENT: usize = SIZES + SLOTS;
    pub const ANSWER: usize = SENT + 1;
    pub const WORDS: usize = ANSWER + 1;
}

/// The words of the receiver's ring: the signals, counts and sizes of its slots, eager slots, and what it has read of
/// [`sender::SENT`].
pub mod receiver {
    use super::{EAGER_SLOTS, EAGER_WORDS, SLOTS};
    pub const SIGNALS: usize = 0;
    pub const COUNTS: usize = SIGNALS + SLOTS;
    pub const SIZES: usize = COUNTS + SLOTS;
    pub const EAGER: usize = SIZES + SLOTS;
    pub const ANSWER: usize = EAGER + EAGER_SLOTS * EAGER_WORDS;
    pub const WORDS: usize = ANSWER + 1;
}

/// The first word of an eager message's slot, and the count that the slot has when the message has arrived.
pub fn eager_slot(number: u64) -> (usize, u64) {
    let slots = EAGER_SLOTS as u64;
    ((number % slots) as usize * EAGER_WORDS, number / slots + 1)
}

/// What the lowest 16 bits of a size's word are for a message; never 0.
fn stamp(number: u64) -> u64 {
    number % 0xffff + 1
}

/// The word of a message's size.
pub fn size_word(number: u64, size: u64) -> u64 {
    size << 16 | stamp(number)
}

/// The size in its word; `None` if the word is another message's.
pub fn size_in(word: u64, number: u64) -> Option<u64> {
    (word & 0xffff == stamp(number)).then_some(word >> 16)
}
