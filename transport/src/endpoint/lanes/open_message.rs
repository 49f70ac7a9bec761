//! The message into which the last small operation was gathered. Later ones of the same form to the same PE go there, too,
//! and need no lane and protocol of their own, until the message is sent or what these depend on changes.

use super::Lanes;
use crate::endpoint::protocol::Form;
use crate::pe::Pe;

/// An open message: it has room, its operations are of one form, and no fence came since the first of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenMessage {
    pe: Pe,
    lane: usize,
    form: Form,
    epoch: u32,
}

impl Lanes {
    /// Notes that an operation of this form was gathered on a lane to a PE, if no fence orders it behind others and the
    /// lane works.
    pub fn note_gathered(&mut self, pe: Pe, lane: usize, form: Form) {
        let (peer, gathers) = (self.peer(pe), self.get(pe, lane).is_some_and(|c| c.outbox.is_some()));
        let open = gathers && self.is_unfenced(peer) && !peer.defers() && self.is_up(pe, lane);
        self.open = open.then_some(OpenMessage { pe, lane, form, epoch: self.epoch });
    }

    /// The lane of the open message of operations of this form to a PE.
    #[inline(always)]
    pub fn open_message(&self, pe: Pe, form: Form) -> Option<usize> {
        let open = self.open.filter(|open| open.pe == pe && open.epoch == self.epoch && open.form == form)?;
        Some(open.lane)
    }

    /// Lets the next operation to any PE look for its lane and protocol again.
    #[inline]
    pub fn close_message(&mut self) {
        self.open = None;
    }
}
