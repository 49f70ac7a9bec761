//! Work requests of failed lanes: which have arrived, which are posted again, and in which order.

use super::StreamState;
use crate::endpoint::queue::{Work, WorkRequest};
use crate::endpoint::{Core, Endpoint};
use crate::pe::Pe;

/// Whether a work request is a write to `pe` that was first posted on this lane.
fn is_write_of(request: &WorkRequest, pe: Pe, lane: usize) -> bool {
    let write = matches!(request.work, Work::Write { .. } | Work::TransmittedWrite { .. });
    write && request.dest == pe && usize::from(request.home) == lane
}

impl Core {
    /// Keeps a work request whose lane is down until another lane accepts it. An AMO waits for its own lane, and for
    /// the writes that it was posted behind.
    pub(in crate::endpoint) fn mark_lost(&mut self, id: u64) {
        let Some(&WorkRequest { work, dest, .. }) = self.queue.get(id) else { return };
        if matches!(work, Work::Send | Work::Probe { .. }) || self.lanes.is_lost(dest) {
            // Requests are kept elsewhere, and the endpoint will ask for an answer again.
            return self.abandon(id);
        }
        self.recovery.undrained.push(id);
        self.needs_recovery(dest);
    }

    /// Ends undrained work requests that need not be repeated. Takes out those that can be posted again now, in the
    /// order in which they were posted.
    pub(super) fn collect(&mut self, pe: Pe) -> Vec<u64> {
        let mut again = Vec::new();
        let waits: Vec<bool> = (0..self.profile.rails()).map(|lane| self.has_moved_writes(pe, lane)).collect();
        let mut undrained = std::mem::take(&mut self.recovery.undrained);
        undrained.retain(|&id| {
            let Some(&request) = self.queue.get(id) else { return false };
            let (lane, home) = (usize::from(request.lane), usize::from(request.home));
            let over = request.op != 0 && self.ops.has_failed(request.op);
            if over {
                self.abandon(id); // the operation has failed, so no caller relies on its write
                return false;
            }
            if let Work::Amo { .. } = request.work {
                let again_up = request.dest == pe && self.lanes.is_up(pe, lane) && !waits[lane];
                again.extend(again_up.then_some((request.serial, id)));
                return !again_up;
            }
            let state = self.lanes.failover(request.dest, home).map(|f| f.state);
            if request.dest != pe
                || !self.is_over(pe, lane)
                || matches!(state, Some(StreamState::Lost | StreamState::Asked))
            {
                return true;
            }
            let reads = matches!(request.work, Work::Read { .. });
            if !reads && self.profile.caps(lane).order.send_after_write && self.has_arrived(&request) {
                self.abandon(id);
                return false;
            }
            again.push((request.serial, id));
            false
        });
        self.recovery.undrained = undrained;
        again.sort_unstable();
        again.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether writes that were first posted on this lane are under way over another lane or wait for one. An AMO
    /// behind them waits.
    fn has_moved_writes(&self, pe: Pe, lane: usize) -> bool {
        let moved = |id, r: &WorkRequest| r.lane != r.home || self.recovery.undrained.contains(&id);
        self.queue.all().any(|(id, r)| is_write_of(r, pe, lane) && moved(id, r))
    }

    /// Whether writes that were first posted on this lane have yet to be posted again. An answer sent over a lane that
    /// is down delays the report of the lost work requests there, and so their repetition.
    fn has_undrained_writes(&self, pe: Pe, lane: usize) -> bool {
        self.recovery.undrained.iter().any(|&id| self.queue.get(id).is_some_and(|r| is_write_of(r, pe, lane)))
    }

    /// The number of AMOs that wait for their lane to work again.
    pub(super) fn waiting_amos(&self, pe: Pe, lane: usize) -> u32 {
        let waits = |r: &WorkRequest| matches!(r.work, Work::Amo { .. }) && r.dest == pe && usize::from(r.lane) == lane;
        self.recovery.undrained.iter().filter(|&&id| self.queue.get(id).is_some_and(waits)).count() as u32
    }

    /// Whether a message of the write's stream has been applied that was sent behind this write over the same lane
    /// before the lane failed.
    pub(super) fn has_arrived(&mut self, write: &WorkRequest) -> bool {
        let applied = self.lanes.failover(write.dest, write.home.into()).map(|f| f.applied);
        applied.is_some_and(|(generation, serial)| write.generation == Some(generation) && serial > write.serial)
    }

    /// Whether any work of a PE waits for another lane.
    pub(super) fn is_stuck(&mut self, pe: Pe) -> bool {
        self.recovery.undrained.iter().any(|&id| self.queue.get(id).is_some_and(|r| r.dest == pe))
            || self
                .lanes
                .each(pe)
                .any(|stream| matches!(self.stream_state(pe, stream), StreamState::Lost | StreamState::Answered))
    }
}

impl Endpoint {
    /// Moves the unfinished work of lanes that are down to other lanes.
    #[cold]
    pub(in crate::endpoint) fn repost_all(&mut self) {
        for pe in std::mem::take(&mut self.core.recovery.to_recover) {
            if let Some(to) = self.core.lanes.each(pe).find(|&lane| self.core.lanes.is_up(pe, lane)) {
                self.ask_about_lost(pe, to);
                self.repeat(pe, to);
            }
            if self.core.is_stuck(pe) {
                self.core.needs_recovery(pe);
            }
        }
    }

    /// Posts work again that may have been lost: first writes and reads, each on the lane that carries its stream, then
    /// messages.
    ///
    /// No message has to stay ahead of a write, since a write behind a fence waits until the message before it is
    /// acknowledged. Among writes, only flags have to stay in order without a fence.
    pub(super) fn repeat(&mut self, pe: Pe, otherwise: usize) {
        for id in self.core.collect(pe) {
            // The new post gets a new id, because the rail may still report the old one.
            let Some(mut request) = self.core.queue.remove(id) else { continue };
            if !matches!(request.work, Work::Amo { .. }) {
                let stream = self.core.lanes.failover(pe, request.home.into()).map(|f| (f.carrier, f.generation));
                let stream = stream.filter(|&(carrier, _)| !self.core.lanes.is_down(pe, carrier.into()));
                (request.lane, request.generation) =
                    stream.map_or((otherwise as u8, None), |(lane, generation)| (lane, Some(generation)));
            }
            (request.next, request.coalesce) = (None, false);
            if self.core.lanes.measures() || request.segmented.is_some() {
                request.posted = self.core.clock.micros();
            }
            let id = self.core.queue.enter(&mut request);
            self.post_or_keep(id, &request);
        }
        for stream in self.core.lanes.each(pe) {
            // Messages stay behind the writes of their lane.
            if self.core.stream_state(pe, stream) == StreamState::Answered
                && !self.core.has_undrained_writes(pe, stream)
            {
                self.send_again(pe, stream);
            }
        }
    }
}
