//! Channels: rings through which devices submit requests to the proxy.
//!
//! A channel has many producers (the threads of a GPU kernel, or CPU threads) and one consumer (the engine). It is one
//! block of zeroed memory that both sides access by plain stores and atomics; a GPU accesses it over PCIe.
//!
//! | file | content |
//! |---|---|
//! | [`layout`] | the layout of every word and bit; renders the C header for CUDA |
//! | [`request`] | the requests |
//! | [`codec`] | the encoding of a request in a slot |
//! | [`memory`] | the memory itself |
//! | [`producer`] | reserve, write, ring the doorbell; the flush word |
//! | [`consumer`] | read, complete in any order, reply, publish, sleep |
//! | [`reply`] | answers to one requester: fetched values and exact completion |
//! | `sleep` | requesters that sleep until their answer arrives |
//! | [`doorbell`] | how a CPU producer wakes a sleeping consumer |
//! | [`error`] | errors of creating channels, pushing requests and decoding slots |
//!
//! # The protocol
//!
//! **Slots and chunks.** A slot is 64 bytes: four chunks of two words `(w0, w1)`, each written by a GPU as one 16-byte
//! store. Position `p` (counted from 0, for ever) is in slot `p % slots` on lap `p / slots`. Bit 63 of every `w0` is
//! the lap's parity, `(lap & 1) ^ 1`: 1 on lap 0, so that zeroed memory means "not yet". The consumer checks the parity
//! of every chunk that the request uses. So the chunks may become visible in any order, and the producer needs no fence
//! between them. Within a chunk, a CPU producer stores `w1` first and then `w0` with release; a GPU's 16-byte store is
//! single-copy atomic.
//!
//! **Chunks that a request does not use** are not written by its producer. One left over from lap `k − 2` would carry
//! lap `k`'s parity and could be read as a new one. So when the consumer takes the request at lap `k`, it writes lap
//! `k`'s parity to the unused chunks. After that *every* chunk of the slot carries the parity of lap `k`, which means
//! "not yet" at lap `k + 1`. No other thread writes the slot then: the next producer waits for the tail, which is
//! published (release) after this write. A late chunk, from a device that wrote more chunks than its mask names,
//! carries the same parity and changes nothing.
//!
//! **Back-pressure.** A producer may write position `p` once `p < tail + slots`. It reads a copy of the tail on the
//! producers' side, and reads the consumer's word (over PCIe for a GPU) only when the copy means "full". The copy is
//! stored with release and read with acquire, so that a producer that uses the copy is also ordered behind the
//! consumer's write of parities. A GPU thread reserves with `fetch_add` and then waits. A CPU thread reserves with
//! compare-and-swap after it has found room: a reserved position must be written, so only an unreserved wait can end
//! with an error. A channel has GPU producers or CPU producers, not both: a GPU keeps the head and the copy of the tail
//! in its own memory.
//!
//! **Flush.** Requests complete in any order. `completed` is the position before which every request is delivered, so
//! `completed ≥ p + 1` means that `p` and all before it are delivered. Its neighbour counts failed requests (which also
//! count as completed, or a quiet would hang). The count is stored first, and a 16-byte load reads both.
//!
//! **Sleep.** The producer writes the slot, issues a SeqCst fence, reads `sleeping`, and rings if it is set. The
//! consumer sets `sleeping`, issues a SeqCst fence, reads the next slot, and sleeps if that is empty. At least one of
//! the two observes the other's store. GPU producers do not ring: an engine with GPU channels polls, or sleeps for a
//! bounded time.
//!
//! **Trust.** Device code writes the ring, so the consumer treats it as hostile: it reads each word once, copies it,
//! then checks it. A malformed request becomes [`Request::Invalid`]. The engine checks offsets, sizes and PEs against
//! segments.
//!
//! The models in `model/tests/loom_channel.rs` run this code under loom: laps with partial chunks, the flush word, sleep at
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

/// The default number of slots of a channel.
pub const DEFAULT_SLOTS: usize = 1024;

/// The default number of reply entries of a channel. Each thread that waits on the channel needs one.
pub const DEFAULT_REPLIES: usize = 1024;

/// The constructor of channels.
#[derive(Debug)]
pub struct Channel;

impl Channel {
    /// Creates a channel for CPU producers, with memory and a doorbell of its own.
    ///
    /// `slots` is a power of two from 2 to 2^20, `replies` at most 2^20.
    ///
    /// # Errors
    /// A capacity is out of range, or the system provides no memory or no doorbell.
    #[expect(clippy::new_ret_no_self, reason = "a channel is its two ends")]
    pub fn new(slots: usize, replies: usize) -> Result<(Producer, Consumer), ChannelError> {
        Self::over(ChannelMemory::new(slots, replies)?, Arc::new(Doorbell::new()?))
    }

    /// Creates a channel over given, zeroed memory (pinned memory for a GPU) and a doorbell that several channels may
    /// share.
    ///
    /// # Errors
    /// None today; a [`ChannelError`] once memory is checked further.
    pub fn over(memory: ChannelMemory, doorbell: Arc<Doorbell>) -> Result<(Producer, Consumer), ChannelError> {
        let memory = Arc::new(memory);
        Ok((Producer::new(Arc::clone(&memory), Arc::clone(&doorbell)), Consumer::new(memory, doorbell)))
    }
}
