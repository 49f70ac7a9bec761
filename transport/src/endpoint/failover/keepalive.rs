//! Keepalives to peers that use a lane, so that no connection is alive at one end only.
//!
//! Where a connection is known to have failed at one end, the other may go on believing in it, and refuse a new one
//! ([`RailCaps::half_open`](crate::rail::RailCaps::half_open)): until it sends something and learns better. A target
//! often has nothing to send. So what is the target of others sends a few bytes, every few seconds, over each lane that
//! it or a peer's endpoint uses; and soon when a peer has moved away from a lane.
//!
//! Messages tell that a lane is used. A lane that writes and reads use says so once by a message of its own
//! ([`Endpoint::greet`]). Keepalives name their source, since one may be all that has come over a connection.

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
    /// A message has come over `lane`, with this request.
    #[inline]
    pub(in crate::endpoint) fn note_use(&mut self, request: &Request, lane: usize) {
        let Some(uses) = self.uses_by(request.source, request.origin) else { return };
        let left = usize::from(request.lane);
        if request.kind == RequestKind::Move && left != lane && left < uses.len() {
            uses[left] = Use::Left;
        }
        uses[lane] = Use::Known;
    }

    /// A keepalive has come over `lane`, which may be the first that is heard of its source there.
    pub(in crate::endpoint) fn note_keepalive(&mut self, source: Pe, origin: Origin, lane: usize) {
        if let Some(uses) = self.uses_by(source, origin)
            && uses[lane] == Use::Unknown
        {
            uses[lane] = Use::Known;
        }
    }

    /// The lanes that one of a PE's endpoints uses. `None` where nobody needs to know, and for a context's endpoint,
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
        message[Token::SIZE..].copy_from_slice(&self.profile.keepalive().encode());
        message
    }
}

impl Endpoint {
    /// Begins to keep account of the lanes that a peer uses, if that is needed.
    pub(in crate::endpoint) fn watch_uses(&mut self, pe: Pe) {
        let core = &mut self.core;
        if core.profile.role() == Role::Proxy && core.profile.all_caps().iter().any(|c| c.half_open) {
            core.recovery.uses.get_or_insert_default();
            core.uses_by(pe, 0);
            core.uses_by(pe, FROM_HOST);
        }
    }

    /// Once a second: sends the keepalives that are due.
    pub(in crate::endpoint) fn send_keepalives(&mut self) {
        let lanes = self.core.profile.rails();
        for at in 0.. {
            let Some(uses) = &self.core.recovery.uses else { return };
            let Some(dest) = uses.slots().number(at / lanes) else { return };
            let lane = at % lanes;
            // Not to all in the same second.
            let turn = self.core.clock.now().wrapping_add(dest).is_multiple_of(INTERVAL);
            let due = match uses.get(dest)[lane] {
                Use::Unknown => turn && self.core.lanes.failover(dest, lane).is_some_and(|f| f.used),
                Use::Known => turn,
                Use::Left => true,
            };
            // One that is refused must not keep others from being sent.
            if due && !self.core.queue.holds(lane, dest) {
                // Where it cannot be sent there is no connection, and none is believed in.
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

    /// Sends a keepalive, and will be told what becomes of it. Not now, if there is no room.
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

    /// Tells a peer that `lane` is used, if it cannot know yet.
    pub(in crate::endpoint) fn greet(&mut self, pe: Pe, lane: usize) {
        let half_open = self.core.profile.caps(lane).half_open;
        let Some(turn) = self.core.lanes.failover(pe, lane).and_then(|f| f.first_keepalive()) else { return };
        if half_open && let Some(slot) = self.core.bounce.alloc(Request::alone(0)) {
            // A move that has happened.
            let request =
                self.core.profile.request(RequestKind::Move, AmoOp::Fetch, AmoType::U64, (0, turn.into(), 0), 0);
            self.send_small(pe, lane, Request { lane: lane as u8, ..request }, slot);
        }
    }
}
