//! Reductions of teams: chooses the exchange by size, PEs and hosts.
//!
//! **Small** reductions use doubling, host by host, one part of the elements after the other. Each caller sends at
//! once.
//!
//! **Larger** reductions are divided into shares, if hosts have several PEs. Each of a host's PEs combines its share of
//! the elements of all PEs there through shared memory, exchanges it with the PEs that have the same share on other
//! hosts, and gives the result to all PEs of its host. So each host sends and receives each element at most twice, and
//! its PEs have equal work.
//!
//! **Very large** reductions of PEs that have a host each avoid the scratch buffer, where the PEs wait for each part:
//! `direct` moves everything at once.

use std::ops::Range;

use super::buffer::Buffer;
use super::direct;
use super::exchange::{self, Plan};
use super::quick::copy_here;
use super::reduction::Reduction;
use crate::error::Result;
use crate::team::Team;

/// Up to this size a round of doubling costs little more than a message, and halving the rounds gains more than fewer
/// bytes.
const DOUBLING_UP_TO: usize = 16 << 10;
/// Up to this size all of a host's PEs wait for one PE; also the limit of sources that need not be symmetric.
const TOGETHER_UP_TO: usize = 8 << 10;
/// So many parts that pass through the scratch buffer one after the other take as long as barriers and messages from
/// all to all.
const PARTS: usize = 8;
/// Bytes of another PE's elements that are combined at a time: they stay in the L1 cache.
const PIECE: usize = 16 << 10;

/// The elements that the PEs with this index on their hosts combine. Shares differ by at most one element.
fn share(count: usize, places: usize, place: usize) -> Range<usize> {
    if place < places { part(&(0..count), place, places) } else { 0..0 }
}

/// The number of turns for shares with at most `most` elements in each turn.
fn turns(count: usize, places: usize, most: usize) -> usize {
    count.div_ceil(places).div_ceil(most)
}

/// The part of a share in turn `number` of `turns`. A PE with a share has elements in each turn. In a turn without any
/// it would not learn whether its sends of the turn before have arrived, and would yet reuse that half of the scratch
/// buffer.
fn part(share: &Range<usize>, number: usize, turns: usize) -> Range<usize> {
    let at = |number: usize| share.start + share.len() * number / turns;
    at(number)..at(number + 1)
}

/// Combines all PEs' elements.
///
/// # Safety
/// As for [`Team::reduce`].
pub(super) unsafe fn reduce(
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    reduction: Reduction,
) -> Result<()> {
    let (hosts, size) = (team.hosts(), reduction.size());
    let (bytes, room) = (count * size, team.area().scratch_bytes() / size);
    if hosts.members() == 1 {
        // SAFETY: the caller's promise.
        unsafe { copy_here(dest, source, bytes) };
        return Ok(());
    }
    let most = most_doubled(team, size);
    let alone = hosts.most() == 1;
    // SAFETY (all): the caller's promise.
    if bytes <= TOGETHER_UP_TO || (alone && count <= most) {
        // SAFETY: see above.
        unsafe { by_doubling(team, dest, source, count, most, reduction) }
    } else if alone && count > PARTS * exchange::halving_most(room, hosts.count()) {
        // SAFETY: see above.
        unsafe { direct::reduce(team, dest, source, count, reduction) }
    } else {
        // SAFETY: see above.
        unsafe { by_shares(team, dest, source, count, reduction) }
    }
}

/// The most elements of this size that one exchange by doubling handles.
fn most_doubled(team: &Team, size: usize) -> usize {
    (team.area().scratch_bytes() / size / exchange::doubling_slots(team.hosts())).min(DOUBLING_UP_TO / size)
}

unsafe fn by_doubling(
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    most: usize,
    reduction: Reduction,
) -> Result<()> {
    let (mut plan, mut planned) = (Plan::default(), 0);
    for first in (0..count).step_by(most) {
        let (now, at) = (most.min(count - first), first * reduction.size());
        if now != planned {
            (plan, planned) = (Plan::doubling(team.hosts(), now), now);
        }
        let turn = team.next_turn();
        // SAFETY: the caller's promise; the part fits into the scratch buffer.
        unsafe {
            copy_here(team.area().scratch(turn), source.wrapping_add(at), now * reduction.size());
            let result = plan.run(team, turn, reduction)?;
            copy_here(dest.wrapping_add(at), result, now * reduction.size());
        }
    }
    Ok(())
}

unsafe fn by_shares(team: &Team, dest: *mut u8, source: *const u8, count: usize, reduction: Reduction) -> Result<()> {
    let (hosts, ops, size) = (team.hosts(), team.ops(), reduction.size());
    let (place, room) = (hosts.place(), team.area().scratch_bytes() / size);
    let others = || hosts.other_mates().map(|index| team.group().pe(index));
    let share = share(count, hosts.width(), place);
    let column = if share.is_empty() { Vec::new() } else { hosts.column(place) };
    let turns = turns(count, hosts.width(), exchange::halving_most(room, hosts.count()));
    let doubled = (room / (2 + column.len().max(1).ilog2() as usize)).min(DOUBLING_UP_TO / size);
    let mut buffer = Buffer::zeroed(if hosts.mates().len() > 1 { PIECE } else { 0 });
    let piece_of_others = buffer.as_mut_ptr();
    if hosts.mates().len() > 1 {
        // All PEs of this host have called, so their elements are ready.
        team.sync_host()?;
    }
    // All PEs take the same number of turns, even those without a share.
    for number in 0..turns {
        let turn = team.next_turn();
        if share.is_empty() {
            continue;
        }
        let part = part(&share, number, turns);
        let now = part.len();
        let (at, own) = (part.start * size, team.area().scratch(turn));
        // SAFETY: the caller vouches for sources and destinations; the part fits into the scratch buffer, and a chunk
        // into the buffer. No other PE reads this share of a source, so a destination may be the source.
        unsafe {
            copy_here(own, source.wrapping_add(at), now * size);
            for pe in others() {
                for begin in (0..now).step_by(PIECE / size) {
                    let (piece, within) = ((PIECE / size).min(now - begin), begin * size);
                    ops.get(piece_of_others, source.wrapping_add(at + within), piece * size, pe)?;
                    reduction.combine(own.wrapping_add(within), piece_of_others, piece);
                }
            }
            let plan = match (column.len(), now <= doubled) {
                (1, _) => Plan::default(),
                (_, true) => Plan::doubling_between(&column, hosts.here(), now),
                (_, false) => Plan::halving_between(&column, hosts.here(), now),
            };
            let result = plan.run(team, turn, reduction)?;
            copy_here(dest.wrapping_add(at), result, now * size);
            for pe in others() {
                ops.put_nbi(dest.wrapping_add(at), result, now * size, pe)?;
            }
        }
        // The next turn but one reuses the memory of this result.
        if !others().all(|pe| ops.comm.space.is_mapped(pe)) {
            ops.quiet()?;
        }
    }
    buffer.free();
    if hosts.mates().len() > 1 {
        team.sync_host()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pe_with_a_share_has_a_part_of_it_in_each_round() {
        for places in 1..=9 {
            for most in [2, 7, 1023] {
                for count in (1..300).chain([2047, 2048, 6000, 9207, 131_073]) {
                    let turns = turns(count, places, most);
                    let mut next = 0;
                    for place in 0..places {
                        let share = share(count, places, place);
                        for number in 0..turns {
                            let part = part(&share, number, turns);
                            assert_eq!(part.start, next, "{count} elements, {places} places");
                            assert!(part.len() <= most && part.is_empty() == share.is_empty(), "{part:?} of {share:?}");
                            next = part.end;
                        }
                    }
                    assert_eq!(next, count);
                    assert!(share(count, places, places).is_empty());
                }
            }
        }
    }
}
