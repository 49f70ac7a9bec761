//! The failures of kernels, which these record in host memory, and of their requests to the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use symrail_cuda::{Gpu, PinnedBuffer};
use symrail_proxy::channel::Producer;

use super::error::{Error, Result};

/// The failure of a wait with a limit of its own, as `SYMRAIL_ERROR_CALLERS_LIMIT`: the record's place is that limit.
const CALLERS_LIMIT: u64 = 7;

/// The failures of one program's kernels, or of several programs', and of the requests of all kernels of the device.
pub struct Failures {
    me: u32,
    /// The kernels' record, as in `include/symrail/state.cuh`.
    record: PinnedBuffer,
    channels: Vec<Producer>,
    /// For each channel the number of failed requests at the last check.
    known: Vec<AtomicU64>,
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Failures {
    pub(super) fn new(gpu: &Arc<Gpu>, me: u32, channels: Vec<Producer>) -> Result<Failures> {
        let known = channels.iter().map(|channel| AtomicU64::new(channel.errors())).collect();
        Ok(Failures { me, record: PinnedBuffer::new(gpu, 4096)?, channels, known })
    }

    /// None so far, for other programs of the same device.
    pub(super) fn apart(&self, gpu: &Arc<Gpu>) -> Result<Failures> {
        Failures::new(gpu, self.me, self.channels.clone())
    }

    /// The record's GPU address.
    pub(super) fn record(&self) -> u64 {
        self.record.device().get()
    }

    /// The number of kernels' requests that the proxy has completed.
    pub(super) fn completed(&self) -> u64 {
        self.channels.iter().map(Producer::completed).sum()
    }

    /// Whether nothing has failed since the last check, as far as the GPU has progressed.
    #[must_use]
    pub fn are_none(&self) -> bool {
        let mut channels = self.channels.iter().zip(&self.known);
        self.record.word(0) == 0 && channels.all(|(channel, known)| channel.errors() == known.load(Ordering::Relaxed))
    }

    /// Returns errors of kernels and the proxy since the last call. It is called after a kernel has ended.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<()> {
        let code = self.record.word(0);
        if code != 0 {
            let (what, pe, place) = (self.record.word(1), self.record.word(2), self.record.word(3));
            self.record.set_word(0, 0);
            let (me, what) = (self.me, attempted(what));
            return Err(match code {
                CALLERS_LIMIT => Error::Late { me, what, pe, milliseconds: place },
                _ => Error::Kernel { me, what, pe, place, why: reason(code) },
            });
        }
        for (channel, (producer, known)) in self.channels.iter().zip(&self.known).enumerate() {
            let errors = producer.errors();
            let count = errors.saturating_sub(known.swap(errors, Ordering::Relaxed));
            if count > 0 {
                return Err(Error::Requests { count, channel });
            }
        }
        Ok(())
    }
}

fn attempted(what: u64) -> &'static str {
    match what {
        1 => "a put, get or value",
        2 => "an atomic or signal",
        3 => "waiting for room in a channel",
        4 => "waiting for a reply",
        5 => "a quiet",
        6 => "waiting for a word",
        7 => "a collect",
        8 => "putting a signal, for which the last one has to be taken",
        _ => "an unknown operation",
    }
}

fn reason(code: u64) -> &'static str {
    match code {
        1 => "it did not happen in time (SYMRAIL_TIMEOUT_S)",
        2 => "the address is in no symmetric heap of the device",
        3 => "there is no such PE",
        4 => "the PE is not mapped and the device has no channel: there is no wire (SYMRAIL_LOG=info says why)",
        5 => "all reply entries are in use: launch fewer threads that fetch, or use more channels",
        6 => {
            "the destination is too short for what all PEs together have, which is the number of bytes that is given as the place"
        }
        _ => "unknown",
    }
}
