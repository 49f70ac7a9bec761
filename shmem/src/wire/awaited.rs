//! Operations that the peer detects itself, so that no quiet waits for them: flags, and bytes with a counter of
//! arrivals.

use symrail_transport::Pe;
use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::{Command, Signal, Source};

use super::context::Path;
use super::{Tracked, WireContext};
use crate::error::Result;

/// How a put whose arrival the peer counts was sent.
pub(crate) enum Sent {
    /// As a counted put, which has no reply.
    Counted,
    /// As a put-signal whose outcome can be polled.
    Tracked(Tracked),
}

impl WireContext<'_> {
    /// Writes a flag byte that the peer waits for.
    pub fn put_flag(&self, pe: Pe, dest: u64, value: u8) -> Result<()> {
        self.when_there_is_room(|endpoint| endpoint.put_flag(pe, dest, value))
    }

    /// Whether peers can count arrivals in the word at this offset: see [`WireContext::put_counted`].
    pub fn counts_in(&self, word: u64) -> bool {
        self.host().lock().endpoint.counts_in(word)
    }

    /// Starts to write bytes; the peer counts their arrival in a word.
    ///
    /// # Safety
    /// A [`Source::Stable`] source stays valid and unchanged until [`WireContext::counted_have_left`].
    pub unsafe fn put_counted(&self, pe: Pe, dest: u64, source: Source, len: u64, word: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        self.when_there_is_room(|endpoint| unsafe { endpoint.put_counted(pe, dest, source, len, word) })
    }

    /// Starts a counted put where the rails can count, and a put-signal that adds 1 elsewhere.
    ///
    /// # Safety
    /// The source stays valid and unchanged until the put has left, or its outcome was returned.
    pub unsafe fn put_and_count(&self, pe: Pe, dest: u64, source: *const u8, len: u64, word: u64) -> Result<Sent> {
        let (signal, source) = (Signal { offset: word, value: 1, op: AmoOp::Add }, Source::Stable(source));
        let command = Command::PutSignal { dest, source, len, signal };
        if len > 0 && self.counts_in(word) && self.path_of(&command) == Path::Host {
            // SAFETY: the caller's promise.
            return unsafe { self.put_counted(pe, dest, source, len, word) }.map(|()| Sent::Counted);
        }
        // SAFETY: the caller's promise.
        unsafe { self.track(pe, command) }.map(Sent::Tracked)
    }

    /// Whether the sources of all counted puts may be re-used.
    pub fn poll_counted(&self) -> Result<bool> {
        Ok(self.host().lock().endpoint.counted_have_left()?)
    }

    /// Waits until the sources of all counted puts may be re-used.
    pub fn counted_have_left(&self) -> Result<()> {
        self.wait().until(|| {
            let mut side = self.host().lock();
            if side.endpoint.counted_have_left()? {
                return Ok(Some(()));
            }
            side.poll();
            Ok(None)
        })
    }
}
