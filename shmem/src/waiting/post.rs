//! A *post*: the call that a PE waits in, in symmetric memory that every PE may read.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use symrail_transport::Pe;

use crate::space::at;
use crate::team::group::Group;

/// Words of a post: its number or 0, the call, the awaited PEs, the call in words.
const TEXT: usize = 6;
pub(super) const POST: usize = TEXT + 14;
/// The most bytes of the call in words.
const TEXT_BYTES: usize = (POST - TEXT) * 8;
/// Bytes of a post.
pub(crate) const POST_BYTES: u64 = POST as u64 * 8;
/// Bits above the number of a post's call: the PE has given up; other threads of the PE wait as well.
const GIVEN_UP: u64 = 1 << 63;
const ONE_OF_MANY: u64 = 1 << 62;

/// A compared call: the PEs that make it, the number of their team, and the call's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallId {
    pub group: Group,
    pub team: u32,
    pub number: u64,
}

/// A call in words, as far as a post has room for them.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    bytes: [u8; TEXT_BYTES],
    len: usize,
}

impl Words {
    pub fn new(text: &str) -> Words {
        let len = text.floor_char_boundary(TEXT_BYTES);
        let mut bytes = [0; TEXT_BYTES];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Words { bytes, len }
    }

    fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

thread_local! {
    /// The compared call that this thread is in, and its words. It has no destructor, because exit handlers and
    /// destructors of the program make calls, too, when the thread's other values are gone.
    pub(crate) static IN_CALL: Cell<Option<(CallId, Words)>> = const { Cell::new(None) };
}

impl CallId {
    pub fn is_same(&self, other: &CallId) -> bool {
        self.team == other.team && self.number == other.number && self.group.is_same(&other.group)
    }
}

/// The call that a PE waits in, as it publishes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Post {
    pub number: u64,
    pub call: Option<CallId>,
    pub given_up: bool,
    /// Other threads of the PE wait as well.
    pub one_of_many: bool,
    pub text: String,
}

impl Post {
    fn encode(&self) -> [u64; POST] {
        let mut words = [0; POST];
        words[0] = self.number;
        if let Some(CallId { group, team, number }) = self.call {
            let [start, stride, size] = group.parts();
            words[1..TEXT].copy_from_slice(&[start | u64::from(team) << 32, stride, size, number, 0]);
        }
        words[TEXT - 1] = if self.given_up { GIVEN_UP } else { 0 } | if self.one_of_many { ONE_OF_MANY } else { 0 };
        for (word, bytes) in words[TEXT..].iter_mut().zip(Words::new(&self.text).bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        words
    }

    /// Decodes the post of PE `pe` of `n_pes`; `None` if the PE does not wait, or the words are no post.
    pub(super) fn decode(words: &[u64; POST], pe: Pe, n_pes: u32) -> Option<Post> {
        let [number, start, stride, size, call, flags] = words[..TEXT].try_into().ok()?;
        if number == 0 {
            return None;
        }
        let group = Group::from_parts([start & 0xffff_ffff, stride, size], pe, n_pes);
        let call = group.map(|group| CallId { group, team: (start >> 32) as u32, number: call });
        let text: Vec<u8> = words[TEXT..].iter().flat_map(|word| word.to_ne_bytes()).take_while(|&b| b != 0).collect();
        let text = String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).collect();
        Some(Post { number, call, given_up: flags & GIVEN_UP != 0, one_of_many: flags & ONE_OF_MANY != 0, text })
    }
}

/// The words for this thread's wait: the compared call that it is in, or else `what`.
pub(super) fn in_words(what: &str) -> String {
    IN_CALL.get().map_or_else(|| what.to_owned(), |(_, words)| words.text().to_owned())
}

/// The address of this PE's post, and by symmetry of peers' posts.
pub(crate) struct Board {
    address: usize,
    posted: AtomicU64,
    in_use: AtomicBool,
    shared: AtomicBool,
}

impl Board {
    /// The board at this symmetric offset in the heap that starts at `base`.
    pub fn new(base: usize, offset: u64) -> Board {
        let address = at(base, offset).expose_provenance();
        Board { address, posted: AtomicU64::new(0), in_use: AtomicBool::new(false), shared: AtomicBool::new(false) }
    }

    /// Posts this thread's wait, unless another thread of this PE has a post already.
    pub(super) fn post(&self, what: &str) -> Option<Post> {
        if self.in_use.swap(true, Ordering::AcqRel) {
            self.shared.store(true, Ordering::Relaxed);
            return None;
        }
        let number = self.posted.fetch_add(1, Ordering::Relaxed) + 1;
        let call = IN_CALL.get().map(|(id, _)| id);
        let one_of_many = self.shared.load(Ordering::Relaxed);
        let post = Post { number, call, given_up: false, one_of_many, text: in_words(what) };
        self.repost(&post);
        Some(post)
    }

    /// The symmetric address of the post.
    pub(super) fn address(&self) -> *const u8 {
        self.word(0).cast()
    }

    fn word(&self, index: usize) -> *mut u64 {
        at(self.address, 0).cast::<u64>().wrapping_add(index)
    }

    pub(super) fn repost(&self, post: &Post) {
        for (index, word) in post.encode().into_iter().enumerate().rev() {
            // SAFETY: the words are in this PE's committed heap and aligned; others only read them.
            unsafe { AtomicU64::from_ptr(self.word(index)) }.store(word, Ordering::Release);
        }
    }

    pub(super) fn take_down(&self) {
        // SAFETY: as in `repost`.
        unsafe { AtomicU64::from_ptr(self.word(0)) }.store(0, Ordering::Release);
        self.in_use.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn posts_are_read_as_they_were_written() {
        let group = Group::new(1, 2, 3, 3, 8).unwrap();
        let call = Some(CallId { group, team: 3, number: 9 });
        for text in ["sync", &"a".repeat(TEXT_BYTES)] {
            let post = Post { number: 7, call, given_up: true, one_of_many: false, text: text.to_owned() };
            assert_eq!(Post::decode(&post.encode(), 3, 8), Some(post));
        }
        let plain = Post { number: 1, call: None, given_up: false, one_of_many: true, text: "x".into() };
        assert_eq!(Post::decode(&plain.encode(), 0, 8), Some(plain.clone()));
        assert_eq!(Post::decode(&[0; POST], 0, 8), None);
        let hostile = Post { text: "\u{1b}[31m\n".into(), ..plain };
        assert_eq!(Post::decode(&hostile.encode(), 0, 8).unwrap().text, "[31m");
        for seed in 1..200u64 {
            let words = std::array::from_fn(|i| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 * 7));
            let _ = Post::decode(&words, 0, 8);
        }
    }
}
