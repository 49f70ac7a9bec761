//! Driving an endpoint: progress, sleep, fences, quiets, and time.

use super::command::{Finished, Issuer, Owner};
use super::completion::Sink;
use super::{Endpoint, TargetAgent};
use crate::error::Error;
use crate::pe::Pe;

impl Endpoint {
    /// The descriptors that become readable when polling is worthwhile; `None` when a rail has none.
    #[must_use]
    pub fn wait_fds(&self) -> Option<Vec<std::os::fd::RawFd>> {
        self.rails.iter().map(|r| r.wait_fd()).collect()
    }

    /// Prepares to sleep on [`Endpoint::wait_fds`]. Returns `false` when polling has work to do.
    pub fn arm(&mut self) -> bool {
        self.send_outboxes();
        self.core.lanes.expect_on_all();
        self.core.queue.is_clear()
            && !self.core.lanes.defer_any()
            && self.core.segmentation.may_sleep()
            && !self.core.ops.has_followups()
            && !self.core.loops.pending()
            && !self.core.recovery.has_requests()
            && self.rails.iter_mut().all(|r| r.wait_fd().is_none() || r.arm())
    }

    /// Sends the requests that are gathered, without a poll.
    pub fn send_gathered(&mut self) {
        self.send_outboxes();
    }

    /// The most bytes that a [`Source::Copied`](super::command::Source::Copied) may have.
    #[must_use]
    pub fn copy_limit(&self) -> usize {
        self.core.profile.max_payload()
    }

    /// The most bytes of data that travel in one message with their signal.
    #[must_use]
    pub fn message_limit(&self) -> u64 {
        self.core.profile.protocols().in_message()
    }

    /// Whether [`Endpoint::submit_to_agent`] does what it says.
    #[must_use]
    pub fn agent_reads_words(&self) -> bool {
        self.core.profile.protocols().agent_reads_words()
    }

    /// Makes progress: posts waiting work requests, handles completions and messages, and passes requests of peers to
    /// `agent`. Returns the number of events.
    pub fn poll(&mut self, agent: &mut dyn TargetAgent) -> usize {
        let mut events = 0;
        if !self.core.lanes.expects_more() {
            self.send_outboxes();
        }
        self.core.lanes.next_poll();
        for lane in 0..self.rails.len() {
            let waits = self.core.queue.waits_for(lane);
            if waits {
                events += self.post_backlog(lane);
            }
            // A rail that refused a post must be polled to make room.
            if waits || self.core.lanes.is_due(lane) {
                let mut sink = Sink { core: &mut self.core, lane, agent };
                let found = self.rails[lane].poll(&mut sink);
                if found > 0 {
                    self.core.lanes.note_activity(lane);
                }
                events += found;
            }
        }
        while let Some((dest, lane, opened)) = self.core.recovery.next_cut() {
            tracing::info!(dest, lane, "a connection on which nothing passes is closed");
            self.rails[lane].cut(dest, opened);
            // What the provider had read before.
            let mut sink = Sink { core: &mut self.core, lane, agent };
            self.rails[lane].poll(&mut sink);
        }
        while let Some(pe) = self.core.lanes.next_to_connect() {
            if let Err(error) = self.connect_now(pe) {
                tracing::warn!(pe, %error, "a PE that has sent something cannot be answered");
            }
        }
        while let Some((pe, lane)) = self.core.recovery.next_keepalive() {
            self.greet(pe, lane);
        }
        if self.core.recovery.has_requests() {
            self.answer_about_connections();
        }
        if self.core.recovery.has_port_news() {
            self.handle_port_events();
        }
        if self.core.recovery.is_needed() {
            self.repost_all();
        }
        if self.core.ops.has_followups() {
            self.launch_followups();
        }
        if self.core.loops.pending() {
            self.continue_loops();
        }
        if self.core.lanes.defer_any() {
            self.launch_deferred();
        }
        if self.core.segmentation.waits() {
            self.post_pieces();
        }
        events
    }

    /// Whether there is room for another operation. If not, the caller polls.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> bool {
        self.core.ops.has_room() && self.core.queue.has_room() && self.core.bounce.plentiful()
    }

    /// Whether any work is under way that polling would advance.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.core.ops.is_empty() || !self.core.queue.is_empty() || self.has_gathered()
    }

    /// Whether requests wait to be coalesced that a poll would send.
    #[inline]
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        self.core.lanes.have_gathered()
    }

    /// Orders later operations behind earlier ones, per destination. Returns at once.
    pub fn fence(&mut self) {
        self.core.lanes.fence();
    }

    /// How many fences there have been.
    #[must_use]
    pub fn fences(&self) -> u32 {
        self.core.lanes.epoch()
    }

    /// Notes whether the caller submits more operations at once. If so, requests that travel in messages ask for no
    /// acknowledgement, and [`Endpoint::poll`] sends no message that has room for more. A caller that has announced
    /// more must call [`Endpoint::ask_for_acknowledgements`] in the end: nothing else completes those operations soon.
    #[inline]
    pub fn expect_more(&mut self, more: bool) {
        self.core.lanes.expect_more(more);
    }

    /// Asks for the acknowledgement of all requests that were sent without asking, as far as there are buffers, and
    /// expects no more operations. The call costs nothing when there are no such requests.
    #[inline]
    pub fn ask_for_acknowledgements(&mut self) {
        self.expect_more(false);
        while let Some((pe, lane)) = self.core.lanes.next_without_ack_request()
            && self.ask_for_acknowledgement(pe, lane)
        {}
    }

    /// Starts a quiet: polling then delivers all earlier operations until [`Endpoint::is_quiet`] returns `true`. The
    /// caller repeats the call while it waits, because a call stops where buffers run out. The call costs nothing when
    /// there is nothing to do.
    pub fn start_quiet(&mut self, issuer: Issuer) {
        self.core.issuers.quiet_begins();
        self.ask_for_acknowledgements();
        while self.core.bounce.plentiful()
            && let Some((pe, lane, flush)) = self.core.lanes.next_unflushed()
        {
            if flush {
                self.launch_flush(pe, lane, Owner { issuer, tag: None });
            }
        }
        self.send_outboxes();
    }

    /// Whether all operations of `issuer` have been delivered or have failed.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.core.lanes.is_flushed() && self.core.issuers.none_of(issuer)
    }

    /// The first error of operations without a tag since the last call.
    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        let own = self.core.issuers.take_error(issuer);
        own.or_else(|| self.core.error_besides(issuer))
    }

    /// A PE that `issuer` still waits for, for an error message.
    #[must_use]
    pub fn waits_for(&self, issuer: Issuer) -> Option<Pe> {
        self.core.ops.waits_for(issuer)
    }

    /// Whether any ended operation with a tag has not been taken yet.
    #[inline]
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.core.issuers.has_finished()
    }

    /// The end of the operation of `issuer` that had this tag, once it has ended.
    #[inline]
    pub fn take_finished(&mut self, issuer: Issuer, tag: u64) -> Option<Finished> {
        self.core.issuers.take_finished(issuer, tag)
    }

    /// Drops the end of this operation: no caller will take it.
    pub fn abandon(&mut self, issuer: Issuer, tag: u64) {
        self.core.issuers.abandon(issuer, tag);
    }

    /// The next finished operation that had a tag.
    #[inline]
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.core.issuers.next_finished()
    }

    /// Sets the time, in whole seconds of any clock that only goes forward. Fails operations that are too old, and
    /// tries rails that have failed.
    ///
    /// Only seconds in which the endpoint is called count: an operation is not late because no thread polled.
    pub fn tick(&mut self, now_s: u32) {
        if !self.core.clock.tick(now_s) {
            return;
        }
        self.core.lanes.close_message();
        self.core.note_moved_pieces();
        let stuck = self.core.expire();
        self.end_stuck(stuck);
        self.core.give_up_late();
        self.end_given_up();
        if !self.core.closing.is_empty() {
            self.close_buffers();
        }
        if self.core.lanes.fail_over() {
            self.look_for_other_lanes();
            self.renew_connections();
            self.check_lanes();
        }
        self.send_keepalives();
        if !self.core.recovery.removed.is_empty() {
            self.forget_removed();
        }
    }
}
