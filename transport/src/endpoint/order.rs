//! Which lane an operation takes, and whether it may go now.
//!
//! Without a fence, lanes take turns. After one, the next operation to a destination stays behind what was before
//! the fence: on the one lane where all of that is, if the lane keeps order; else it is deferred until that is delivered.

use super::connection::Connection;
use super::emulate::AMO_LANE;
use super::job::{Job, OpHandle};
use super::lone::Hurry;
use super::{Core, Endpoint, Role};
use crate::pe::Pe;

/// Operations of up to so many bytes stay together, so that few messages and acknowledgements do for many.
pub(super) const COALESCED_MAX: u64 = 64 << 10;
/// A lane that has so many bytes more under way than another is not the one for small operations any more.
const SPREAD: u64 = 64 << 10;

impl Endpoint {
    /// Launches what waited for earlier operations, as far as it may go now.
    pub(super) fn launch_deferred(&mut self) {
        let mut blocked = std::mem::take(&mut self.core.blocked);
        blocked.retain(|&pe| {
            while let Some(&(op, job, epoch)) = self.core.peers.get(pe as usize).and_then(|p| p.deferred.front()) {
                if !self.core.bounce.sufficient() {
                    return true;
                }
                // An operation that timed out meanwhile is not started any more.
                if self.core.ops.get(op).is_some() {
                    let Some(lane) = self.core.order_behind(pe, &job, epoch) else { return true };
                    self.core.peers[pe as usize].deferred.pop_front();
                    self.launch(pe, &job, op, lane, Hurry::Soon);
                } else {
                    self.core.peers[pe as usize].deferred.pop_front();
                }
            }
            false
        });
        self.core.blocked.append(&mut blocked);
    }
}

impl Core {
    /// The lane for an operation of so many bytes that may take any: for a host endpoint the first. Large ones take turns. Small ones stay
    /// together on a lane until it has [`SPREAD`] more under way than another. `None` when all lanes have failed.
    #[inline]
    pub(super) fn pick_lane(&mut self, pe: Pe, bytes: u64) -> Option<usize> {
        if self.role == Role::Host {
            return self.only_lane(pe);
        }
        let peer = &self.peers[pe as usize];
        let lanes = usize::from(peer.lanes.max(1));
        let healthy = peer.down == 0;
        if bytes <= COALESCED_MAX {
            let lane = usize::from(peer.lane);
            if lanes == 1 || (healthy && self.under_way(pe, lane) < SPREAD) {
                return Some(lane);
            }
            return self.least_busy(pe, lane);
        }
        self.next_lane = self.next_lane.wrapping_add(1);
        let next = self.next_lane % lanes;
        if healthy {
            return Some(next);
        }
        (next..next + lanes).map(|lane| lane % lanes).find(|&lane| self.is_up(pe, lane))
    }

    /// Bytes on a lane that are not known to have arrived.
    fn under_way(&self, pe: Pe, lane: usize) -> u64 {
        let c = &self.connections[pe as usize * self.caps.len() + lane];
        c.bytes + u64::from(c.request_bytes)
    }

    /// The lane for small operations from now on: another one if that has much less to do than the present one.
    fn least_busy(&mut self, pe: Pe, present: usize) -> Option<usize> {
        let load = |lane: usize| self.under_way(pe, lane) + if lane == present { 0 } else { SPREAD };
        let lanes = 0..usize::from(self.peers[pe as usize].lanes);
        let lane = lanes.filter(|&lane| self.is_up(pe, lane)).min_by_key(|&lane| load(lane))?;
        self.peers[pe as usize].lane = lane as u8;
        Some(lane)
    }

    /// The lane for a new operation, or `None` if it has to wait for earlier ones.
    #[inline]
    pub(super) fn lane_for(&mut self, pe: Pe, job: &Job, epoch: u32) -> Option<usize> {
        if matches!(job, Job::Get { .. }) {
            // A fence does not order gets. One that cannot go now goes with the others that cannot.
            return self.pick_lane(pe, job.bytes());
        }
        let peer = &self.peers[pe as usize];
        if !peer.deferred.is_empty() {
            return None;
        }
        if peer.epoch == epoch && peer.pinned.is_none() {
            return self.free_lane(pe, job);
        }
        self.order_behind(pe, job, epoch)
    }

    /// The lane on which `job` stays behind what the fence before `epoch` ordered, if it can go now.
    fn order_behind(&mut self, pe: Pe, job: &Job, epoch: u32) -> Option<usize> {
        let (lanes, at) = (self.caps.len(), pe as usize);
        let connections = at * lanes..at * lanes + lanes;
        if self.peers[at].epoch != epoch {
            let mut busy = connections.clone().filter(|&c| !self.connections[c].idle());
            let (first, second) = (busy.next(), busy.next());
            if second.is_some() {
                return None;
            }
            let peer = &mut self.peers[at];
            peer.pinned = first.map(|c| (c - connections.start) as u8);
            peer.fenced = first.map_or(0, |c| self.connections[c].sent);
            peer.epoch = epoch;
        }
        let native = self.is_native(job);
        let Some(lane) = self.peers[at].pinned else { return self.free_lane(pe, job) };
        let c: &Connection = &self.connections[connections.start + usize::from(lane)];
        if c.idle() {
            self.peers[at].pinned = None;
            return self.free_lane(pe, job);
        }
        // What was on a lane that has failed goes on elsewhere, and what comes behind a fence waits for it.
        if (native && usize::from(lane) != AMO_LANE) || !self.is_up(pe, lane.into()) {
            return None;
        }
        let as_message = match job {
            Job::Ask(_) => true,
            Job::Amo { .. } => !self.policy.native_amo,
            _ => self.is_in_message(lane.into(), job, Hurry::Soon),
        };
        let writes = matches!(job, Job::Put { .. } | Job::PutSignal { .. }) && !as_message;
        let order = self.caps[usize::from(lane)].order;
        c.keeps_behind(order, self.peers[at].fenced, as_message, writes).then_some(lane.into())
    }

    fn is_native(&self, job: &Job) -> bool {
        self.policy.native_amo && matches!(job, Job::Amo { .. })
    }

    /// A provider's AMOs have a lane of their own choice. AMOs and signals that a target agent is asked for stay in order, as they do
    /// where a PE has one lane for them.
    fn needs_one_lane(&self, job: &Job) -> bool {
        self.is_native(job) || matches!(job, Job::Ask(ask) if ask.payload.is_empty())
    }

    fn free_lane(&mut self, pe: Pe, job: &Job) -> Option<usize> {
        if self.needs_one_lane(job) {
            return Some(AMO_LANE).filter(|&lane| self.is_up(pe, lane));
        }
        self.pick_lane(pe, job.bytes())
    }

    pub(super) fn defer(&mut self, pe: Pe, op: OpHandle, job: Job) {
        let epoch = self.epoch;
        self.peers[pe as usize].deferred.push_back((op, job, epoch));
        if !self.blocked.contains(&pe) {
            self.blocked.push(pe);
        }
    }
}
