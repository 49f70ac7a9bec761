//! The layout of the rings: the words at each end of a connection into which the other end puts.
//!
//! A message that is put into its buffer has a number, and uses the slot with this number modulo [`SLOTS`] in both
//! rings. A slot of the sender's ring is a word, the number plus one, and behind it a descriptor. A slot of the
//! receiver's ring is a word: the size, and the number's [`stamp`] in the lowest 16 bits.
//!
//! A small message whose descriptor has not arrived goes into one of [`EAGER_SLOTS`] of the receiver's ring, from which
//! the receiver copies it. Such messages have numbers of their own, and take the slots in turn. Each has a word, its
//! number plus one, and behind it which receive of which tag it is for, its size, and its bytes.

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
/// The words of such a message before its bytes, without its number: the receive's number among those of its tag and the
/// tag, and the size.
pub const EAGER_HEAD: usize = 2;
pub const EAGER_WORDS: usize = 1 + EAGER_HEAD + EAGER_BYTES / 8;
/// In place of a size: the message was larger than the buffer.
pub const REFUSED: u64 = (1 << 48) - 1;

/// What the lowest 16 bits of a size's word are for a message; never 0.
pub fn stamp(number: u64) -> u64 {
    number % 0xffff + 1
}

/// The word of a message's size.
pub fn size_word(number: u64, size: u64) -> u64 {
    size << 16 | stamp(number)
}
