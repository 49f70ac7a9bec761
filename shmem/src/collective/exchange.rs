//! Exchanges of a reduction: which PE of a team sends which elements to which, and in what order they are combined.
//!
//! All elements pass through the team's scratch buffer. Exchanges are numbered (`turn`) and alternate between its two
//! halves. In each turn a PE hears from all PEs of the turn before, so these have all left the turn before that, which
//! used the same half. A PE does not modify data that it has sent within the turn, so it need not wait until its sends
//! complete.
//!
//! **Doubling**: in each round two PEs exchange all their elements and both combine them. It has the fewest rounds. If
//! hosts have several PEs, those of a host first gather their elements at one PE through shared memory, two by two, and
//! get the result back the same way; only that PE uses the wire.
//!
//! **Halving**: in each round two PEs split the elements that both hold, and each sends the other its half. When each
//! PE has a small part of the result, they exchange the parts in the reverse rounds. It has twice the rounds, and moves
//! each element twice, however many PEs there are.
//!
//! Both work on powers of two. A PE beyond the largest one first hands its elements to another PE, and gets the result
//! at the end.
//!
//! The result has the same bits on all PEs: two PEs that combine the same elements do so in the same order, which
//! matters even to commutative operations for signs of zeros and for NaNs.

use super::quick::send;
use super::reduction::Reduction;
use crate::error::Result;
use crate::rma::SignalUpdate;
use crate::space::load;
use crate::team::Team;
use crate::team::hosts::Hosts;
use crate::waiting::Among;

/// The tag of elements that are handed over, and of the result that comes back; other tags are above.
const HAND: u32 = 0;
const OTHERS: u32 = 1;

/// One step of a PE; steps run in order. Offsets and lengths are counted in elements, offsets from the start of the
/// scratch buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Puts elements to a member's scratch buffer, with a tag.
    Send { to: u32, from: usize, at: usize, len: usize, tag: u32 },
    /// Waits for the message with a tag.
    Await(u32),
    /// Combines the elements at `into` with others, which go first or last.
    Combine { into: usize, with: usize, len: usize, with_first: bool },
}

/// The steps of a PE in one exchange. At its beginning the PE's own elements are at the start of the scratch buffer; at
/// its end the result is at `result`.
#[derive(Debug, Default)]
pub(super) struct Plan {
    steps: Vec<Step>,
    result: usize,
}

/// The number of rounds among `members` members.
fn rounds(members: usize) -> usize {
    members.max(1).ilog2() as usize
}

/// The number of gathering rounds on hosts.
fn gathering(hosts: &Hosts) -> usize {
    if hosts.are_mixed() { hosts.most().next_power_of_two().trailing_zeros() as usize } else { 0 }
}

/// How many copies of the elements the scratch buffer must hold for an exchange by doubling.
pub(super) fn doubling_slots(hosts: &Hosts) -> usize {
    let talking = if hosts.are_mixed() { hosts.count() } else { hosts.members() };
    2 + gathering(hosts) + rounds(talking)
}

/// The most elements that an exchange by halving can handle in a scratch buffer of `room` elements.
pub(super) fn halving_most(room: usize, members: usize) -> usize {
    room.saturating_sub(rounds(members)) / 3
}

impl Plan {
    /// Doubling among all PEs, host by host.
    pub fn doubling(hosts: &Hosts, count: usize) -> Plan {
        let mut plan = Plan::default();
        if !hosts.are_mixed() {
            let all: Vec<u32> = (0..hosts.members() as u32).collect();
            plan.double(&all, hosts.me() as usize, 0, count);
            return plan;
        }
        let (here, place, gathering) = (hosts.mates(), hosts.place(), gathering(hosts));
        let below = if place == 0 { gathering } else { place.trailing_zeros() as usize };
        let child = |bit: usize| here.get(place + (1 << bit)).copied();
        let slot = |bit: usize| (2 + bit) * count;
        for bit in (0..below).filter(|&bit| child(bit).is_some()) {
            plan.take_in(OTHERS + bit as u32, slot(bit), count, true);
        }
        if place == 0 {
            plan.double(&hosts.column(0), hosts.here(), gathering, count);
        } else {
            plan.send(here[place - (1 << below)], slot(below), count, OTHERS + below as u32);
            plan.steps.push(Step::Await(HAND));
            plan.result = count;
        }
        for child in (0..below).rev().filter_map(child) {
            plan.send(child, count, count, HAND);
        }
        plan
    }

    /// Sends this PE's current result.
    fn send(&mut self, to: u32, at: usize, len: usize, tag: u32) {
        self.steps.push(Step::Send { to, from: self.result, at, len, tag });
    }

    /// Combines this PE's current result with the elements of a message. The new result stays where the message
    /// arrived, because the old one may still be in flight.
    fn take_in(&mut self, tag: u32, at: usize, len: usize, mine_first: bool) {
        self.steps.push(Step::Await(tag));
        self.steps.push(Step::Combine { into: at, with: self.result, len, with_first: mine_first });
        self.result = at;
    }

    /// Doubling among the PEs of a list; its rounds follow the gathering rounds.
    fn double(&mut self, who: &[u32], me: usize, gathering: usize, count: usize) {
        let power = 1 << rounds(who.len());
        if me >= power {
            self.send(who[me - power], count, count, HAND);
            self.steps.push(Step::Await(HAND));
            self.result = count;
            return;
        }
        let extra = who.get(me + power);
        if extra.is_some() {
            self.take_in(HAND, count, count, true);
        }
        for round in 0..rounds(who.len()) {
            let (peer, number) = (me ^ (1 << round), gathering + round);
            let (at, tag) = ((2 + number) * count, OTHERS + number as u32);
            self.send(who[peer], at, count, tag);
            self.take_in(tag, at, count, me < peer);
        }
        if let Some(&extra) = extra {
            self.send(extra, count, count, HAND);
        }
    }

    /// Doubling among the PEs of a list; this PE has index `me` in it.
    pub fn doubling_between(who: &[u32], me: usize, count: usize) -> Plan {
        let mut plan = Plan::default();
        plan.double(who, me, 0, count);
        plan
    }

    /// Halving among the PEs of a list; this PE has index `me` in it.
    pub fn halving_between(who: &[u32], me: usize, count: usize) -> Plan {
        let (rounds, mut plan) = (rounds(who.len()), Plan::default());
        let power = 1 << rounds;
        if me >= power {
            plan.send(who[me - power], count, count, HAND);
            plan.steps.push(Step::Await(HAND));
            plan.result = count;
            return plan;
        }
        let extra = who.get(me + power);
        if extra.is_some() {
            plan.steps.push(Step::Await(HAND));
            plan.steps.push(Step::Combine { into: 0, with: count, len: count, with_first: false });
        }
        // This PE's part after each round, and the offset where the peer's elements for it arrive.
        let (mut part, mut landing, mut most) = (0..count, 2 * count, count);
        let mut parts = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let peer = me ^ (1 << round);
            let middle = part.start + part.len().div_ceil(2);
            let (low, high) = (part.start..middle, middle..part.end);
            let (mine, theirs) = if me < peer { (low, high) } else { (high, low) };
            let (len, tag) = (mine.len(), OTHERS + round as u32);
            plan.steps.extend([
                Step::Send { to: who[peer], from: theirs.start, at: landing, len: theirs.len(), tag },
                Step::Await(tag),
                Step::Combine { into: mine.start, with: landing, len, with_first: peer < me },
            ]);
            most = most.div_ceil(2);
            landing += most;
            part = mine.clone();
            parts.push(mine);
        }
        for round in (0..rounds).rev() {
            let (mine, tag) = (&parts[round], OTHERS + (rounds + round) as u32);
            let (to, at) = (who[me ^ (1 << round)], mine.start);
            plan.steps.extend([Step::Send { to, from: at, at, len: mine.len(), tag }, Step::Await(tag)]);
        }
        if let Some(&extra) = extra {
            plan.send(extra, count, count, HAND);
        }
        plan
    }

    /// Runs the plan in a turn whose half of the scratch buffer begins with this PE's elements. Returns the address of
    /// the result.
    pub fn run(&self, team: &Team, turn: u64, reduction: Reduction) -> Result<*mut u8> {
        let (area, scratch, size) = (*team.area(), team.area().scratch(turn), reduction.size());
        let at = |place: usize| scratch.wrapping_add(place * size);
        for &step in &self.steps {
            match step {
                Step::Send { to, from, at: place, len, tag } => {
                    let signal = SignalUpdate::set(area.tag(turn, tag), turn);
                    // SAFETY: this half of the scratch buffer belongs to this turn, in which no step modifies sent
                    // data.
                    unsafe { send(team, at(place), at(from), len * size, signal, team.group().pe(to)) }?;
                }
                Step::Await(tag) => {
                    let word = area.tag(turn, tag);
                    team.ops().wait_for("a reduction", Among::All(team.group()), || {
                        // SAFETY: the word is in this PE's committed heap and aligned.
                        (unsafe { load(word.cast(), 8) } == turn).then_some(())
                    })?;
                }
                Step::Combine { into, with, len, with_first } => {
                    // SAFETY: both are in the scratch buffer and do not overlap; a message that has arrived there is
                    // complete and stays.
                    unsafe { reduction.combine_ordered(at(into), at(with), len, with_first) };
                }
            }
        }
        Ok(at(self.result))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::team::Group;
    use crate::team::hosts::shapes;

    /// A message in flight: its sender and offset there, its receiver and offset there, the elements when it was sent,
    /// and its tag.
    struct Message {
        from: (usize, usize),
        to: (usize, usize),
        elements: Vec<String>,
        tag: u32,
    }

    /// The scratch buffers of all members while they run their plans, in any order. An element is the list of the
    /// contributions that are combined in it.
    struct World {
        rooms: Vec<Vec<String>>,
        under_way: Vec<Message>,
        came: BTreeMap<(usize, u32), bool>,
        chance: u64,
    }

    impl World {
        fn below(&mut self, limit: usize) -> usize {
            self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.chance >> 33) as usize % limit
        }

        fn deliver(&mut self) {
            let at = self.below(self.under_way.len());
            let Message { from: (pe, place), to: (to, at), elements, tag } = self.under_way.swap_remove(at);
            let now = &self.rooms[pe][place..place + elements.len()];
            assert_eq!(now, elements, "PE {pe} changes what is on its way to {to}");
            self.rooms[to][at..at + elements.len()].clone_from_slice(&elements);
            assert_eq!(self.came.insert((to, tag), false), None, "tag {tag} comes to PE {to} twice");
        }

        /// Runs a step. Returns whether it is done, or must wait.
        fn step(&mut self, pe: usize, step: Step) -> bool {
            match step {
                Step::Send { to, from, at, len, tag } => {
                    let elements = self.rooms[pe][from..from + len].to_vec();
                    self.under_way.push(Message { from: (pe, from), to: (to as usize, at), elements, tag });
                }
                Step::Await(tag) => match self.came.get_mut(&(pe, tag)) {
                    Some(seen) => assert!(!std::mem::replace(seen, true), "PE {pe} awaits tag {tag} twice"),
                    None => return false,
                },
                Step::Combine { into, with, len, with_first } => {
                    assert!(len == 0 || into + len <= with || with + len <= into, "places overlap");
                    for i in 0..len {
                        let (a, b) = (self.rooms[pe][into + i].clone(), &self.rooms[pe][with + i]);
                        self.rooms[pe][into + i] = if with_first { format!("{b}{a}") } else { format!("{a}{b}") };
                    }
                }
            }
            true
        }
    }

    /// Runs an exchange of `count` elements among members. Returns all plans.
    fn exchange(members: &[u32], count: usize, room: usize, seed: u64, plan: impl Fn(u32) -> Plan) -> Vec<Plan> {
        let letter = |pe: u32| char::from(b'a' + pe as u8);
        let most = *members.iter().max().unwrap() as usize + 1;
        let own = |pe: usize| [vec![letter(pe as u32).to_string(); count], vec!["?".into(); room - count]].concat();
        let rooms = (0..most).map(own).collect();
        let mut world = World { rooms, under_way: Vec::new(), came: BTreeMap::new(), chance: seed };
        let plans: Vec<Plan> = members.iter().map(|&pe| plan(pe)).collect();
        let mut at = vec![0; members.len()];
        let mut idle = 0;
        while idle < 1000 * members.len() {
            idle += 1;
            let who = world.below(members.len() + 1);
            if who == members.len() {
                if !world.under_way.is_empty() {
                    world.deliver();
                    idle = 0;
                }
            } else if let Some(&step) = plans[who].steps.get(at[who])
                && world.step(members[who] as usize, step)
            {
                at[who] += 1;
                idle = 0;
            }
        }
        assert!(world.under_way.is_empty() && world.came.values().all(|seen| *seen), "something is sent in vain");
        let result = |i: usize| &world.rooms[members[i] as usize][plans[i].result..plans[i].result + count];
        for (i, plan) in plans.iter().enumerate() {
            assert_eq!(at[i], plan.steps.len(), "PE {} waits for ever", members[i]);
            assert_eq!(result(i), result(0), "results differ");
        }
        for element in result(0) {
            let mut all: Vec<char> = element.chars().collect();
            all.sort_unstable();
            assert_eq!(all, members.iter().copied().map(letter).collect::<Vec<_>>());
        }
        plans
    }

    fn messages_between_hosts(plans: &[Plan], members: &[u32], hosts: &[u32]) -> usize {
        let between_hosts =
            |pe: u32, step: &Step| matches!(*step, Step::Send { to, .. } if hosts[to as usize] != hosts[pe as usize]);
        members
            .iter()
            .zip(plans)
            .map(|(&pe, plan)| plan.steps.iter().filter(|step| between_hosts(pe, step)).count())
            .sum()
    }

    #[test]
    fn doubling_combines_all_alike_wherever_they_are() {
        for n in 1..=13u32 {
            let all: Vec<u32> = (0..n).collect();
            for (of_a_host, homes) in shapes(n) {
                let hosts = |pe: u32| Hosts::new(Group::world(pe, n), &homes);
                let (count, seed) = (2, u64::from(n * of_a_host));
                let room = doubling_slots(&hosts(0)) * count;
                exchange(&all, count, room, seed, |pe| Plan::doubling(&hosts(pe), count));
            }
        }
    }

    #[test]
    fn halving_combines_all_alike_whatever_their_number() {
        for n in 1..=17u32 {
            // Every other PE.
            let who: Vec<u32> = (0..n).map(|i| i + i / 2).collect();
            for count in [1, 2, 3, 5, 16, 37] {
                let place = |pe: u32| who.iter().position(|&member| member == pe).unwrap();
                let room = (3 * count + who.len().ilog2() as usize).max(count);
                assert!(halving_most(room, who.len()) >= count);
                for seed in 0..4 {
                    exchange(&who, count, room, seed, |pe| Plan::halving_between(&who, place(pe), count));
                }
                let room = (2 + who.len().ilog2() as usize) * count;
                exchange(&who, count, room, 9, |pe| Plan::doubling_between(&who, place(pe), count));
            }
        }
    }

    #[test]
    fn only_one_pe_of_a_host_talks_over_the_wire() {
        let between_hosts = |n: u32, of_a_host: u32| {
            let all: Vec<u32> = (0..n).collect();
            let homes: Vec<u32> = all.iter().map(|pe| pe / of_a_host * of_a_host).collect();
            let hosts = |pe: u32| Hosts::new(Group::world(pe, n), &homes);
            let plans = exchange(&all, 1, doubling_slots(&hosts(0)), 1, |pe| Plan::doubling(&hosts(pe), 1));
            messages_between_hosts(&plans, &all, &homes)
        };
        assert_eq!(between_hosts(8, 4), 2);
        assert_eq!(between_hosts(12, 3), 4 * 2);
        assert_eq!(between_hosts(12, 4), 2 + 2, "the third host hands in what it has, and gets the result");
        assert_eq!(between_hosts(8, 1), 8 * 3, "each on its own");
        assert_eq!(between_hosts(8, 8), 0);
    }

    #[test]
    fn halving_moves_each_element_twice() {
        let who: Vec<u32> = (0..16).collect();
        let plans = exchange(&who, 160, 3 * 160 + 4, 3, |pe| Plan::halving_between(&who, pe as usize, 160));
        for plan in plans {
            let sent: usize =
                plan.steps.iter().map(|step| if let Step::Send { len, .. } = step { *len } else { 0 }).sum();
            assert_eq!(sent, 2 * 160 * 15 / 16);
        }
    }
}
