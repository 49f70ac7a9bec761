//! Channels: rings through which devices hand requests to the proxy.
//!
//! A channel has many producers (the threads of a GPU kernel, or CPU threads) and one consumer (the engine). It is
//! one piece of zeroed memory, reached with plain stores and atomics from both sides; a GPU reaches it over PCIe.
//!
//! | file | what it holds |
//! |---|---|
//! | [`layout`] | where every word and bit is; renders the C header for CUDA |
//! | [`request`] | what can be asked for |
//! | [`codec`] | a request's words in a slot, and back |
//! | [`memory`] | the memory itself |
//! | [`producer`] | reserve, write, ring the doorbell; the flush word |
//! | [`consumer`] | read, complete in any order, reply, publish, sleep |
//! | [`reply`] | answers to one requester: fetched values and exact completion |
//! | `sleep` | requesters that sleep until their answer comes |
//! | [`doorbell`] | how a CPU producer wakes a sleeping consumer |
//! | [`error`] | why a channel was not made, a request not taken, or a slot not understood |
//!
//! # The protocol
//!
//! **Slots and chunks.** A slot is 64 bytes: four chunks of two words `(w0, w1)`, each written by a GPU as one 16-byte
//! store. Position `p` (counted from 0, for ever) lives in slot `p % slots` on lap `p / slots`. Bit 63 of every `w0`
//! is the lap's parity, `(lap & 1) ^ 1`: 1 on lap 0, so that zeroed memory reads as "not yet". The consumer checks the
//! parity of every chunk that the request uses, so the chunks may become visible in any order and the producer needs no
//! fence between them. Within a chunk, a CPU producer stores `w1` first and then `w0` with release; a GPU's 16-byte
//! store is single-copy atomic.
//!
//! **Chunks that a request does not use** are not written by its producer. One left over from lap `k − 2` would carry
//! lap `k`'s parity and could be taken for a new one. Therefore the consumer, when it takes the request at lap `k`,
//! stamps the unused chunks with lap `k`'s parity: after that *every* chunk of the slot carries the parity of lap `k`,
//! which is "not yet" at lap `k + 1`. Nobody else writes the slot then: the next producer waits for the tail, which is
//! published (release) after the stamping. A chunk that arrives late, from a device that claimed fewer chunks than it
//! wrote, carries the same parity and changes nothing.
//!
//! **Back-pressure.** A producer may write position `p` once `p < tail + slots`. It reads a copy of the tail on the
//! producers' side and reads the consumer's word (over PCIe for a GPU) only when the copy says "full". The copy is
//! stored with release and read with acquire, so that whoever trusts it is also behind the consumer's stamping. A GPU
//! thread reserves with `fetch_add` and then waits; a CPU thread reserves with compare-and-swap after it has seen room,
//! because a reserved position must be written: only so can a wait for room end with an error. A channel has GPU
//! producers or CPU producers, not both: a GPU keeps the head and the copy of the tail in its own memory.
//!
//! **Flush.** Requests complete in any order. `completed` is the position before which every request is delivered, so
//! `completed ≥ p + 1` tells that `p` and all before it are. Its neighbour counts the failed ones (which also count as
//! completed, or a quiet would hang); it is stored first, and a 16-byte load gives both.
//!
//! **Sleep.** Producer: write the slot, SeqCst fence, read `sleeping`, ring if set. Consumer: set `sleeping`, SeqCst
//! fence, read the next slot, sleep if it is empty. One of the two sees the other's store. GPU producers do not
//! ring: an engine with GPU channels polls, or sleeps for a bounded time.
//!
//! **Trust.** The ring is written by device code and read as hostile: each word is read once, copied, then checked;
//! what makes no sense becomes [`Request::Invalid`]. Offsets, sizes and PEs are checked against segments by the engine.
//!
//! The models in `tests/loom_channel.rs` run this code under loom: laps with partial chunks, the flush word, sleep of
//! both ends.

pub mod codec;
pub mod consumer;
pub mod doorbell;
pub mod error;
pub mod layout;
pub mod memory;
pub mod producer;
pub mod reply;
pub mod request;
mod sleep;
mod sync;

use std::sync::Arc;

pub use codec::Width;
pub use consumer::Consumer;
pub use doorbell::Doorbell;
pub use error::{ChannelError, Malformed, PushError, Refused};
pub use memory::ChannelMemory;
pub use producer::Producer;
pub use reply::{Reply, ReplySlot};
pub use request::{Local, ReplyTo, Request};
pub use symrail_core::SignalOp;

/// Slots of a channel, unless somebody asks for another number.
pub const DEFAULT_SLOTS: usize = 1024;

/// Reply entries of a channel, unless somebody asks for another number: one for each thread that waits on it.
pub const DEFAULT_REPLIES: usize = 1024;

/// Makes channels.
#[derive(Debug)]
pub struct Channel;

impl Channel {
    /// Makes a channel for CPU producers in memory of its own, with a doorbell of its own.
    ///
    /// `slots` is a power of two from 2 to 2^20, `replies` at most 2^20.
    ///
    /// # Errors
    /// A capacity out of range, or memory or the doorbell cannot be had.
    #[expect(clippy::new_ret_no_self, reason = "a channel is its two ends")]
    pub fn new(slots: usize, replies: usize) -> Result<(Producer, Consumer), ChannelError> {
        Self::over(ChannelMemory::new(slots, replies)?, Arc::new(Doorbell::new()?))
    }

    /// Makes a channel over given, zeroed memory (pinned memory for a GPU) and a doorbell that channels may share.
    ///
    /// # Errors
    /// None today; a [`ChannelError`] once memory is checked further.
    pub fn over(memory: ChannelMemory, doorbell: Arc<Doorbell>) -> Result<(Producer, Consumer), ChannelError> {
        let memory = Arc::new(memory);
        Ok((Producer::new(Arc::clone(&memory), Arc::clone(&doorbell)), Consumer::new(memory, doorbell)))
    }
}
