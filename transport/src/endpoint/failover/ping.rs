//! Pings: they show whether a PE answers, and over which lanes, while an acknowledgement is overdue.
//!
//! A ping concerns one lane and is sent over all lanes. The PE's endpoint answers as soon as it polls, over the lane
//! that delivered the ping. Its target agent takes no part. With the first ping the endpoint asks the agent for the
//! acknowledgement again.

use std::ptr;

use super::health::{Advice, ROUNDS};
use super::{StreamState, cut};
use crate::amo::{AmoOp, AmoType};
use crate::endpoint::Endpoint;
use crate::endpoint::message::{begin, fill};
use crate::pe::Pe;
use crate::rail::{Dest, LocalBuf, LocalKey};
use crate::wire::{Request, RequestKind};

impl Endpoint {
    /// Asks a PE for an acknowledgement that is overdue on `lane`, and pings it over all lanes.
    pub(super) fn ping_all(&mut self, pe: Pe, lane: usize) {
        for stream in self.core.lanes.each(pe) {
            let carried = self
                .core
                .lanes
                .failover(pe, stream)
                .is_some_and(|f| usize::from(f.carrier) == lane && f.state == StreamState::Open);
            let applied =
                self.core.lanes.get_mut(pe, stream).filter(|c| carried && !c.unacked.is_empty()).map(|c| c.applied);
            if let Some(sequence) = applied {
                // The agent does not apply a request twice. It answers a repeated one at once.
                let again = self.core.profile.request(RequestKind::Flush, AmoOp::Fetch, AmoType::U64, (0, 0, 0), 0);
                let theirs = self.core.lanes.theirs(pe, stream) as u8;
                let again = Request { lane: theirs, sequence, acknowledged: sequence as u16, urgent: true, ..again };
                self.say(pe, lane, again);
            }
        }
        for via in self.core.lanes.each(pe) {
            self.ping(pe, lane, via, 1);
        }
    }

    fn ping(&mut self, pe: Pe, lane: usize, via: usize, round: u32) {
        let Some(doubt) = self.core.lanes.failover(pe, lane).and_then(|f| f.health.doubt()) else { return };
        if !self.core.lanes.is_down(pe, via) && self.rails[via].is_connected(pe) {
            let words = (0, round.into(), doubt.into());
            let request = self.core.profile.request(RequestKind::Ping, AmoOp::Fetch, AmoType::U64, words, 0);
            self.say(pe, via, Request { lane: lane as u8, ..request });
        }
    }

    /// Answers a ping that a peer sent over lane `via`. Returns whether the ping has to be handled again.
    pub(super) fn answer_ping(&mut self, dest: Dest, via: usize, ping: &Request) -> bool {
        let words = (self.opened_to(dest, ping.lane.into(), ping.operand), ping.operand, ping.second);
        let pong = self.core.profile.request(RequestKind::Pong, AmoOp::Fetch, AmoType::U64, words, 0);
        !self.say(dest, via, Request { lane: ping.lane, ..pong })
    }

    /// Handles the answer to a ping over lane `via`: sends the next ping of the chain there.
    pub(super) fn take_pong(&mut self, dest: Dest, via: usize, pong: &Request) {
        let (now, lane) = (self.core.clock.now(), usize::from(pong.lane));
        let (Ok(round), Ok(doubt)) = (u32::try_from(pong.operand), u32::try_from(pong.second)) else { return };
        let Some(f) = self.core.lanes.failover(dest, lane) else { return };
        if round == ROUNDS {
            f.opened_there = cut::ports(pong.offset);
        }
        if f.health.answered_ping(now, doubt, round) {
            self.ping(dest, lane, via, round + 1);
        }
    }

    /// Sends a request that has no number and is not kept. Returns whether there was room.
    fn say(&mut self, dest: Dest, lane: usize, mut request: Request) -> bool {
        request.source = self.core.profile.source_at(dest);
        let mut bytes = [0; Request::alone(0)];
        // SAFETY: there is room for a message of one request.
        unsafe { fill(begin(bytes.as_mut_ptr(), self.core.profile.token_of(dest)), &request, ptr::null(), 0) };
        if bytes.len() <= self.core.profile.caps(lane).inject && !self.core.queue.holds(lane, dest) {
            let len = bytes.len();
            let local = LocalBuf { ptr: bytes.as_mut_ptr(), len, key: LocalKey::default() };
            // SAFETY: without an id the bytes are copied before the call returns.
            if unsafe { self.rails[lane].send(dest, local, None) }.is_ok() {
                self.core.observer.sent(lane, len);
                return true;
            }
        }
        let Some(slot) = self.core.bounce.alloc(Request::alone(0)) else { return false };
        self.send_small(dest, lane, request, slot);
        true
    }

    /// Checks the health of each lane to a PE. The endpoint calls it once a second.
    pub(super) fn check_health(&mut self, pe: Pe, lane: usize) {
        let (now, mut seen) = (self.core.clock.now(), self.core.seen(pe, lane));
        if seen.waits_since.is_none() {
            seen.waits_since = self.silent_since(pe, lane);
        }
        let Some(f) = self.core.lanes.failover(pe, lane) else { return };
        match f.health.second(now, seen) {
            Advice::Wait => {}
            Advice::Ping => {
                tracing::debug!(pe, lane, health = ?f.health, "an acknowledgement is overdue");
                self.ping_all(pe, lane);
            }
            Advice::GiveUp(why) => {
                self.cut(pe, lane);
                self.core.take_down(pe, lane, &super::silent(why));
            }
        }
    }
}
