//! The outbox of a connection: requests that are gathered for one message.
//!
//! The next poll or quiet sends it. Any other message to the target agent over that connection goes behind the gathered
//! requests.

use crate::bounce::Bounce;
use crate::endpoint::lanes::Connection;
use crate::endpoint::message::{begin, fill};
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;
use crate::wire::{Request, Token};

/// Appends a request to a connection's outbox. Returns `false` where nothing is gathered, or where the message, of at
/// most `most` bytes, has no room.
#[inline(always)]
pub(in crate::endpoint) fn append(
    c: &mut Connection,
    bounce: &mut Bounce,
    most: usize,
    request: &Request,
    (ptr, len): (*mut u8, usize),
) -> bool {
    let Some((slot, used)) = c.outbox else { return false };
    let end = used as usize + Request::SIZE + Request::padded(len);
    if end > most.min(bounce.largest()) {
        return false;
    }
    // SAFETY: the slot is a large one, in which this many bytes are free behind those in use.
    unsafe { fill(bounce.ptr(slot).as_ptr().add(used as usize), request, ptr, len) };
    c.outbox = Some((slot, end as u32));
    if let Some(f) = &mut c.failover {
        f.gathered = request.sequence;
    }
    true
}

impl Endpoint {
    /// Appends a request to the connection's outbox. Returns `false` when the request has no room in any message.
    pub(in crate::endpoint) fn gather(
        &mut self,
        pe: Pe,
        lane: usize,
        request: &Request,
        payload: (*mut u8, usize),
    ) -> bool {
        let most = self.core.profile.caps(lane).max_send;
        let Core { lanes, bounce, .. } = &mut self.core;
        let Some(c) = lanes.get_mut(pe, lane) else { return false };
        if append(c, bounce, most, request, payload) {
            return true;
        }
        self.send_outbox(pe, lane);
        let token = self.core.profile.token_of(pe);
        let Core { lanes, bounce, .. } = &mut self.core;
        let room = bounce.largest().min(most);
        if Token::SIZE + Request::SIZE + Request::padded(payload.1) > room {
            return false;
        }
        let Some(slot) = bounce.alloc(room) else { return false };
        // SAFETY: the slot has room for more than that.
        unsafe { begin(bounce.ptr(slot).as_ptr(), token) };
        lanes.begins_to_gather(pe, lane);
        let Some(c) = lanes.get_mut(pe, lane) else { return false };
        c.outbox = Some((slot, Token::SIZE as u32));
        append(c, bounce, most, request, payload)
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
