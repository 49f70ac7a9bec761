//! Barrier plans: which PEs of a group signal which others, and by which flags.
//!
//! If the PEs are on several hosts, the PEs of a host first gather at one of them through shared memory (a tree). The
//! first PEs of all hosts then run a barrier among themselves, and the release goes down the same tree. So each host
//! sends and awaits one message a round, however many PEs it has. PEs that are all on one host, or each on its own,
//! need no tree.
//!
//! The barrier is a dissemination barrier: in round `k` each PE signals the PE `2^k` above and waits for the PE `2^k`
//! below; after `ceil(log2 n)` rounds every PE has heard from all PEs, directly or not. Flags are single bytes, which
//! no fabric can deliver in halves. Barriers alternate between two sets of flags: a PE can be one barrier ahead of
//! another, never two.
//!
//! Devices follow the same plans, with words of their own ([`symrail_kernels::barrier_words`]).

use std::sync::atomic::{AtomicU8, Ordering};

use symrail_kernels::barrier_words::{SET, Step};
use symrail_transport::Pe;

use crate::error::Result;
use crate::operations::Operations;
use crate::space::at;
use crate::team::group::Group;
use crate::team::hosts::Hosts;
use crate::waiting::Among;

/// Bytes of both sets.
pub(crate) const FLAG_BYTES: u64 = 2 * SET;
/// The flags of a host's PEs, behind those of the rounds. Both suffice for every group that [`Hosts`] divides.
const GATHER: u32 = 16;
const RELEASE: u32 = 31;
/// A flag is the barrier's number in the high bits and the vote in the lowest.
const NUMBERS: u64 = 0x7f;

/// The steps of a PE in each barrier of a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan(Box<[Step]>);

impl Plan {
    /// The steps of the group's own PE.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The plan of the group's own PE.
    pub fn new(group: Group, hosts: &Hosts) -> Plan {
        let mut steps = Vec::new();
        if !hosts.are_mixed() {
            disseminate(&mut steps, group, &(0..group.size()).collect::<Vec<_>>());
            return Plan(steps.into());
        }
        let (here, place) = (hosts.mates(), hosts.place());
        let below = if place == 0 { here.len().next_power_of_two().trailing_zeros() } else { place.trailing_zeros() };
        let children = |bit: u32| here.get(place + (1 << bit)).map(|&index| (bit, group.pe(index)));
        steps.extend((0..below).filter_map(children).map(|(bit, _)| Step::WaitFlag(GATHER + bit)));
        if place == 0 {
            disseminate(&mut steps, group, &hosts.column(0));
        } else {
            steps.push(Step::SignalPeer(group.pe(here[place - (1 << below)]), GATHER + below));
            steps.push(Step::WaitFlag(RELEASE));
        }
        steps.extend((0..below).rev().filter_map(children).map(|(_, pe)| Step::SignalPeer(pe, RELEASE)));
        Plan(steps.into())
    }

    /// The plan for a barrier of the PEs on this PE's host alone.
    pub fn on_host(group: Group, hosts: &Hosts) -> Plan {
        let mut steps = Vec::new();
        disseminate(&mut steps, group, hosts.mates());
        Plan(steps.into())
    }
}

/// Adds the rounds among the PEs with these indexes; this PE is one of them.
fn disseminate(steps: &mut Vec<Step>, group: Group, who: &[u32]) {
    let place = who.iter().position(|&index| index == group.me()).unwrap_or(0);
    for round in 0..who.len().next_power_of_two().trailing_zeros() {
        let to = who[(place + (1 << round)) % who.len()];
        steps.extend([Step::SignalPeer(group.pe(to), round), Step::WaitFlag(round)]);
    }
}

/// One barrier of a group.
pub(crate) struct Barrier<'a> {
    pub group: Group,
    pub plan: &'a Plan,
    /// The offset of its flags.
    pub flags: u64,
    /// Its number among the barriers on these flags.
    pub count: u64,
}

/// Waits for the other PEs of a group. Returns whether any PE voted `true`.
pub(crate) fn run(ops: &Operations<'_>, what: &'static str, barrier: &Barrier<'_>, mine: bool) -> Result<bool> {
    ops.comm.job.here()?;
    let &Barrier { group, plan, flags, count } = barrier;
    let (set, number) = (flags + (count & 1) * SET, (count & NUMBERS) as u8);
    let mut any = mine;
    for &step in &plan.0 {
        match step {
            Step::SignalPeer(pe, flag) => put_flag(ops, pe, set + u64::from(flag), number << 1 | u8::from(any))?,
            Step::WaitFlag(flag) => {
                let mine = at(ops.comm.space.base, set + u64::from(flag));
                any |= ops.wait_for(what, Among::All(group), || {
                    // SAFETY: the flag is in this PE's committed heap, and all accesses to it are atomic bytes.
                    let seen = unsafe { AtomicU8::from_ptr(mine) }.load(Ordering::Acquire);
                    (seen >> 1 == number).then_some(seen & 1 != 0)
                })?;
            }
        }
    }
    ops.comm.flush_nic_writes();
    Ok(any)
}

fn put_flag(ops: &Operations<'_>, pe: Pe, offset: u64, value: u8) -> Result<()> {
    let base = ops.comm.space.mapped(pe, offset, std::ptr::null())?;
    if base != 0 {
        // SAFETY: the flag is in committed memory of every PE's heap, and all accesses to it are atomic bytes.
        unsafe { AtomicU8::from_ptr(at(base, offset)) }.store(value, Ordering::SeqCst);
        return Ok(());
    }
    ops.on_wire()?.put_flag(pe, offset, value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::team::hosts::shapes;

    /// Runs a barrier of all PEs of a group. Returns how many flags were set on other hosts.
    fn run_all(pes: &[Pe], hosts: &[Pe], group_of: impl Fn(Pe) -> Group) -> usize {
        let plans: BTreeMap<Pe, Plan> =
            pes.iter().map(|&pe| (pe, Plan::new(group_of(pe), &Hosts::new(group_of(pe), hosts)))).collect();
        let mut knows: BTreeMap<Pe, BTreeSet<Pe>> = pes.iter().map(|&pe| (pe, BTreeSet::from([pe]))).collect();
        let mut flags: BTreeMap<(Pe, u32), BTreeSet<Pe>> = BTreeMap::new();
        let mut at: BTreeMap<Pe, usize> = BTreeMap::new();
        let mut between_hosts = 0;
        loop {
            let mut moved = false;
            for &pe in pes {
                let next = at.entry(pe).or_default();
                match plans[&pe].0.get(*next) {
                    None => continue,
                    Some(&Step::SignalPeer(to, flag)) => {
                        let before = flags.insert((to, flag), knows[&pe].clone());
                        assert!(before.is_none(), "flag {flag} of PE {to} is set twice");
                        assert!(u64::from(flag) < SET);
                        between_hosts += usize::from(hosts[to as usize] != hosts[pe as usize]);
                    }
                    Some(&Step::WaitFlag(flag)) => {
                        let Some(known) = flags.get(&(pe, flag)) else { continue };
                        knows.get_mut(&pe).unwrap().extend(known);
                    }
                }
                *next += 1;
                moved = true;
            }
            if !moved {
                break;
            }
        }
        for &pe in pes {
            assert_eq!(at[&pe], plans[&pe].0.len(), "PE {pe} waits for ever");
            assert_eq!(knows[&pe].len(), pes.len(), "PE {pe} has not heard from all");
        }
        between_hosts
    }

    #[test]
    fn all_hear_from_all_wherever_they_are() {
        for n in 1..=20u32 {
            for (_, hosts) in shapes(n) {
                let pes: Vec<Pe> = (0..n).collect();
                run_all(&pes, &hosts, |pe| Group::world(pe, n));
                let odd: Vec<Pe> = (1..n).step_by(2).collect();
                run_all(&odd, &hosts, |pe| Group::new(1, 2, odd.len() as i64, pe, n).unwrap());
                let back: Vec<Pe> = (0..n).rev().collect();
                run_all(&back, &hosts, |pe| Group::new((n - 1).into(), -1, n.into(), pe, n).unwrap());
            }
        }
    }

    #[test]
    fn a_host_sends_one_message_a_round() {
        let flags = |n: u32, of_a_host: u32| {
            let hosts: Vec<Pe> = (0..n).map(|pe| pe / of_a_host * of_a_host).collect();
            let pes: Vec<Pe> = (0..n).collect();
            run_all(&pes, &hosts, |pe| Group::world(pe, n))
        };
        assert_eq!(flags(8, 4), 2);
        assert_eq!(flags(64, 8), 8 * 3);
        assert_eq!(flags(8, 1), 8 * 3, "each on its own");
        assert_eq!(flags(8, 8), 0);
    }
}
