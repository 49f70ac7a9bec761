//! The failures of kernels, which these record in host memory, and of their requests to the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use symrail_cuda::{DeviceBuffer, Gpu, PinnedBuffer};
use symrail_proxy::channel::Producer;

use super::error::{Error, Result};

/// The words of the kernels' record, as in `include/symrail/failure.cuh`.
const CODE: usize = 0;
const WHAT: usize = 1;
const PE: usize = 2;
const PLACE: usize = 3;
const ERA: usize = 4;
/// The failure of a wait with a limit of its own, as `SYMRAIL_ERROR_CALLERS_LIMIT`: the record's place is that limit.
const CALLERS_LIMIT: u64 = 7;
/// An operation that was not started, as `SYMRAIL_ERROR_LEFT_OUT`.
const LEFT_OUT: u64 = 8;

/// The failures of one program's kernels, or of several programs', and of the requests of all kernels of the device.
pub struct Failures {
    me: u32,
    record: PinnedBuffer,
    /// A word: the last era in which an operation has failed.
    stopped: DeviceBuffer,
    channels: Vec<Producer>,
    /// For each channel the number of failed requests at the last check.
    known: Vec<AtomicU64>,
}

/// When a call on a stream was enqueued, as in `cu/on_stream.cuh`. All its kernels have the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enqueued {
    pub era: u64,
    /// The failed requests of which the program had been told.
    pub told: u64,
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Failures {
    pub(super) fn new(gpu: &Arc<Gpu>, me: u32, channels: Vec<Producer>) -> Result<Failures> {
        let known = channels.iter().map(|channel| AtomicU64::new(channel.errors())).collect();
        let (record, stopped) = (PinnedBuffer::new(gpu, 4096)?, gpu.alloc(8)?);
        stopped.write(0, &0u64.to_le_bytes())?;
        record.set_word(ERA, 1);
        Ok(Failures { me, record, stopped, channels, known })
    }

    /// None so far, for other programs of the same device.
    pub(super) fn apart(&self, gpu: &Arc<Gpu>) -> Result<Failures> {
        Failures::new(gpu, self.me, self.channels.clone())
    }

    /// The record's GPU address.
    pub(super) fn record(&self) -> u64 {
        self.record.device().get()
    }

    /// The GPU address of the word with the last era in which an operation has failed.
    pub(super) fn stopped(&self) -> u64 {
        self.stopped.at().get()
    }

    /// What kernels of a call on a stream need to know of the time when it was enqueued.
    pub(super) fn now(&self) -> Enqueued {
        // The number first: a check in between ends that era.
        let era = self.record.word(ERA);
        Enqueued { era, told: self.known.iter().map(|known| known.load(Ordering::Relaxed)).sum() }
    }

    /// The number of kernels' requests that the proxy has completed.
    pub(super) fn completed(&self) -> u64 {
        self.channels.iter().map(Producer::completed).sum()
    }

    /// Whether nothing has failed since the last check, as far as the GPU has progressed.
    #[must_use]
    pub fn are_none(&self) -> bool {
        let mut channels = self.channels.iter().zip(&self.known);
        self.record.word(CODE) == 0
            && channels.all(|(channel, known)| channel.errors() == known.load(Ordering::Relaxed))
    }

    /// Returns errors of kernels and the proxy since the last call. It is called after a kernel has ended.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<()> {
        let code = self.record.word(CODE);
        // What was left out behind a failed request says less than the request's error.
        let first = if matches!(code, 0 | LEFT_OUT) { self.requests() } else { None };
        let error = match first {
            None if code == 0 => return Ok(()),
            None => self.of_kernel(code),
            Some(error) => error,
        };
        // In this order: a kernel that fails now does so in the next era, or its record is part of this failure.
        self.record.set_word(ERA, self.record.word(ERA) + 1);
        self.record.set_word(CODE, 0);
        Err(error)
    }

    fn of_kernel(&self, code: u64) -> Error {
        let (what, pe, place) = (self.record.word(WHAT), self.record.word(PE), self.record.word(PLACE));
        let (me, what) = (self.me, attempted(what));
        match code {
            CALLERS_LIMIT => Error::Late { me, what, pe, milliseconds: place },
            _ => Error::Kernel { me, what, pe, place, why: reason(code) },
        }
    }

    /// The failed requests of a channel since the last call.
    fn requests(&self) -> Option<Error> {
        self.channels.iter().zip(&self.known).enumerate().find_map(|(channel, (producer, known))| {
            let errors = producer.errors();
            let count = errors.saturating_sub(known.swap(errors, Ordering::Relaxed));
            (count > 0).then_some(Error::Requests { count, channel })
        })
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
        9 => "a barrier",
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
        LEFT_OUT => {
            "it was left out behind an earlier failure; so is a graph that was captured before that was returned"
        }
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_the_header_has_them() {
        let header = include_str!("../../include/symrail/failure.cuh");
        let words = [("CODE", CODE), ("WHAT", WHAT), ("PE", PE), ("PLACE", PLACE), ("ERA", ERA)];
        let words = words.map(|(name, word)| format!("#define SYMRAIL_RECORD_{name} {word}\n"));
        let codes = [("CALLERS_LIMIT", CALLERS_LIMIT), ("LEFT_OUT", LEFT_OUT)];
        let codes = codes.map(|(name, code)| format!("#define SYMRAIL_ERROR_{name} {code}ull\n"));
        for line in words.iter().chain(&codes) {
            assert!(header.contains(line), "{line}");
        }
        for (prefix, text) in [("ERROR", reason as fn(u64) -> &'static str), ("WHAT", attempted)] {
            let prefix = format!("#define SYMRAIL_{prefix}_");
            let numbers = header.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(' '));
            for (name, number) in numbers.filter(|(name, _)| *name != "CALLERS_LIMIT") {
                let number = number.trim_end_matches("ull").parse().unwrap_or_default();
                assert!(!text(number).contains("unknown"), "{name}");
            }
        }
    }
}
