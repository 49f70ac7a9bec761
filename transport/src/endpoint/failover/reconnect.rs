//! New connections in place of broken ones, for rails that do not make them by themselves: queue pairs.
//!
//! Both ends have to take part, and they exchange requests over another lane. The host endpoint, or else the higher PE,
//! initiates: it renews its end and sends an offer. The other end closes its old connection, renews its end, connects
//! it and sends an acceptance. Then the initiator connects. An end that may not initiate, or whose port is down, tells
//! the other that its end is broken. Each end repeats an unanswered request every second. Connections are numbered, so
//! that a late request is recognized.
//!
//! Where no other lane to the peer works, the ends cannot agree, and the lane stays out of use.

use super::{PeerRequest, Renewal};
use crate::amo::{AmoOp, AmoType};
use crate::endpoint::{Core, Endpoint, Role};
use crate::error::Fault;
use crate::rail::Dest;
use crate::wire::{Request, RequestKind};

impl Core {
    /// Handles a request about connections or lanes. Returns `false` for any other request.
    pub(in crate::endpoint) fn take_if_about_connections(&mut self, request: &Request, via: usize) -> bool {
        use RequestKind::{Accept, Broken, Offer, Ping, Pong};
        if !matches!(request.kind, Broken | Offer | Accept | Ping | Pong) {
            return false;
        }
        let dest = self.profile.answer_to(request.source, request.origin);
        // A ping names the lane by the source's rail, and is only answered.
        let known = (request.kind == Ping || usize::from(request.lane) < self.profile.rails())
            && dest < Endpoint::destinations(self.profile.role(), self.profile.n_pes());
        // Few requests about a connection are pending at a time: some that are being answered, and some new ones.
        if known && self.recovery.requests.len() < 4 * (self.lanes.records() + 1) * self.profile.rails() {
            self.recovery.requests.push(PeerRequest { request: *request, via, since: self.clock.now() });
        }
        true
    }
}

impl Endpoint {
    /// Continues the renewal of all broken connections. The endpoint calls it once a second.
    pub(in crate::endpoint) fn renew_connections(&mut self) {
        for lane in 0..self.rails.len() {
            for at in 0..self.core.addressed_dests() {
                let Some(dest) = self.core.addressed_dest(at) else { continue };
                if !self.rails[lane].is_connected(dest) {
                    self.renew_connection(dest, lane);
                }
            }
        }
    }

    fn renew_connection(&mut self, dest: Dest, lane: usize) {
        self.give_up_lane(dest, lane, &lost("the connection is broken"));
        let Some(via) = self.other_lane(dest, lane) else { return };
        let offers = self.core.profile.role() == Role::Host || dest <= self.core.profile.source_at(dest);
        let offer = if offers { self.renew(dest, lane) } else { None };
        tracing::debug!(dest, lane, offers, offer, "a connection is broken");
        let renewal = self.core.recovery.renewals.entry((dest, lane)).or_default();
        let Some(offer) = offer else {
            // A second notice behind an offer would end the connection that the other end has just accepted.
            let Renewal { count, offered: false } = *renewal else { return };
            return self.request_about(RequestKind::Broken, dest, (lane, via), (count, 0));
        };
        if self.core.profile.role() == Role::Proxy && dest == self.core.profile.me() {
            return self.reconnect(dest, lane, offer); // both ends are this endpoint
        }
        *renewal = Renewal { count: renewal.count.wrapping_add(1), offered: true };
        let count = renewal.count;
        self.request_about(RequestKind::Offer, dest, (lane, via), (count, offer));
    }

    /// Handles the requests of peers about connections. A request that has to wait for failed work requests stays for
    /// the next poll.
    #[cold]
    pub(in crate::endpoint) fn answer_about_connections(&mut self) {
        let mut waiting = std::mem::take(&mut self.core.recovery.requests);
        waiting.retain(|request| request.since == self.core.clock.now() && self.handle(request));
        self.core.recovery.requests.append(&mut waiting);
    }

    /// Handles one request. Returns whether it has to be handled again.
    fn handle(&mut self, PeerRequest { request, via, .. }: &PeerRequest) -> bool {
        let (lane, count) = (usize::from(request.lane), request.operand as u32);
        let dest = self.core.profile.answer_to(request.source, request.origin);
        match request.kind {
            RequestKind::Ping => return self.answer_ping(dest, *via, request),
            RequestKind::Pong => {
                self.take_pong(dest, *via, request);
                return false;
            }
            _ => {}
        }
        let known = self.core.recovery.renewals.entry((dest, lane)).or_default();
        tracing::debug!(dest, lane, count, known = ?known, kind = ?request.kind, "about a connection");
        let new = count.wrapping_sub(known.count).cast_signed() > 0;
        match request.kind {
            RequestKind::Broken if count == known.count && !known.offered => {
                self.give_up_lane(dest, lane, &lost("the other end has lost the connection"));
            }
            RequestKind::Offer if new => {
                *known = Renewal { count, offered: false };
                self.give_up_lane(dest, lane, &lost("the other end makes a new connection"));
                return self.accept(dest, (lane, *via), request);
            }
            RequestKind::Offer if count == known.count && !self.rails[lane].is_connected(dest) => {
                return self.accept(dest, (lane, *via), request);
            }
            RequestKind::Accept if count == known.count && known.offered => {
                known.offered = false;
                self.reconnect(dest, lane, request.second);
            }
            _ => {} // a late request
        }
        false
    }

    /// Accepts an offer, unless that has to wait. The answer travels over the lane that delivered the offer: that lane
    /// has worked, whereas the other end may be about to renew another one.
    fn accept(&mut self, dest: Dest, (lane, via): (usize, usize), offer: &Request) -> bool {
        if via == lane || !self.may_talk_over(dest, via) {
            return true;
        }
        let Some(ours) = self.renew(dest, lane) else { return true };
        self.reconnect(dest, lane, offer.second);
        self.request_about(RequestKind::Accept, dest, (lane, via), (offer.operand as u32, ours));
        false
    }

    /// Closes a connection, so that other lanes do its work.
    pub(super) fn give_up_lane(&mut self, dest: Dest, lane: usize, why: &Fault) {
        self.rails[lane].disconnect(dest, why);
        if dest < self.core.profile.n_pes() {
            self.core.take_down(dest, lane, why);
        }
    }

    fn renew(&mut self, dest: Dest, lane: usize) -> Option<u64> {
        self.rails[lane].renew(dest).unwrap_or_else(|error| {
            tracing::debug!(dest, %error, "a connection cannot be renewed");
            None
        })
    }

    fn reconnect(&mut self, dest: Dest, lane: usize, offer: u64) {
        if let Err(error) = self.rails[lane].reconnect(dest, offer) {
            tracing::warn!(dest, %error, "a new connection failed");
        }
    }

    /// A lane over which this endpoint may send requests about another lane.
    fn other_lane(&mut self, dest: Dest, lane: usize) -> Option<usize> {
        self.core.lanes.each_to(dest).find(|&other| other != lane && self.may_talk_over(dest, other))
    }

    /// Whether a request that is sent over a lane is likely to arrive.
    pub(super) fn may_talk_over(&mut self, dest: Dest, lane: usize) -> bool {
        self.rails[lane].is_connected(dest)
            && self.core.lanes.is_up(dest, lane)
            && !self.core.queue.holds(lane, dest)
            && self.rails[lane].port_down().is_none()
    }

    /// Sends a request about `lane` over another lane.
    fn request_about(
        &mut self,
        kind: RequestKind,
        dest: Dest,
        (lane, via): (usize, usize),
        (count, second): (u32, u64),
    ) {
        if let Some(slot) = self.core.bounce.alloc(Request::alone(0)) {
            let request = self.core.profile.request(kind, AmoOp::Fetch, AmoType::U64, (0, count.into(), second), 0);
            let theirs = self.core.lanes.theirs(dest, lane) as u8;
            self.send_small(dest, via, Request { lane: theirs, ..request }, slot);
        }
    }
}

fn lost(why: &str) -> Fault {
    Fault { code: libc::ENOTCONN, text: why.into(), retryable: true }
}
