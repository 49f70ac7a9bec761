//! Chains of operations on a stream that end with the first one that fails or is left out, for ever: also what is enqueued
//! when the failure has been returned neither copies nor signals, so a peer's memory that may still be read stays as it is.

use symrail_cuda::Stream;

use super::error::Result;
use super::failures::Enqueued;
use super::on_stream::{ASKING, OnStream, SignalUpdate, Transfer};

/// A chain with a PE.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// The GPU's address of a word of this PE, 0 at first. When the chain has ended it is 1 if one of its waits has
    /// failed, and 2 if another failure has kept an operation from starting. One stream at a time uses it.
    pub ended: u64,
    /// The PE that the operations concern, which errors name.
    pub pe: u32,
}

impl OnStream {
    /// Makes the stream wait, within the device's time-out, until a 64-bit word of this PE is from `least` to `most`;
    /// otherwise the chain ends.
    ///
    /// # Safety
    /// `word` and the chain's are aligned words of the GPU that stay until then.
    ///
    /// # Errors
    /// The error of the driver. [`DeviceState::check`](super::DeviceState::check) returns that of a wait, and of each
    /// operation behind it.
    pub unsafe fn wait_in(&self, chain: Chain, stream: &Stream, word: u64, least: u64, most: u64) -> Result<()> {
        let Enqueued { era, told } = self.now();
        let arguments = [word, least, most, chain.pe.into(), chain.ended, era, told];
        // SAFETY: the kernel's arguments; the caller's promise.
        Ok(unsafe { stream.launch(&self.wait_in_chain, ASKING, &arguments) }?)
    }

    /// Copies `bytes` from `source` to the symmetric `dest` on the chain's PE, and then sets a signal word there,
    /// unless the chain has ended. Without bytes it sets the word. Multiprocessors copy.
    ///
    /// # Safety
    /// As for [`OnStream::put`], and as for [`OnStream::wait_in`].
    ///
    /// # Errors
    /// As for [`OnStream::wait_in`].
    pub unsafe fn put_signal_in(
        &self,
        chain: Chain,
        stream: &Stream,
        what: Transfer,
        (signal, value): (u64, u64),
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            self.put_then_signal(self.now(), chain.ended, stream, what, SignalUpdate::set(signal, value), chain.pe)
        }
    }
}
