//! Lists of lanes: those on which requests are gathered for a message, those whose last requests asked for no
//! acknowledgement, and those that a quiet has to check.

use super::Lanes;
use crate::bounce::Slot;
use crate::pe::Pe;

impl Lanes {
    /// Notes a write whose delivery only a flush reports.
    #[inline]
    pub fn make_dirty(&mut self, pe: Pe, lane: usize) {
        if let Some(c) = self.get_mut(pe, lane) {
            c.dirty = true;
            self.list(pe, lane);
        }
    }

    /// Lists a lane for the next quiet to check.
    #[inline]
    pub fn list(&mut self, pe: Pe, lane: usize) {
        if let Some(c) = self.get_mut(pe, lane)
            && !std::mem::replace(&mut c.listed, true)
        {
            self.unflushed.push((pe, lane));
        }
    }

    /// Whether no lane is left for a quiet to check.
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.unflushed.is_empty()
    }

    /// Takes the next lane that a quiet has to check, and whether it must be flushed.
    #[inline]
    pub fn next_unflushed(&mut self) -> Option<(Pe, usize, bool)> {
        let (pe, lane) = self.unflushed.pop()?;
        let flush = self.get_mut(pe, lane).is_some_and(|c| {
            c.listed = false;
            c.dirty || (c.lazy && !c.unacked.is_empty())
        });
        Some((pe, lane, flush))
    }

    /// Notes whether the caller submits more operations at once.
    #[inline]
    pub fn expect_more(&mut self, more: bool) {
        self.more = more;
    }

    /// Whether the caller submits more operations at once.
    #[inline]
    pub fn expects_more(&self) -> bool {
        self.more
    }

    /// Notes whether the last numbered request asks for the acknowledgement of all before it.
    pub fn note_ack(&mut self, pe: Pe, lane: usize, requested: bool) {
        if requested { self.note_ack_requested(pe, lane) } else { self.note_ack_not_requested(pe, lane) }
    }

    /// Notes a numbered request that asks for no acknowledgement, since others follow.
    #[inline]
    fn note_ack_not_requested(&mut self, pe: Pe, lane: usize) {
        if let Some(c) = self.get_mut(pe, lane)
            && !std::mem::replace(&mut c.ack_not_requested, true)
        {
            self.ack_not_requested.push((pe, lane));
        }
    }

    /// Notes a numbered request whose acknowledgement covers all requests before it.
    #[inline]
    pub fn note_ack_requested(&mut self, pe: Pe, lane: usize) {
        if let Some(c) = self.get_mut(pe, lane)
            && std::mem::replace(&mut c.ack_not_requested, false)
        {
            self.ack_not_requested.retain(|&listed| listed != (pe, lane));
        }
    }

    /// Any lane whose last requests have asked for no acknowledgement.
    #[inline]
    pub fn next_without_ack_request(&self) -> Option<(Pe, usize)> {
        self.ack_not_requested.last().copied()
    }

    /// Notes that requests are gathered on a lane.
    pub fn begins_to_gather(&mut self, pe: Pe, lane: usize) {
        self.outboxes.push((pe, lane));
    }

    /// Whether requests are gathered on any lane.
    #[inline]
    pub fn have_gathered(&self) -> bool {
        !self.outboxes.is_empty()
    }

    /// Takes any lane on which requests are gathered.
    #[inline]
    pub fn next_gathered(&mut self) -> Option<(Pe, usize)> {
        self.outboxes.pop()
    }

    /// Takes the requests gathered on a lane: the slot, and its bytes in use.
    pub fn take_outbox(&mut self, pe: Pe, lane: usize) -> Option<(Slot, u32)> {
        self.close_message();
        let gathered = self.get_mut(pe, lane)?.outbox.take()?;
        if let Some(at) = self.outboxes.iter().position(|&listed| listed == (pe, lane)) {
            self.outboxes.swap_remove(at);
        }
        Some(gathered)
    }
}
