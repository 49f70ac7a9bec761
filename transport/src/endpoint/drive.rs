//! Driving an endpoint: progress, sleep, fences, quiets, and time.

use super::backlog::Backlog;
use super::completion::Sink;
use super::job::{Finished, Issue, Issuer, OpHandle};
use super::{Endpoint, MAX_OPERATIONS, MAX_WORK_REQUESTS, TargetAgent};
use crate::error::Error;
use crate::pe::Pe;
use crate::wire::Request;

impl Endpoint {
    /// Descriptors that become readable when polling is worthwhile; `None` when a rail has none.
    #[must_use]
    pub fn wait_fds(&self) -> Option<Vec<std::os::fd::RawFd>> {
        self.rails.iter().map(|r| r.wait_fd()).collect()
    }

    /// Prepares to sleep on [`Endpoint::wait_fds`]; `false` means that polling has something to do.
    pub fn arm(&mut self) -> bool {
        self.send_outboxes();
        self.core.backlog.iter().all(Backlog::is_empty)
            && self.core.blocked.is_empty()
            && self.core.followups.is_empty()
            && !self.core.loops.pending()
            && self.core.about_connections.is_empty()
            && self.rails.iter_mut().all(|r| r.wait_fd().is_none() || r.arm())
    }

    /// The most bytes that a [`Source::Copied`](super::job::Source::Copied) may have.
    #[must_use]
    pub fn copy_limit(&self) -> usize {
        self.core.bounce.largest() - Request::alone(0)
    }

    /// Makes progress: posts what waited, takes in what arrived, gives requests of peers to `agent`.
    /// Returns how much happened.
    pub fn poll(&mut self, agent: &mut dyn TargetAgent) -> usize {
        let mut events = 0;
        self.send_outboxes();
        self.core.polls = self.core.polls.wrapping_add(1);
        for lane in 0..self.core.lanes_to_poll() {
            if !self.core.backlog[lane].is_empty() {
                events += self.post_backlog(lane);
            }
            let mut sink = Sink { core: &mut self.core, lane, agent };
            events += self.rails[lane].poll(&mut sink);
        }
        while let Some((pe, lane)) = self.core.to_greet.pop() {
            self.greet(pe, lane);
        }
        if !self.core.about_connections.is_empty() {
            self.heed_connections();
        }
        if !self.core.port_news.is_empty() {
            self.heed_ports();
        }
        if !self.core.troubled.is_empty() {
            self.rescue_all();
        }
        while !self.core.followups.is_empty()
            && self.core.bounce.plentiful()
            && let Some(op) = self.core.followups.pop()
        {
            self.launch_followup(op);
        }
        if self.core.loops.pending() {
            self.continue_loops();
        }
        if !self.core.blocked.is_empty() {
            self.launch_deferred();
        }
        events
    }

    /// Whether there is room for another operation; if not, poll.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> bool {
        self.core.ops.len() < MAX_OPERATIONS && self.core.work.len() < MAX_WORK_REQUESTS && self.core.bounce.plentiful()
    }

    /// Whether anything is under way that polling would bring forward.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.core.ops.len() > 0 || self.core.work.len() > 0 || self.has_gathered()
    }

    /// Whether requests wait for company that a poll would send.
    #[inline]
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        !self.core.outboxes.is_empty()
    }

    /// Whether an operation is complete (or failed).
    #[inline]
    #[must_use]
    pub fn is_done(&self, op: OpHandle) -> bool {
        self.core.ops.get(op).is_none()
    }

    /// Orders what comes after it behind what came before it, per destination. Returns at once.
    pub fn fence(&mut self) {
        self.core.epoch = self.core.epoch.wrapping_add(1);
    }

    /// Starts to make everything issued so far delivered; then [`Endpoint::is_quiet`] becomes true by polling.
    /// Call it again while waiting: it goes on where buffers ran out.
    /// Costs nothing when there is nothing to do.
    pub fn start_quiet(&mut self, issuer: Issuer) {
        self.core.lone.quiet();
        while self.core.bounce.plentiful()
            && let Some((pe, lane)) = self.core.unflushed.pop()
        {
            let Some(c) = self.core.connection(pe, lane) else { continue };
            c.listed = false;
            if c.dirty || (c.lazy && !c.unacked.is_empty()) {
                self.launch_flush(pe, lane, Issue { issuer, tag: None });
            }
        }
        self.send_outboxes();
    }

    /// Whether everything that `issuer` issued has been delivered (or failed).
    #[inline]
    #[must_use]
    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.core.unflushed.is_empty() && self.core.issuers.get(usize::from(issuer)).is_none_or(|i| i.outstanding == 0)
    }

    /// The first error since it was last asked for, of operations without a tag.
    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        let own = self.core.issuers.get_mut(usize::from(issuer)).and_then(|i| i.error.take());
        own.or_else(|| self.core.error_besides(issuer))
    }

    /// A PE that `issuer` still waits for, to name in an error.
    #[must_use]
    pub fn waits_for(&self, issuer: Issuer) -> Option<Pe> {
        self.core.ops.ids().filter_map(|id| self.core.ops.get(id)).find(|o| o.issue.issuer == issuer).map(|o| o.pe)
    }

    /// Whether the end of an operation that had a tag has not been taken yet.
    #[inline]
    #[must_use]
    pub fn has_finished(&self) -> bool {
        !self.core.finished.is_empty()
    }

    /// The end of the operation of `issuer` that had this tag, once it has ended.
    #[inline]
    pub fn take_finished(&mut self, issuer: Issuer, tag: u64) -> Option<Finished> {
        Finished::take(&mut self.core.finished, issuer, tag)
    }

    /// The next finished operation that had a tag.
    #[inline]
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.core.finished.pop()
    }

    /// Tells the time in whole seconds of any clock that only goes forward; fails operations that are too old, and tries
    /// rails that have failed.
    ///
    /// Only seconds in which it is called count: what could not complete because nobody polled is not late.
    pub fn tick(&mut self, now_s: u32) {
        if now_s == self.core.last_tick {
            return;
        }
        self.core.last_tick = now_s;
        self.core.now = self.core.now.wrapping_add(1);
        let now = self.core.now;
        let limit = self.core.policy.timeout_s;
        let ops = &self.core.ops;
        let old: Vec<_> =
            ops.ids().filter(|&id| ops.get(id).is_some_and(|o| u64::from(now.wrapping_sub(o.since)) > limit)).collect();
        for id in old {
            self.core.expire(id);
        }
        self.core.give_up_late();
        if self.core.fails_over() {
            self.look_for_other_ways();
            self.renew_connections();
            self.look_after_lanes();
        }
        self.give_signs_of_life();
    }
}
