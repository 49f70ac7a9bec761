//! The outbox of a connection: requests that are gathered for one message.
//!
//! The next poll or quiet sends it. Any other message to the target agent over that connection goes behind the gathered
//! requests.

use crate::endpoint::Endpoint;
use crate::endpoint::message::{begin, fill};
use crate::endpoint::queue::{Work, WorkRequest};
use crate::pe::Pe;
use crate::wire::{Request, Token};

impl Endpoint {
    /// Appends a request to the connection's outbox. Returns `false` when the request has no room in any message.
    pub(in crate::endpoint) fn gather(
        &mut self,
        pe: Pe,
        lane: usize,
        sequence: u32,
        head: &[u8; Request::SIZE],
        (ptr, len): (*mut u8, usize),
    ) -> bool {
        let total = Request::SIZE + Request::padded(len);
        let token = self.core.profile.token_of(pe);
        let room = self.core.bounce.largest().min(self.core.profile.caps(lane).max_send);
        let Some(c) = self.core.lanes.get_mut(pe, lane) else { return false };
        let (slot, used) = match c.outbox {
            Some((slot, used)) if used as usize + total <= room => (slot, used as usize),
            other => {
                if other.is_some() {
                    self.send_outbox(pe, lane);
                }
                if Token::SIZE + total > room {
                    return false;
                }
                let Some(slot) = self.core.bounce.alloc(room) else { return false };
                self.core.lanes.begins_to_gather(pe, lane);
                // SAFETY: the slot has room for more than that.
                unsafe { begin(self.core.bounce.ptr(slot).as_ptr(), token) };
                (slot, Token::SIZE)
            }
        };
        // SAFETY: the slot has `room` bytes, of which `used + total` are not more.
        unsafe { fill(self.core.bounce.ptr(slot).as_ptr().add(used), head, ptr, len) };
        if let Some(c) = self.core.lanes.get_mut(pe, lane) {
            c.outbox = Some((slot, (used + total) as u32));
            if let Some(f) = &mut c.failover {
                f.gathered = sequence;
            }
        }
        true
    }

    /// Sends the gathered requests of one connection.
    pub(in crate::endpoint) fn send_outbox(&mut self, pe: Pe, lane: usize) {
        let Some((slot, used)) = self.core.lanes.take_outbox(pe, lane) else { return };
        let slot = self.core.bounce.shrink(slot, used as usize);
        if let Some(last) = self.core.lanes.failover(pe, lane).map(|f| f.gathered) {
            return self.keep_and_send(pe, lane, slot, used, last);
        }
        let local = (self.core.bounce.ptr(slot).as_ptr(), used as usize);
        match self.inject(pe, lane, local) {
            Ok(()) => self.core.bounce.free(slot),
            // The rail will report any other error again.
            Err(_) => self.post(WorkRequest::new(Work::Send, pe, lane, 0, local, Some(slot))),
        }
    }

    /// Sends all gathered requests.
    #[inline]
    pub(in crate::endpoint) fn send_outboxes(&mut self) {
        while let Some((pe, lane)) = self.core.lanes.next_gathered() {
            self.send_outbox(pe, lane);
        }
    }
}
