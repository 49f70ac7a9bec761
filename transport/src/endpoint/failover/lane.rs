//! Lane failures: taking a lane down, trying it, and using it again.

use super::StreamState;
use super::health::Seen;
use crate::endpoint::{Core, Endpoint};
use crate::error::Fault;
use crate::pe::Pe;

/// Seconds between two attempts to reach a peer that has been given up.
const RARELY: u32 = 30;

impl Core {
    /// Notes that a message sent over a lane has been answered. A lane that is probed is used again.
    #[inline]
    pub(in crate::endpoint) fn answered(&mut self, pe: Pe, lane: usize) {
        if self.lanes.down() > 0 && self.lanes.failover(pe, lane).is_some_and(|f| f.health.answered()) {
            self.bring_up(pe, lane);
        }
    }

    #[cold]
    fn bring_up(&mut self, pe: Pe, lane: usize) {
        self.lanes.comes_up(pe);
        tracing::info!(pe, rail = self.profile.caps(lane).name, "a rail is used again");
        self.needs_recovery(pe);
    }

    pub(super) fn needs_recovery(&mut self, pe: Pe) {
        if !self.recovery.to_recover.contains(&pe) {
            self.recovery.to_recover.push(pe);
        }
    }

    /// Takes a lane out of use because of a fault, which is logged unless the peer is known to be lost.
    pub(in crate::endpoint) fn take_down(&mut self, pe: Pe, lane: usize, fault: &Fault) {
        let lost = self.lanes.is_lost(pe) || self.recovery.is_leaving(pe);
        if self.take_down_quietly(pe, lane, fault) && !lost {
            let (rail, path) = (&self.profile.caps(lane).name, self.paths.of(pe, lane, self.lanes.theirs(pe, lane)));
            if self.lanes.each(pe).all(|other| self.lanes.is_down(pe, other)) {
                tracing::warn!(pe, rail, path, %fault, "a rail has failed; no other reaches this PE");
            } else {
                tracing::warn!(pe, rail, path, %fault, "a rail has failed; others do its work");
            }
        }
    }

    /// As [`Core::take_down`], without a line in the log. Returns whether the lane was in use.
    fn take_down_quietly(&mut self, pe: Pe, lane: usize, fault: &Fault) -> bool {
        let now = self.clock.now();
        let Some(was_up) = self.lanes.failover(pe, lane).and_then(|f| f.fail(now, fault)) else { return false };
        self.needs_recovery(pe);
        if was_up {
            self.observer.given_up(lane);
            self.lanes.goes_down(pe, now);
        }
        for stream in self.lanes.each(pe) {
            if let Some(f) = self.lanes.failover(pe, stream)
                && usize::from(f.carrier) == lane
            {
                f.state = StreamState::Lost;
            }
        }
        for id in self.queue.take_waiting(lane, pe) {
            self.mark_lost(id);
        }
        was_up
    }

    /// Suspects all lanes of a rail on which an unnamed work request was lost: acknowledgements there may never arrive.
    pub(in crate::endpoint) fn suspect(&mut self, lane: usize, fault: &Fault) {
        for at in 0..self.lanes.records() {
            let Some(pe) = self.lanes.addressed(at) else { continue };
            if self.lanes.get_mut(pe, lane).is_some_and(|c| c.failover.is_some() && !c.unacked.is_empty()) {
                self.take_down(pe, lane, fault);
            }
        }
    }

    /// The observation from which the state of a lane follows.
    pub(super) fn seen(&mut self, pe: Pe, lane: usize) -> Seen {
        let (now, lanes) = (self.clock.now(), self.lanes.each(pe));
        let (mut waits_since, mut asked) = (None, false);
        for stream in lanes {
            let Some(c) = self.lanes.get_mut(pe, stream) else { continue };
            let unacked = !c.unacked.is_empty();
            let Some(f) = c.failover.as_deref().filter(|f| usize::from(f.carrier) == lane) else { continue };
            asked |= f.state == StreamState::Asked;
            if f.state == StreamState::Asked || (unacked && f.state == StreamState::Open) {
                let since = waits_since.unwrap_or(f.progress);
                waits_since =
                    Some(if now.wrapping_sub(f.progress) > now.wrapping_sub(since) { f.progress } else { since });
            }
        }
        let others = { lanes }.any(|other| other != lane && self.lanes.is_up(pe, other));
        let refused_since = self.queue.waiting_since(lane, pe);
        let Some(c) = self.lanes.get_mut(pe, lane) else { return Seen::default() };
        let unacked = !c.unacked.is_empty();
        let Some(f) = c.failover.as_deref() else { return Seen::default() };
        let unused = !asked && f.posted == 0 && !(unacked && f.is_own_carrier());
        // A rail accepts nothing while its connection to the PE is being made, for ever if the PE cannot be reached.
        let refused_since = refused_since.filter(|_| !f.worked && f.posted == 0);
        let waits_since = refused_since.or(waits_since);
        Seen { waits_since, under_way: f.under_way, others, unused, unconnected: refused_since.is_some() }
    }

    /// Whether it is time to test whether a lane works again.
    fn is_due(&mut self, pe: Pe, lane: usize) -> bool {
        let now = self.clock.now();
        let due = self.lanes.failover(pe, lane).is_some_and(|f| f.health.is_due(now));
        due && self.lanes.is_drained(pe, lane) && self.may_try(pe)
    }

    /// Whether a PE was pinged and has answered over no lane for so many seconds.
    pub(in crate::endpoint) fn is_silent(&self, pe: Pe, seconds: u64) -> bool {
        let lanes = self.lanes.of(pe).iter().filter_map(|c| c.failover.as_ref());
        lanes.filter_map(|f| f.health.silent_since()).any(|s| self.clock.is_past(s, seconds))
    }

    /// Takes down all lanes to a PE that has been silent for so many seconds. The caller gives the PE up, which is
    /// logged: no rail of its own is at fault.
    pub(in crate::endpoint) fn take_down_all(&mut self, pe: Pe, seconds: u64) {
        let fault = super::silent(format!("the PE has answered over no rail for {seconds} s (SYMRAIL_TIMEOUT_S)"));
        for lane in self.lanes.each(pe) {
            self.take_down_quietly(pe, lane, &fault);
        }
    }

    fn may_try(&self, pe: Pe) -> bool {
        let rarely = || self.clock.now().is_multiple_of(RARELY) && !self.recovery.removed.contains(&pe);
        !self.lanes.is_lost(pe) || rarely()
    }
}

impl Endpoint {
    /// Checks the health of lanes, and tries those that are down. The endpoint calls it once a second.
    pub(in crate::endpoint) fn check_lanes(&mut self) {
        for pe in self.core.ops.late_outcomes(self.core.clock.now()) {
            self.ask_about_outcomes(pe);
        }
        for at in 0..self.core.lanes.records() {
            let Some(pe) = self.core.lanes.addressed(at) else { continue };
            for lane in self.core.lanes.each(pe) {
                self.greet(pe, lane);
                self.check_health(pe, lane);
                let waiting = self.core.waiting_amos(pe, lane);
                let Some(c) = self.core.lanes.get_mut(pe, lane) else { continue };
                let empty = c.empty_but_for(waiting);
                let Some(f) = c.failover.as_deref() else { break };
                if empty
                    && f.state != StreamState::Asked
                    && self.core.is_due(pe, lane)
                    && self.rails[lane].is_connected(pe)
                {
                    // A keepalive is requested. It shows whether the lane may carry its own stream again.
                    self.try_lane(pe, lane);
                    self.ask(pe, lane, lane);
                }
            }
            let mut lanes = self.core.lanes.each(pe);
            if !self.core.lanes.peer(pe).is_whole()
                && lanes.all(|lane| self.core.lanes.is_down(pe, lane))
                && self.core.may_try(pe)
                && let Some(lane) = self.next_to_try(pe)
            {
                // The operations that wait are tried on one of the lanes.
                self.try_lane(pe, lane);
                self.ask_about_lost(pe, lane);
            }
        }
    }

    /// The lane to try when all are down. Lanes are tried one after the other without a pause.
    fn next_to_try(&self, pe: Pe) -> Option<usize> {
        let now = self.core.clock.now();
        let since = |lane: usize| {
            self.core.lanes.get(pe, lane).and_then(|c| c.failover.as_ref()).map(|f| f.health.tried_before(now))
        };
        self.core
            .lanes
            .each(pe)
            .filter(|&lane| self.core.lanes.is_drained(pe, lane) && self.rails[lane].is_connected(pe))
            .max_by_key(|&lane| since(lane))
    }

    pub(super) fn try_lane(&mut self, pe: Pe, lane: usize) {
        let now = self.core.clock.now();
        if let Some(f) = self.core.lanes.failover(pe, lane) {
            f.health.probe(now);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use crate::amo::{AmoOp, AmoType};
    use crate::endpoint::command::{Command, Fetch, Owner};
    use crate::endpoint::{Addresses, Endpoint, NoAgent, Policy, Role};
    use crate::env::Settings;
    use crate::mock::{Fabric, FabricConfig};
    use crate::region::Segment;

    const TIMEOUT: u64 = 10;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The warnings of an endpoint with two rails about a peer that answers nothing, in three times the time-out.
    fn warnings(happens: impl FnOnce(&Fabric, &mut Endpoint)) -> String {
        let fabric = Fabric::new(3, FabricConfig { again: 0, delay: 0, ..FabricConfig::default() });
        let mut memory = [0u64; 8];
        let policy = Policy { timeout_s: TIMEOUT, ..Policy::new(&Settings::default(), false) };
        let open = |pe: u32| {
            let rails = (0..2).map(|rail| fabric.open(&format!("{pe}rail{rail}")).unwrap()).collect();
            Endpoint::new(Role::Proxy, pe, 2, rails, policy).unwrap()
        };
        let (mut ours, mut theirs) = (open(0), open(1));
        // SAFETY: the memory outlives both endpoints.
        let keys = unsafe { theirs.register(Segment::new(0, 0, memory.as_mut_ptr().cast(), 64)) }.unwrap();
        ours.connect(1, &Addresses { host: Vec::new(), proxy: theirs.addresses() }).unwrap();
        ours.learn_separate(1, 0, 64, &keys).unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let add =
                Command::Amo { offset: 0, ty: AmoType::U64, op: AmoOp::Add, operand: 1, compare: 0, fetch: Fetch::No };
            // SAFETY: it has no buffers.
            unsafe { ours.submit(1, add, Owner { issuer: 0, tag: None }) }.unwrap();
            ours.start_quiet(0);
            let mut happens = Some(happens);
            for second in 0..3 * TIMEOUT as u32 {
                ours.poll(&mut NoAgent);
                ours.tick(second);
                if second == 5 {
                    happens.take().unwrap()(&fabric, &mut ours);
                }
            }
        });
        assert!(ours.take_error(0).is_some(), "the operation fails");
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn rails_of_a_peer_that_has_left_have_not_failed() {
        let log = warnings(|fabric, ours| {
            ours.has_left(1, "it has died");
            (0..2).for_each(|rail| fabric.take_down(rail));
        });
        assert!(!log.contains("rail"), "{log}");
    }

    #[test]
    fn a_peer_that_is_silent_is_given_up_and_its_rails_have_not_failed() {
        let log = warnings(|_, _| {});
        assert!(log.contains("this PE is given up") && log.contains("no rail has reached it"), "{log}");
        assert!(!log.contains("a rail has failed"), "{log}");
    }

    #[test]
    fn the_last_rail_that_fails_has_no_others() {
        let log = warnings(|fabric, _| (0..2).for_each(|rail| fabric.take_down(rail)));
        let (first, last) = log.split_once("a rail has failed; others do its work").unwrap();
        assert!(first.lines().count() == 1 && !last.contains("others do its work"), "{log}");
        assert!(last.contains("a rail has failed; no other reaches this PE"), "{log}");
    }
}
