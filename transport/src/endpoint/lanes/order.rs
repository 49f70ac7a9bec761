//! Which lane an operation takes, and whether it may be posted now. Its protocol is selected here, because it depends on
//! the lane, and whether the lane keeps the operation behind earlier ones depends on it.
//!
//! Without a fence, large operations take the lanes in turn. After a fence, the next operation to a destination stays
//! behind the operations before the fence. It takes the one lane that has all of them, if that lane keeps order.
//! Otherwise it is deferred until they are delivered.

use super::{Connection, Deferred, Lanes, Peer};
use crate::endpoint::abilities::AMO_LANE;
use crate::endpoint::command::{Command, OpHandle, Priority};
use crate::endpoint::profile::Profile;
use crate::endpoint::protocol::{Completion, Path, Protocol, Unrecorded};
use crate::endpoint::segmentation::PIECE;
use crate::pe::Pe;
use crate::rail::Dest;

/// Operations of up to so many bytes share a lane, so that many of them need few messages and acknowledgements.
const COALESCED_MAX: u64 = 64 << 10;
/// Operations of up to so many bytes are whole, unless they are bulk, however slow the lanes are.
const WHOLE_MAX: u64 = 2 * PIECE;
/// A lane with so many more bytes under way than another one is no longer the lane for small operations.
const SPREAD: u64 = 128 << 10;

impl Lanes {
    /// The lane for an unordered operation of so many bytes; the first lane where others are spare. Large operations
    /// take the lanes in turn. Small ones share a lane until it has [`SPREAD`] more bytes under way than another.
    /// `None` when all lanes have failed.
    #[inline(always)]
    pub fn pick(&mut self, pe: Pe, bytes: u64) -> Option<usize> {
        self.pick_for(pe, self.slots.find(pe), bytes)
    }

    /// As [`Lanes::pick`], to the peer in slot `at`.
    #[inline(always)]
    fn pick_for(&mut self, pe: Pe, at: usize, bytes: u64) -> Option<usize> {
        let peer = &self.peers[at];
        if peer.lanes == 1 { Some(peer.lane.into()) } else { self.pick_one_of_several(pe, bytes) }
    }

    /// The first of the lanes with the lowest cost, from the preferred one on: for small operations the last one's lane,
    /// which costs [`SPREAD`] bytes less than others, and for large ones the next in turn.
    #[inline(never)]
    fn pick_one_of_several(&mut self, pe: Pe, bytes: u64) -> Option<usize> {
        if self.spare_interval.is_some() {
            return self.only(pe);
        }
        let (peer, small, measures) = (self.peer(pe), bytes <= COALESCED_MAX, self.measures());
        let preferred = if small { peer.lane.into() } else { self.after(pe, self.last_lane, 1) };
        if small && !measures && peer.down == 0 && self.under_way(pe, preferred) < SPREAD {
            return Some(preferred);
        }
        let unknown = self.fastest(pe);
        let cost = |lane: usize| {
            let spread = if small && lane != preferred { SPREAD } else { 0 };
            match (measures, small) {
                (true, _) => self.expected(pe, lane, bytes + spread, unknown),
                (false, true) => (self.under_way(pe, lane) + spread) as f32,
                (false, false) => 0.0,
            }
        };
        let lanes = (0..self.count(pe)).map(|steps| self.after(pe, preferred, steps));
        let up = lanes.filter(|&lane| self.is_up(pe, lane)).map(|lane| (lane, cost(lane)));
        let (lane, _) = up.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        if small {
            self.peer_mut(pe).lane = lane as u8;
        } else {
            self.last_lane = lane;
        }
        Some(lane)
    }

    /// Bytes on a lane that are not known to be delivered.
    pub fn under_way(&self, pe: Pe, lane: usize) -> u64 {
        let c = &self.connections[self.slots.find(pe) * self.rails + lane];
        c.bytes + u64::from(c.request_bytes)
    }

    /// The lane and the protocol of a new operation, or `None` if it has to wait for earlier ones.
    #[inline(always)]
    pub fn place(
        &mut self,
        pe: Pe,
        command: &Command,
        completion: Completion,
        priority: Priority,
        profile: &Profile,
    ) -> Option<(usize, Protocol)> {
        let at = self.slots.find(pe);
        let peer = &self.peers[at];
        let is_get = matches!(command, Command::Get { .. });
        if self.is_segmented(pe, peer, command, priority) {
            let waits = peer.defers() && !is_get;
            return if waits { None } else { self.place_segmented(pe, command, priority, self.epoch, profile) };
        }
        let lane = if is_get {
            // A fence does not order gets. A get that cannot be posted now is deferred with the other operations.
            self.pick_for(pe, at, command.bytes())?
        } else if peer.defers() {
            return None;
        } else if self.is_unfenced(peer) {
            self.free_lane(pe, at, command, profile)?
        } else {
            return self.place_behind(pe, command, completion, self.epoch, profile);
        };
        Some((lane, self.select(pe, at, lane, command, completion, profile)))
    }

    /// Whether an operation's data travels in pieces. Where lanes are measured, no large one is bound to the speed that
    /// a lane has when it begins.
    #[inline(always)]
    fn is_segmented(&self, pe: Pe, peer: &Peer, command: &Command, priority: Priority) -> bool {
        match priority {
            Priority::Bulk => command.bytes() > PIECE,
            Priority::Urgent => {
                command.bytes() > WHOLE_MAX
                    && self.measures()
                    && peer.lanes > 1
                    && self.spare_interval.is_none()
                    && command.bytes() > self.whole_max(pe, WHOLE_MAX)
                    && (!matches!(command, Command::PutSignal { .. }) || self.pieces_hasten_signal(pe, command.bytes()))
            }
        }
    }

    /// As [`Lanes::place`], for a segmented operation, whose pieces may take any lane: so all that a fence orders before
    /// it must be delivered. The lane is the one that it holds.
    fn place_segmented(
        &mut self,
        pe: Pe,
        command: &Command,
        priority: Priority,
        epoch: u32,
        profile: &Profile,
    ) -> Option<(usize, Protocol)> {
        let mut lanes = self.each(pe);
        let (first, at) = (lanes.first(), self.enter(pe));
        let lane = lanes.find(|&lane| self.is_up(pe, lane)).unwrap_or(first);
        let peer = &self.peers[at];
        if !matches!(command, Command::Get { .. }) && (peer.epoch != epoch || peer.pinned.is_some()) {
            if self.of(pe).iter().any(|c| !c.idle()) {
                return None;
            }
            (self.peers[at].epoch, self.peers[at].pinned) = (epoch, None);
        }
        let path =
            Path { segmented: Some(priority), ..self.path(at, lane, command.bytes(), profile, Unrecorded::Nothing) };
        Some((lane, profile.protocols().select(command, Completion::Signaled, path)))
    }

    /// As [`Lanes::place`], for an operation that stays behind the operations before fence `epoch`.
    fn place_behind(
        &mut self,
        pe: Pe,
        command: &Command,
        completion: Completion,
        epoch: u32,
        profile: &Profile,
    ) -> Option<(usize, Protocol)> {
        let (lanes, at) = (self.rails, self.enter(pe));
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
        let pinned = self.peers[at].pinned.map(usize::from);
        let Some(lane) = pinned.filter(|lane| !self.connections[connections.start + lane].idle()) else {
            self.peers[at].pinned = None;
            let lane = self.free_lane(pe, at, command, profile)?;
            return Some((lane, self.select(pe, at, lane, command, completion, profile)));
        };
        // The work of a failed lane moves to other lanes, and operations behind a fence wait for it.
        if (profile.protocols().is_native(command) && lane != AMO_LANE) || !self.is_up(pe, lane) {
            return None;
        }
        let protocol = self.select(pe, at, lane, command, completion, profile);
        let c: &Connection = &self.connections[connections.start + lane];
        let (order, fenced) = (profile.caps(lane).order, self.peers[at].fenced);
        c.keeps_behind(order, fenced, protocol.form.first_post()).then_some((lane, protocol))
    }

    /// The protocol of an operation on a lane to a peer, which is in slot `at`.
    #[inline(always)]
    fn select(
        &self,
        pe: Pe,
        at: usize,
        lane: usize,
        command: &Command,
        completion: Completion,
        profile: &Profile,
    ) -> Protocol {
        let unrecorded = match completion {
            Completion::Unsignaled if matches!(command, Command::Put { .. }) => self.unrecorded(pe, at, lane),
            _ => Unrecorded::Nothing,
        };
        self.select_with(at, lane, command, completion, profile, unrecorded)
    }

    /// The protocol of an operation on a lane where the rail has no room for an unrecorded write now.
    pub fn select_recorded(
        &self,
        pe: Pe,
        lane: usize,
        command: &Command,
        completion: Completion,
        profile: &Profile,
    ) -> Protocol {
        self.select_with(self.slots.find(pe), lane, command, completion, profile, Unrecorded::Nothing)
    }

    /// As [`Lanes::select`], to the peer in slot `at`.
    #[inline(always)]
    fn select_with(
        &self,
        at: usize,
        lane: usize,
        command: &Command,
        completion: Completion,
        profile: &Profile,
        unrecorded: Unrecorded,
    ) -> Protocol {
        let path = self.path(at, lane, command.bytes(), profile, unrecorded);
        profile.protocols().select(command, completion, path)
    }

    #[inline(always)]
    fn path(&self, at: usize, lane: usize, bytes: u64, profile: &Profile, unrecorded: Unrecorded) -> Path {
        let peer = &self.peers[at];
        Path {
            lane,
            fenced: peer.pinned.is_some(),
            single: peer.lanes == 1,
            straight: self.connections[at * self.rails + lane].is_straight(),
            striped: self.is_striped(peer, bytes, profile),
            segmented: None,
            unrecorded,
        }
    }

    /// Whether a transfer of `len` bytes to a peer is split over all its lanes.
    #[inline(always)]
    fn is_striped(&self, peer: &Peer, len: u64, profile: &Profile) -> bool {
        profile.wants_stripes(len) && peer.lanes > 1 && self.in_use() > 1 && peer.is_whole() && peer.pinned.is_none()
    }

    /// What may travel on a lane without a record, so that only the lane and its flush know of it. That has to be the
    /// lane of all small puts. Work that another lane may have to repeat must be a message. The peer is in slot `at`.
    #[inline(always)]
    fn unrecorded(&self, pe: Pe, at: usize, lane: usize) -> Unrecorded {
        let (peer, c) = (&self.peers[at], &self.connections[at * self.rails + lane]);
        if peer.lanes != 1 && self.only(pe) != Some(lane) {
            return Unrecorded::Nothing;
        }
        let unfenced = self.is_unfenced(peer);
        if c.later > 0 && !unfenced {
            return Unrecorded::Nothing;
        }
        if c.failover.is_some() {
            let messages = c.is_straight() && (unfenced || self.is_alone(pe, lane));
            return if messages { Unrecorded::Messages } else { Unrecorded::Nothing };
        }
        // A write does not wait for the target agent.
        if c.unacked.is_empty() || unfenced { Unrecorded::MessagesAndWrites } else { Unrecorded::Messages }
    }

    #[inline(always)]
    fn free_lane(&mut self, pe: Pe, at: usize, command: &Command, profile: &Profile) -> Option<usize> {
        if profile.needs_one_lane(command) {
            return Some(self.each(pe).first()).filter(|&lane| self.is_up(pe, lane));
        }
        self.pick_for(pe, at, command.bytes())
    }

    /// Keeps an operation until it may be posted.
    pub fn defer(&mut self, pe: Pe, op: OpHandle, command: Command, priority: Priority) {
        let epoch = self.epoch;
        self.close_message();
        self.peer_mut(pe).deferred.push_back(Deferred { op, command, priority, epoch });
        if !self.blocked.contains(&pe) {
            self.blocked.push(pe);
        }
    }

    /// Whether anything is deferred.
    #[inline]
    pub fn defer_any(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// The peers that have deferred operations, by number.
    pub fn blocked(&self, at: usize) -> Option<Pe> {
        self.blocked.get(at).copied()
    }

    /// Takes the next operation on a peer that may be posted now, with its lane and protocol. Operations that are `over`
    /// meanwhile are dropped.
    pub fn next_deferred(
        &mut self,
        pe: Pe,
        profile: &Profile,
        over: impl Fn(OpHandle) -> bool,
    ) -> Option<(OpHandle, Command, usize, Protocol)> {
        while let Some(&Deferred { op, command, priority, epoch }) = self.peer(pe).deferred.front() {
            let placed = match over(op) {
                true => None,
                false if self.is_segmented(pe, self.peer(pe), &command, priority) => {
                    Some(self.place_segmented(pe, &command, priority, epoch, profile)?)
                }
                false => Some(self.place_behind(pe, &command, Completion::Batched, epoch, profile)?),
            };
            self.peer_mut(pe).deferred.pop_front();
            if let Some((lane, protocol)) = placed {
                return Some((op, command, lane, protocol));
            }
        }
        None
    }

    /// The operations on a peer that are deferred.
    pub fn deferred(&self, pe: Pe) -> impl Iterator<Item = OpHandle> {
        self.peer(pe).deferred.iter().map(|deferred| deferred.op)
    }

    /// A lane that a deferred segmented operation waits for although nobody asks whether its writes are delivered.
    pub fn unflushed_before_segmented(&self, pe: Pe) -> Option<usize> {
        let peer = self.peer(pe);
        peer.deferred.front().filter(|first| self.is_segmented(pe, peer, &first.command, first.priority))?;
        self.each(pe).find(|&lane| self.is_up(pe, lane) && self.get(pe, lane).is_some_and(|c| c.dirty))
    }

    /// Forgets a blocked peer that has no deferred operations any more. Returns whether it had none.
    pub fn unblock(&mut self, at: usize) -> bool {
        let free = self.blocked.get(at).is_some_and(|&pe| !self.peer(pe).defers());
        if free {
            self.blocked.remove(at);
        }
        free
    }

    /// Orders later operations behind earlier ones, per destination.
    pub fn fence(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The number of fences so far.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether no fence orders the next operation to a peer behind earlier ones.
    #[inline]
    pub fn is_unfenced(&self, peer: &Peer) -> bool {
        peer.epoch == self.epoch && peer.pinned.is_none()
    }

    /// Keeps operations behind a later fence from passing an operation on `lane` until [`Lanes::let_go`], because the
    /// operation will post more there.
    pub fn hold(&mut self, pe: Pe, lane: usize) {
        if let Some(c) = self.get_mut(pe, lane) {
            c.later += 1;
        }
    }

    /// Undoes [`Lanes::hold`] for an operation that has ended.
    #[inline]
    pub fn let_go(&mut self, pe: Pe, lane: u8) {
        if let Some(c) = self.get_mut(pe, lane.into()) {
            c.later = c.later.saturating_sub(1);
        }
    }

    /// The lane of all small puts and flags to a peer, if it is always the same.
    pub fn only(&self, pe: Pe) -> Option<usize> {
        let peer = self.peer(pe);
        match (peer.lanes, self.spare_interval) {
            (1, _) => Some(peer.lane.into()),
            (2.., Some(_)) => self.each(pe).find(|&lane| self.is_up(pe, lane)),
            _ => None,
        }
    }

    /// Whether nothing is under way to a PE on any other lane.
    pub fn is_alone(&self, pe: Pe, lane: usize) -> bool {
        self.of(pe).iter().enumerate().all(|(other, c)| other == lane || c.idle())
    }

    /// A lane to answer on: the one that delivered the request, unless that has failed.
    pub fn for_reply(&self, dest: Dest, lane: usize) -> usize {
        if dest >= self.n_pes || self.is_up(dest, lane) {
            return lane;
        }
        self.each(dest).find(|&other| self.is_up(dest, other)).unwrap_or(lane)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::amo::AmoOp;
    use crate::bounce::Bounce;
    use crate::endpoint::Policy;
    use crate::endpoint::Role;
    use crate::endpoint::abilities::Abilities;
    use crate::endpoint::command::{Signal, Source};
    use crate::endpoint::protocol::Form;
    use crate::env::{RailPolicy, Settings};
    use crate::mock::{Fabric, FabricConfig};
    use crate::rail::Order;

    const PUT: Command = Command::Put { dest: 0, source: Source::Stable(std::ptr::null()), len: 8 };

    /// Two lanes to PE 1, which keep writes in order if `write_after_write` holds.
    fn two_lanes(write_after_write: bool) -> (Lanes, Profile) {
        two_lanes_with(write_after_write, RailPolicy::RoundRobin)
    }

    /// The same to PEs 1 and 2, with a policy.
    fn two_lanes_with(write_after_write: bool, rails: RailPolicy) -> (Lanes, Profile) {
        let policy = Policy { rails, ..Policy::new(&Settings::default(), false) };
        let order = Order { write_after_write, ..FabricConfig::default().order };
        let fabric = Fabric::new(1, FabricConfig { order, software: false, ..FabricConfig::default() });
        let rails = [fabric.open("a").unwrap(), fabric.open("b").unwrap()];
        let caps = rails.iter().map(|rail| rail.caps().clone()).collect();
        let profile = Profile::new(Role::Proxy, (0, 3), policy, caps, Abilities::of(rails[0].as_ref()), 4096).unwrap();
        let mut lanes = Lanes::new(&profile);
        (1..3).for_each(|pe| lanes.connect(pe, &[(0, 0), (1, 1)], 2));
        (lanes, profile)
    }

    const MEGABYTE: u64 = 1 << 20;

    /// Begins a put on a lane.
    fn begin(lanes: &mut Lanes, pe: Pe, lane: usize, bytes: u64) {
        lanes.get_mut(pe, lane).unwrap().bytes += bytes;
        lanes.begin_bytes(lane, bytes);
    }

    #[test]
    fn measured_lanes_get_large_operations_by_their_speed() {
        let (mut lanes, _) = two_lanes_with(true, RailPolicy::Adaptive);
        // Lane 1 has a quarter of the speed.
        for (lane, took) in [(0, 10_000), (1, 40_000)] {
            lanes.note_speed(1, lane, (50_000, 50_000 - took), MEGABYTE);
        }
        let mut taken = [0; 2];
        for _ in 0..10 {
            let lane = lanes.pick(1, MEGABYTE).unwrap();
            begin(&mut lanes, 1, lane, MEGABYTE);
            taken[lane] += 1;
        }
        assert_eq!(taken, [8, 2]);
    }

    #[test]
    fn what_is_under_way_to_other_peers_keeps_a_measured_rail_busy() {
        let (mut lanes, _) = two_lanes_with(true, RailPolicy::Adaptive);
        for (pe, lane, at) in [(1, 0, 50_000), (1, 1, 50_000), (2, 0, 60_000), (2, 1, 60_000)] {
            lanes.note_speed(pe, lane, (at, at - 10_000), MEGABYTE);
        }
        for busy in [0, 1, 1, 0] {
            begin(&mut lanes, 2, busy, 4 * MEGABYTE);
            assert_eq!(lanes.pick(1, MEGABYTE), Some(1 - busy));
            lanes.get_mut(2, busy).unwrap().bytes = 0;
            lanes.end_bytes(busy, 4 * MEGABYTE);
        }
        let turns = [(); 4].map(|()| lanes.pick(1, MEGABYTE).unwrap());
        assert!(turns == [0, 1, 0, 1] || turns == [1, 0, 1, 0], "idle rails: {turns:?}");
    }

    #[test]
    fn small_operations_leave_a_lane_that_has_much_more_under_way() {
        for policy in [RailPolicy::RoundRobin, RailPolicy::Adaptive] {
            let (mut lanes, _) = two_lanes_with(true, policy);
            (0..2).for_each(|lane| lanes.note_speed(1, lane, (50_000, 40_000), MEGABYTE));
            for (under_way, expected) in [(0, 0), (SPREAD - 1, 0), (2, 1), (0, 1)] {
                begin(&mut lanes, 1, 0, under_way);
                assert_eq!(lanes.pick(1, 8), Some(expected), "{policy:?}, {under_way}");
            }
        }
    }

    #[test]
    fn large_operations_are_segmented_where_they_may_take_several_measured_lanes() {
        let source = Source::Stable(std::ptr::null());
        let segmented = |(lanes, profile): &mut (Lanes, Profile), len| {
            let put = Command::Put { dest: 0, source, len };
            let placed = lanes.place(1, &put, Completion::Signaled, Priority::Urgent, profile);
            placed.unwrap().1.flags.segmented.is_some()
        };
        let mut measured = two_lanes_with(true, RailPolicy::Adaptive);
        assert!(!segmented(&mut measured, WHOLE_MAX) && segmented(&mut measured, WHOLE_MAX + 1));
        assert!(!segmented(&mut two_lanes(true), MEGABYTE), "not measured");
        measured.0.keep_others_spare();
        assert!(!segmented(&mut measured, MEGABYTE), "one lane is used");
    }

    #[test]
    fn a_put_signal_is_segmented_where_pieces_save_more_than_a_round_trip() {
        let (mut lanes, profile) = two_lanes_with(true, RailPolicy::Adaptive);
        let segmented = |lanes: &mut Lanes, len| {
            let signal = Signal { offset: 0, value: 1, op: AmoOp::Set };
            let command = Command::PutSignal { dest: 0, source: Source::Stable(std::ptr::null()), len, signal };
            let placed = lanes.place(1, &command, Completion::Signaled, Priority::Urgent, &profile);
            placed.unwrap().1.flags.segmented.is_some()
        };
        assert!(!segmented(&mut lanes, 64 * MEGABYTE), "no speed is known");
        // A round trip takes 10 ms at most, and two lanes save half of the time of one.
        (0..2).for_each(|lane| lanes.note_speed(1, lane, (50_000, 40_000), MEGABYTE));
        assert!(
            !segmented(&mut lanes, MEGABYTE)
                && !segmented(&mut lanes, 2 * MEGABYTE)
                && segmented(&mut lanes, 3 * MEGABYTE)
        );
        // Behind other work it took as long: that was the bandwidth.
        (0..2).for_each(|lane| lanes.note_speed(1, lane, (60_000, 40_001), MEGABYTE));
        assert!(segmented(&mut lanes, MEGABYTE));
    }

    /// The lane of a put.
    fn place(lanes: &mut Lanes, profile: &Profile) -> Option<usize> {
        lanes.place(1, &PUT, Completion::Batched, Priority::Urgent, profile).map(|(lane, _)| lane)
    }

    #[test]
    fn rails_on_which_nothing_happens_are_polled_in_turns() {
        let (mut lanes, _) = two_lanes(true);
        let due = |lanes: &mut Lanes| {
            lanes.next_poll();
            [0, 1].map(|lane| lanes.is_due(lane))
        };
        assert_eq!(due(&mut lanes), [true; 2], "whatever has begun may be on any");
        (0..100).for_each(|_| lanes.next_poll());
        let silent = [due(&mut lanes), due(&mut lanes)];
        assert!(silent == [[true, false], [false, true]] || silent == [[false, true], [true, false]], "{silent:?}");
        lanes.note_activity(1);
        let heard = [due(&mut lanes), due(&mut lanes)];
        assert!(heard.iter().all(|due| due[1]) && heard.iter().filter(|due| due[0]).count() == 1, "{heard:?}");
        lanes.expect_on_all();
        assert_eq!([due(&mut lanes), due(&mut lanes)], [[true; 2]; 2]);
    }

    #[test]
    fn a_bulk_operation_stays_behind_deferred_ones() {
        let (mut lanes, profile) = two_lanes(true);
        let put = Command::Put { dest: 0, source: Source::Stable(std::ptr::null()), len: MEGABYTE };
        let place = |lanes: &mut Lanes| lanes.place(1, &put, Completion::Signaled, Priority::Bulk, &profile).is_some();
        assert!(place(&mut lanes));
        // What waits for a lane that is up, while no lane has anything that a fence orders.
        lanes.defer(1, 0, PUT, Priority::Urgent);
        lanes.fence();
        assert!(!place(&mut lanes));
        let get = Command::Get { source: 0, dest: std::ptr::null_mut(), len: MEGABYTE };
        assert!(lanes.place(1, &get, Completion::Signaled, Priority::Bulk, &profile).is_some());
    }

    #[test]
    fn behind_a_fence_a_put_stays_on_the_one_lane_in_use_or_waits() {
        for (keeps_order, busy, expected) in [
            (true, [false, true], Some(1)),
            (true, [true, false], Some(0)),
            (true, [true, true], None),
            (false, [false, true], None),
            (false, [false, false], Some(0)),
        ] {
            let (mut lanes, profile) = two_lanes(keeps_order);
            for (lane, busy) in busy.into_iter().enumerate() {
                lanes.get_mut(1, lane).unwrap().writes = u32::from(busy);
            }
            assert_eq!(place(&mut lanes, &profile), Some(0), "no fence");
            lanes.fence();
            assert_eq!(place(&mut lanes, &profile), expected, "ordered {keeps_order}, busy {busy:?}");
        }
    }

    #[test]
    fn what_waits_goes_in_order_once_what_was_before_it_is_delivered() {
        let (mut lanes, profile) = two_lanes(false);
        (0..2).for_each(|lane| lanes.get_mut(1, lane).unwrap().writes = 1);
        lanes.fence();
        assert_eq!(place(&mut lanes, &profile), None);
        (1..=3).for_each(|op| lanes.defer(1, op, PUT, Priority::Urgent));
        let next = |lanes: &mut Lanes| lanes.next_deferred(1, &profile, |op| op == 2).map(|(op, ..)| op);
        lanes.get_mut(1, 0).unwrap().writes = 0;
        assert_eq!(next(&mut lanes), None, "the other lane has some");
        assert!(!lanes.unblock(0) && lanes.defer_any());
        lanes.get_mut(1, 1).unwrap().writes = 0;
        assert_eq!([next(&mut lanes), next(&mut lanes), next(&mut lanes)], [Some(1), Some(3), None], "2 is over");
        assert!(lanes.unblock(0) && !lanes.defer_any());
    }

    #[test]
    fn a_message_is_open_for_operations_of_its_form_and_pe_until_one_of_them_may_travel_otherwise() {
        let (mut lanes, _) = two_lanes(true);
        let mut bounce = Bounce::new(&mut [], 4096).unwrap();
        let mut opened = |lanes: &mut Lanes| {
            lanes.get_mut(1, 1).unwrap().outbox = Some((bounce.alloc(8).unwrap(), 8));
            lanes.note_gathered(1, 1, Form::Message);
            lanes.open_message(1, Form::Message)
        };
        lanes.note_gathered(1, 1, Form::Message);
        assert_eq!(lanes.open_message(1, Form::Message), None, "nothing is gathered");
        assert_eq!(opened(&mut lanes), Some(1));
        assert_eq!([lanes.open_message(2, Form::Message), lanes.open_message(1, Form::UnrecordedMessage)], [None; 2]);
        let changes: [fn(&mut Lanes); 4] = [
            |lanes| _ = lanes.take_outbox(1, 1),
            Lanes::next_poll,
            |lanes| lanes.goes_down(1, 0),
            |lanes| lanes.defer(1, 1, PUT, Priority::Urgent),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert_eq!(opened(&mut lanes), Some(1), "{at}");
            change(&mut lanes);
            assert_eq!(lanes.open_message(1, Form::Message), None, "{at}");
        }
        assert_eq!(opened(&mut lanes), None, "an operation is deferred");
        lanes.peer_mut(1).deferred.clear();
        assert_eq!(opened(&mut lanes), Some(1));
        lanes.fence();
        assert_eq!(lanes.open_message(1, Form::Message), None, "a fence may bind it to another lane");
        assert_eq!(opened(&mut lanes), None, "no operation of the peer is behind the fence yet");
    }
}
