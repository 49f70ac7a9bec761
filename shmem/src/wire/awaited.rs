//! What somebody at the other end waits for, so that no quiet has to: flags, and bytes whose arrival is counted.

use symrail_transport::Pe;
use symrail_transport::endpoint::command::Source;

use super::WireContext;
use crate::error::Result;

impl WireContext<'_> {
    /// Writes a byte that the peer waits for.
    pub fn put_flag(&self, pe: Pe, dest: u64, value: u8) -> Result<()> {
        self.when_there_is_room(|endpoint| endpoint.put_flag(pe, dest, value))
    }

    /// Whether peers can count arrivals in the word at this offset: see [`WireContext::put_counted`].
    pub fn counts_in(&self, word: u64) -> bool {
        self.host().lock().endpoint.counts_in(word)
    }

    /// Starts to write bytes whose arrival the peer counts in a word.
    ///
    /// # Safety
    /// A [`Source::Stable`] one stays valid and unchanged until [`WireContext::counted_have_left`].
    pub unsafe fn put_counted(&self, pe: Pe, dest: u64, source: Source, len: u64, word: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        self.when_there_is_room(|endpoint| unsafe { endpoint.put_counted(pe, dest, source, len, word) })
    }

    /// Waits until all that was put so has left.
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
