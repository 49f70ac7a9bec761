//! Lanes that fail, fall silent, are tried, and work again.

use super::State;
use super::stream::Way;
use crate::endpoint::{Core, Endpoint};
use crate::error::Fault;
use crate::pe::Pe;
use crate::rail::Dest;

/// Polled seconds without an acknowledgement after which one is overdue: more than one, since they are not counted exactly.
const STALL: u32 = 2;
/// The longest pause between two attempts to use a lane again, in seconds.
const LONGEST_PAUSE: u32 = 4;
/// Seconds between two attempts to reach a peer that has been given up.
const RARELY: u32 = 30;

impl Core {
    /// The rail has reported a work request.
    #[inline]
    pub(in crate::endpoint) fn reported(&mut self, dest: Dest, lane: usize, well: bool) {
        let now = self.now;
        let Some(c) = self.connection(dest, lane) else { return };
        if well {
            c.moved = now;
        }
        let Some(f) = &mut c.failover else { return };
        f.posted = f.posted.saturating_sub(1);
        if well && f.state == State::Trying {
            self.bring_up(dest, lane);
        }
    }

    pub(super) fn bring_up(&mut self, pe: Pe, lane: usize) {
        let Some(f) = self.failover(pe, lane) else { return };
        (f.state, f.pause, f.fault) = (State::Up, 0, None);
        let peer = &mut self.peers[pe as usize];
        (peer.down, peer.unreached_since, peer.gone) = (peer.down - 1, None, false);
        self.down -= 1;
        tracing::info!(pe, rail = self.caps[lane].name, "a rail is used again");
        self.trouble(pe);
    }

    pub(super) fn trouble(&mut self, pe: Pe) {
        if !self.troubled.contains(&pe) {
            self.troubled.push(pe);
        }
    }

    /// Takes a lane out of use because of a fault.
    pub(in crate::endpoint) fn take_down(&mut self, pe: Pe, lane: usize, fault: &Fault) {
        let now = self.now;
        let Some(f) = self.failover(pe, lane).filter(|f| f.state != State::Down) else { return };
        let was_up = f.state == State::Up;
        f.state = State::Down;
        f.retry_at = now.wrapping_add(f.pause + 1);
        f.pause = (2 * f.pause + 1).min(LONGEST_PAUSE);
        f.fault = Some(fault.clone());
        self.trouble(pe);
        if was_up {
            let peer = &mut self.peers[pe as usize];
            peer.down += 1;
            peer.unreached_since = (peer.down >= peer.lanes).then_some(now);
            self.down += 1;
            tracing::warn!(pe, rail = self.caps[lane].name, %fault, "a rail has failed; others do its work");
        }
        for stream in 0..self.lanes(pe) {
            if let Some(f) = self.failover(pe, stream)
                && usize::from(f.carrier) == lane
            {
                f.way = Way::Lost;
            }
        }
        for id in self.backlog[lane].take_all(pe) {
            self.strand(id);
        }
    }

    /// Work that nobody names was lost on a rail: whoever waits for acknowledgements there may wait in vain.
    pub(in crate::endpoint) fn suspect(&mut self, lane: usize, fault: &Fault) {
        for pe in 0..self.n_pes {
            if self.connection(pe, lane).is_some_and(|c| c.failover.is_some() && !c.unacked.is_empty()) {
                self.take_down(pe, lane, fault);
            }
        }
    }

    /// It is time to see whether a lane works again.
    pub(super) fn is_due(&mut self, pe: Pe, lane: usize) -> bool {
        let now = self.now;
        let due = self.failover(pe, lane).is_some_and(|f| now.wrapping_sub(f.retry_at).cast_signed() >= 0);
        due && self.is_down(pe, lane) && self.is_drained(pe, lane) && self.may_try(pe)
    }

    fn may_try(&self, pe: Pe) -> bool {
        !self.is_gone(pe) || self.now.is_multiple_of(RARELY)
    }
}

impl Endpoint {
    /// Once a second: finds lanes that have fallen silent, and tries those that are down.
    pub(in crate::endpoint) fn look_after_lanes(&mut self) {
        let now = self.core.now;
        for pe in 0..self.core.n_pes {
            for lane in 0..self.core.lanes(pe) {
                self.greet(pe, lane);
                let (asked, waiting) = (self.core.asked_over(pe, lane), self.core.waiting_amos(pe, lane));
                let Some(c) = self.core.connection(pe, lane) else { continue };
                let (empty, unacked) = (c.empty_but_for(waiting), !c.unacked.is_empty());
                let Some(f) = c.failover.as_deref_mut() else { break };
                let waits = f.way == Way::Asked || (unacked && f.way == Way::Open);
                let unused = !asked && f.posted == 0 && !(unacked && f.carrier == f.lane);
                if (waits && now.wrapping_sub(f.progress) >= STALL) || (f.state == State::Trying && unused) {
                    let failed = if waits { f.carrier.into() } else { lane };
                    let text = format!("no acknowledgement for {STALL} s");
                    self.core.take_down(pe, failed, &Fault { code: libc::ETIMEDOUT, text, retryable: true });
                } else if empty
                    && f.way != Way::Asked
                    && self.core.is_due(pe, lane)
                    && self.rails[lane].is_connected(pe)
                {
                    // A sign of life is asked for: whether the lane may carry its own stream again.
                    self.try_lane(pe, lane);
                    self.ask(pe, lane, lane);
                }
            }
            let mut lanes = 0..self.core.lanes(pe);
            if self.core.peers[pe as usize].down > 0
                && lanes.all(|lane| self.core.is_down(pe, lane))
                && self.core.may_try(pe)
                && let Some(lane) = self.next_to_try(pe)
            {
                // What waits is tried on one of them.
                self.try_lane(pe, lane);
                self.ask_about_lost(pe, lane);
            }
        }
    }

    /// The lane to try when all are down: one after the other, without a pause.
    fn next_to_try(&self, pe: Pe) -> Option<usize> {
        let first = pe as usize * self.core.caps.len();
        let now = self.core.now;
        let since =
            |lane: usize| self.core.connections[first + lane].failover.as_ref().map(|f| now.wrapping_sub(f.tried_at));
        (0..self.core.lanes(pe))
            .filter(|&lane| self.core.is_drained(pe, lane) && self.rails[lane].is_connected(pe))
            .max_by_key(|&lane| since(lane))
    }

    pub(super) fn try_lane(&mut self, pe: Pe, lane: usize) {
        let now = self.core.now;
        if let Some(f) = self.core.failover(pe, lane) {
            (f.state, f.tried_at) = (State::Trying, now);
        }
    }
}
