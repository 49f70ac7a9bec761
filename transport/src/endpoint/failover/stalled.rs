//! Connections on which nothing passes, although neither end has lost them: packets are dropped on the way.
//!
//! A provider over TCP keeps the work that it has, and would deliver it late, once packets pass again. So before the
//! work of such a lane is repeated over another one, both ends cut the connection: the source when it gives the lane
//! up, and the target before it answers the move of the lane's stream. Nothing can arrive over it after that.
//!
//! An end recognizes a connection that it has opened itself by the other rail's address. Of one that the other end has
//! opened it must know the port: a target names its ports in answers to pings, and a source in the move.

use std::collections::HashSet;

use super::cut::{Cut, word};
use super::health::ROUNDS;
use crate::endpoint::command::OpHandle;
use crate::endpoint::queue::WorkRequest;
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;
use crate::rail::{Dest, Ports};
use crate::wire::{Request, RequestKind};

/// Seconds for which a rail has returned nothing before it is asked whether it is silent.
const STALL: u32 = 2;

impl Core {
    /// Since when the rail of a lane has returned none of the work that it has; `None` if it has none, or if that is no
    /// time.
    fn stalled_since(&mut self, pe: Pe, lane: usize) -> Option<u32> {
        let now = self.clock.now();
        let c = self.lanes.get_mut(pe, lane)?;
        let (moved, f) = (c.moved, c.failover.as_deref()?);
        let since = if now.wrapping_sub(moved) < now.wrapping_sub(f.busy_since) { moved } else { f.busy_since };
        (f.posted > 0 && now.wrapping_sub(since) >= STALL).then_some(since)
    }

    /// Notes that the source of a request has cut a connection.
    pub(in crate::endpoint) fn note_cut(&mut self, request: &Request) {
        if request.kind == RequestKind::Move
            && let Some(cut) = Cut::decode(request.second)
            && usize::from(cut.lane) < self.profile.rails()
        {
            self.recovery.cuts.push((self.profile.answer_to(request.source, request.origin), cut));
        }
    }

    /// The cut of a lane to a PE that the PE has not confirmed, and the lane, which is not `except`.
    pub(super) fn unconfirmed(&mut self, pe: Pe, except: Option<usize>) -> Option<(usize, Cut)> {
        let mut others = self.lanes.each(pe).filter(|&lane| Some(lane) != except);
        let lane = others.find(|&lane| self.lanes.failover(pe, lane).is_some_and(|f| f.cut.is_some()))?;
        let opened = self.lanes.failover(pe, lane)?.cut?;
        Some((lane, Cut { lane: self.lanes.theirs(pe, lane) as u8, opened }))
    }

    /// Whether nothing can arrive any more of what was posted on a lane that has failed.
    pub(super) fn is_over(&mut self, pe: Pe, lane: usize) -> bool {
        self.lanes.is_drained(pe, lane) && self.lanes.failover(pe, lane).is_none_or(|f| f.cut.is_none())
    }
}

impl Endpoint {
    /// Since when nothing passes on a lane, although its rail has work: a rail over TCP has heard nothing of the other
    /// end's kernel. The answer of the rail holds until it returns something, and costs it a look at all sockets.
    pub(super) fn silent_since(&mut self, pe: Pe, lane: usize) -> Option<u32> {
        let since = self.core.stalled_since(pe, lane)?;
        let waited = self.core.clock.now().wrapping_sub(since);
        let f = self.core.lanes.failover(pe, lane)?;
        let known = f.silent == Some(since);
        if !known && (waited - 1).is_power_of_two() && self.rails[lane].is_silent(pe) {
            self.core.lanes.failover(pe, lane)?.silent = Some(since);
            return Some(since);
        }
        known.then_some(since)
    }

    /// Cuts the connection of a lane that is given up, if nothing passes on it.
    pub(super) fn cut(&mut self, pe: Pe, lane: usize) {
        if self.rails[lane].is_silent(pe)
            && let Some(f) = self.core.lanes.failover(pe, lane)
        {
            f.cut = Some(self.rails[lane].opened(pe));
            self.rails[lane].cut(pe, f.opened_there);
        }
    }

    /// Ends operations that have taken too long although rails have work requests on their memory. Connections on which
    /// nothing moves are ended first, so that the rails do not access it any more. A PE that answers no keepalive is about
    /// to be given up; its operations end by that.
    pub(in crate::endpoint) fn end_stuck(&mut self, stuck: Vec<(OpHandle, Pe, usize)>) {
        let half = self.core.profile.timeout_s() / 2;
        let mut ended: HashSet<(Pe, usize)> = HashSet::new();
        for (id, pe, lane) in stuck {
            if self.core.is_silent(pe, half) {
                self.core.late.push(id);
                continue;
            }
            if ended.insert((pe, lane)) {
                self.end_connection(pe, lane);
            }
            self.core.finish(id);
        }
    }

    /// Ends the connections to PEs that were given up, where rails have work requests on memory of operations, which have
    /// ended.
    pub(in crate::endpoint) fn end_given_up(&mut self) {
        while let Some(pe) = self.core.recovery.given_up.pop() {
            for lane in self.core.lanes.each(pe) {
                let holds = |r: &WorkRequest| r.dest == pe && usize::from(r.lane) == lane && r.slot.is_none();
                if self.core.queue.all().any(|(_, request)| holds(request)) {
                    self.end_connection(pe, lane);
                }
            }
        }
    }

    /// Ends all connections over which a peer may be writing: what it has begun to write does not arrive any more.
    /// Returns whether there was one.
    pub fn end_connections(&mut self, pe: Pe) -> bool {
        self.core.lanes.each(pe).fold(false, |any, lane| {
            let opened = self.rails[lane].opened(pe);
            let ended = self.rails[lane].cut_all(pe);
            if ended && let Some(f) = self.core.lanes.failover(pe, lane) {
                f.cut = Some(opened);
            }
            any | ended
        })
    }

    fn end_connection(&mut self, pe: Pe, lane: usize) {
        let opened = self.rails[lane].opened(pe);
        let opened_there = self.core.lanes.failover(pe, lane).map_or_else(Ports::default, |f| f.opened_there);
        if self.rails[lane].cut(pe, opened_there)
            && let Some(f) = self.core.lanes.failover(pe, lane)
        {
            f.cut = Some(opened);
        }
    }

    /// The ports from which this end has opened the connection that a ping is about, as a word of its answer, if that
    /// is the last of its chain.
    pub(super) fn opened_to(&mut self, dest: Dest, theirs: usize, round: u64) -> u64 {
        if round != u64::from(ROUNDS) {
            return 0;
        }
        let lane = self.core.lanes.each_to(dest).find(|&lane| self.core.lanes.theirs(dest, lane) == theirs);
        lane.map_or(0, |lane| word(self.rails[lane].opened(dest)))
    }
}
