//! Operations that the peer detects itself, so that no quiet waits for them: flags, and bytes with a counter of
//! arrivals.

use symrail_transport::Pe;
use symrail_transport::endpoint::command::Source;

use super::WireContext;
use crate::error::Result;

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
