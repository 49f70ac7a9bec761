//! Keepalives over the lanes that a peer uses, so that no connection is alive at one end only.
//!
//! When a connection fails, one end may know it while the other still believes in the connection and refuses a new one
//! ([`RailCaps::half_open`](crate::rail::RailCaps::half_open)). The other end notices only when it sends something, and
//! a target often has nothing to send. So a target sends a few bytes every few seconds over each lane that it or a
//! peer's endpoint uses. It sends one soon after a peer has moved away from a lane.
//!
//! A message shows that its lane is used. For a lane that only writes and reads use, the endpoint sends one message
//! that says so ([`Endpoint::greet`]). A keepalive names its source, since it may be the only message that arrives over
//! a connection.

use super::Use;
use crate::amo::{AmoOp, AmoType};
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint, Role};
use crate::pe::Pe;
use crate::rail::{Dest, LocalBuf, LocalKey};
use crate::wire::{FROM_CONTEXT, FROM_HOST, Keepalive, Origin, Request, RequestKind, Token};

/// Seconds between two keepalives to the same endpoint.
const INTERVAL: u32 = 4;

impl Core {
    /// Notes that this request has arrived in a message over `lane`.
    #[inline]
    pub(in crate::endpoint) fn note_use(&mut self, request: &Request, lane: usize) {
        let Some(uses) = self.uses_by(request.source, request.origin) else { return };
        let left = usize::from(request.lane);
        if request.kind == RequestKind::Move && left != lane && left < uses.len() {
            uses[left] = Use::Left;
        }
        uses[lane] = Use::Known;
    }

    /// Notes that a keepalive has arrived over `lane`. It may be the first message from its source there.
    pub(in crate::endpoint) fn note_keepalive(&mut self, source: Pe, origin: Origin, lane: usize) {
        if let Some(uses) = self.uses_by(source, origin)
            && uses[lane] == Use::Unknown
        {
            uses[lane] = Use::Known;
        }
    }

    /// The lanes that one of a PE's endpoints uses. `None` where no caller needs to know, and for a context's endpoint,
    /// which has a single lane.
    fn uses_by(&mut self, pe: Pe, origin: Origin) -> Option<&mut Box<[Use]>> {
        let lanes = self.profile.rails();
        let uses = self.recovery.uses.as_mut().filter(|_| origin < FROM_CONTEXT)?;
        let uses = uses.enter(self.profile.answer_to(pe, origin));
        if uses.is_empty() {
            *uses = vec![Use::Unknown; lanes].into();
        }
        Some(uses)
    }

    fn keepalive(&self, dest: Dest) -> [u8; Token::SIZE + Keepalive::SIZE] {
        let mut message = [0; _];
        message[..Token::SIZE].copy_from_slice(&self.profile.token_of(dest).bytes());
        message[Token::SIZE..].copy_from_slice(&self.profile.keepalive(dest).encode());
        message
    }
}

impl Endpoint {
    /// Starts to record the lanes that a peer uses, if that is needed: those of its proxy endpoint, and those of its host
    /// endpoint if there is one.
    pub(in crate::endpoint) fn watch_uses(&mut self, pe: Pe, host: bool) {
        let core = &mut self.core;
        if core.profile.role() == Role::Proxy && core.profile.all_caps().iter().any(|c| c.half_open) {
            core.recovery.uses.get_or_insert_default();
            core.uses_by(pe, 0);
            if host {
                core.uses_by(pe, FROM_HOST);
            }
        }
    }

    /// Sends the keepalives that are due. The endpoint calls it once a second.
    pub(in crate::endpoint) fn send_keepalives(&mut self) {
        let lanes = self.core.profile.rails();
        let known = self.core.recovery.uses.as_ref().map_or(0, |uses| uses.slots().count());
        for at in 0..lanes * known {
            let Some(uses) = &self.core.recovery.uses else { return };
            let Some(dest) = uses.slots().number(at / lanes) else { continue };
            let lane = at % lanes;
            // Spreads the keepalives over the seconds of an interval.
            let turn = self.core.clock.now().wrapping_add(dest).is_multiple_of(INTERVAL);
            let due = match uses.get(dest)[lane] {
                Use::Unknown => turn && self.core.lanes.failover(dest, lane).is_some_and(|f| f.used),
                Use::Known => turn,
                Use::Left => true,
            };
            // A refused keepalive must not keep other messages from being sent.
            if due && !self.core.queue.holds(lane, dest) {
                // A keepalive that cannot be sent has no connection, so this end believes in none.
                self.send_keepalive(dest, lane);
                if let Some(uses) = self.core.recovery.uses.as_mut().and_then(|uses| uses.find_mut(dest)) {
                    uses[lane] = Use::Known;
                }
            }
        }
    }

    fn send_keepalive(&mut self, dest: Dest, lane: usize) {
        let mut message = self.core.keepalive(dest);
        let len = message.len();
        if len <= self.core.profile.caps(lane).inject {
            let local = LocalBuf { ptr: message.as_mut_ptr(), len, key: LocalKey::default() };
            // SAFETY: without an id the bytes are copied before the call returns.
            let sent = unsafe { self.rails[lane].send(dest, local, None) };
            tracing::trace!(dest, lane, sent = sent.is_ok(), "a keepalive");
        } else {
            self.post_keepalive(Work::Send, dest, lane);
        }
    }

    /// Posts a keepalive with a completion. Does nothing when there is no buffer.
    pub(super) fn post_keepalive(&mut self, work: Work, dest: Dest, lane: usize) {
        let message = self.core.keepalive(dest);
        let len = message.len();
        if let Some(slot) = self.core.bounce.alloc(len) {
            let ptr = self.core.bounce.ptr(slot).as_ptr();
            // SAFETY: the slot has room for it.
            unsafe { ptr.copy_from_nonoverlapping(message.as_ptr(), len) };
            self.post(WorkRequest::new(work, dest, lane, 0, (ptr, len), Some(slot)));
        }
    }

    /// Tells a peer that this endpoint uses `lane`, unless the peer knows already.
    pub(in crate::endpoint) fn greet(&mut self, pe: Pe, lane: usize) {
        let half_open = self.core.profile.caps(lane).half_open;
        let Some(generation) = self.core.lanes.failover(pe, lane).and_then(|f| f.first_keepalive()) else { return };
        if half_open && let Some(slot) = self.core.bounce.alloc(Request::alone(0)) {
            // The message announces a move that has already happened.
            let request =
                self.core.profile.request(RequestKind::Move, AmoOp::Fetch, AmoType::U64, (0, generation.into(), 0), 0);
            let theirs = self.core.lanes.theirs(pe, lane) as u8;
            self.send_small(pe, lane, Request { lane: theirs, ..request }, slot);
        }
    }
}
