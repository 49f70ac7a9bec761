//! Blocks from every PE to every PE, with a counter of arrivals for each.
//!
//! If the fabric counts arrivals, a block is one write, from its source. Elsewhere it is a put-signal, and blocks too
//! large for inline messages are sent from the team's scratch buffer, if they fit. A slot of that buffer stays
//! unchanged long enough that no PE waits for its sends to complete.

use super::quick::{IN_MESSAGE_UP_TO, await_count, copy_here, send_counted, sent, ticket};
use super::relay;
use crate::error::Result;
use crate::team::Team;

/// Puts this PE's block to all PEs. `block` gives the offset and the length of each PE's block in the destination.
///
/// A block goes to one PE of each other host, which forwards it to the PEs of its host. That is the PE with the same
/// index on its host. If the host has fewer PEs, its PEs take over such blocks in turn, so that all have equal work.
pub(super) unsafe fn to_all(
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    block: impl Fn(u32) -> (usize, usize),
) -> Result<()> {
    let (hosts, group) = (team.hosts(), team.group());
    let (start, bytes) = block(group.me());
    let own = dest.wrapping_add(start);
    // SAFETY: the caller's promise.
    unsafe { copy_here(own, source, bytes) };
    if group.size() == 1 {
        return Ok(());
    }
    let most = (0..group.size()).map(|index| block(index).1).max().unwrap_or(0);
    // SAFETY: the caller's promise.
    let (source, kept) = unsafe { keep(team, source, bytes, most, most) };
    let ticket = ticket(team, true)?;
    let (remote, here) = (team.area().count(ticket), team.area().host_count(ticket));
    let (to, from) = (relay::takers(hosts), relay::givers(hosts));
    for &index in &to {
        // SAFETY: the caller's promise; the source is kept, or not touched before the call returns.
        unsafe { send_counted(team, own, source, bytes, remote, group.pe(index)) }?;
    }
    let pass_on = |index: u32, from: *const u8| {
        let (start, bytes) = block(index);
        let at = dest.wrapping_add(start);
        // SAFETY: the caller's promise; what was received is complete.
        hosts.other_mates().try_for_each(|mate| unsafe { send_counted(team, at, from, bytes, here, group.pe(mate)) })
    };
    pass_on(group.me(), source)?;
    await_count(team, remote, from.len() as u64)?;
    for &index in &from {
        pass_on(index, dest.wrapping_add(block(index).0))?;
    }
    let passed_on = group.size() as usize - 1 - from.len();
    await_count(team, here, passed_on as u64)?;
    let all_kept = kept && hosts.other_mates().all(|mate| team.ops().comm.space.is_mapped(group.pe(mate)));
    if all_kept { Ok(()) } else { sent(team, most) }
}

/// Sends each PE its own block; packed, if several hosts have several PEs and blocks are small.
pub(super) unsafe fn all_to_all(team: &Team, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
    let (group, me) = (team.group(), team.group().me() as usize);
    let own = dest.wrapping_add(me * bytes);
    // SAFETY: the caller's promise.
    unsafe { copy_here(own, source.wrapping_add(me * bytes), bytes) };
    if group.size() == 1 {
        return Ok(());
    }
    if packs(team, bytes) {
        // SAFETY: the caller's promise.
        return unsafe { all_to_all_packed(team, dest, source, bytes) };
    }
    let all = bytes.saturating_mul(group.size() as usize);
    // SAFETY: the caller's promise.
    let (source, kept) = unsafe { keep(team, source, all, all, bytes) };
    let word = team.area().count(ticket(team, true)?);
    for (index, pe) in group.others() {
        let from = source.wrapping_add(index as usize * bytes);
        // SAFETY: the caller's promise; the source is kept, or not touched before the call returns.
        unsafe { send_counted(team, own, from, bytes, word, pe) }?;
    }
    // A PE that waits for memory also serves PEs that wait for their puts.
    await_count(team, word, u64::from(group.size() - 1))?;
    if kept { Ok(()) } else { sent(team, bytes) }
}

/// Bytes of a packet: what one PE sends to another host at once.
fn packet(team: &Team, bytes: usize) -> usize {
    team.hosts().most().saturating_mul(bytes)
}

/// Whether blocks of this size are packed. The scratch buffer must hold a packet from each PE, and behind those a
/// packet to each host.
fn packs(team: &Team, bytes: usize) -> bool {
    let packet = packet(team, bytes);
    let packets = team.hosts().members() + team.hosts().count();
    team.hosts().are_mixed() && packet.saturating_mul(packets) <= team.area().scratch_bytes()
}

/// Sends all blocks for another host in one packet, to the PE there that this PE's blocks go to in [`to_all`]. That PE
/// distributes them.
///
/// # Safety
/// As for [`all_to_all`], and [`packs`] returned true.
unsafe fn all_to_all_packed(team: &Team, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
    let (hosts, group, packet) = (team.hosts(), team.group(), packet(team, bytes));
    let scratch = team.area().scratch(team.next_turn());
    let ticket = ticket(team, true)?;
    let (remote, here) = (team.area().count(ticket), team.area().host_count(ticket));
    let block = |index: u32| index as usize * bytes;
    let place = |index: u32| scratch.wrapping_add(index as usize * packet);
    for index in relay::takers(hosts) {
        let host = hosts.home(index).0;
        let packed = scratch.wrapping_add((hosts.members() + host) * packet);
        // SAFETY: the scratch buffer has space for the packet, which stays unchanged in this slot; the caller's promise
        // for the source.
        unsafe {
            for (i, &member) in hosts.on(host).iter().enumerate() {
                copy_here(packed.wrapping_add(i * bytes), source.wrapping_add(block(member)), bytes);
            }
            let len = hosts.on(host).len() * bytes;
            send_counted(team, place(group.me()), packed, len, remote, group.pe(index))?;
        }
    }
    // Sends the block of `giver` to a PE of this host.
    let hand = |giver: u32, to: u32, from: *const u8| {
        let at = dest.wrapping_add(block(giver));
        // SAFETY: the caller's promise; what was received is complete.
        unsafe { send_counted(team, at, from, bytes, here, group.pe(to)) }
    };
    hosts.other_mates().try_for_each(|mate| hand(group.me(), mate, source.wrapping_add(block(mate))))?;
    let givers = relay::givers(hosts);
    await_count(team, remote, givers.len() as u64)?;
    for &giver in &givers {
        for (i, &mate) in hosts.mates().iter().enumerate() {
            let from = place(giver).wrapping_add(i * bytes);
            if mate == group.me() {
                // SAFETY: as above.
                unsafe { copy_here(dest.wrapping_add(block(giver)), from, bytes) };
            } else {
                hand(giver, mate, from)?;
            }
        }
    }
    await_count(team, here, (hosts.members() - 1 - givers.len()) as u64)?;
    sent(team, bytes)
}

/// Copies what will be sent to the team's scratch buffer, if that is needed and every PE's data fits: there it stays
/// unchanged until it is sent. `most` is the largest amount of any PE, in blocks of at most `block` bytes. The caller
/// then waits for all PEs.
///
/// # Safety
/// The source is valid.
unsafe fn keep(team: &Team, source: *const u8, bytes: usize, most: usize, block: usize) -> (*const u8, bool) {
    if block <= IN_MESSAGE_UP_TO || most > team.area().scratch_bytes() || team.hosts().count() == 1 {
        return (source, false);
    }
    // All PEs advance the slot, since some may need it: PEs with several rails may be in a team with PEs that have one.
    let scratch = team.area().scratch(team.next_turn());
    if team.counts() {
        return (source, false);
    }
    // SAFETY: the caller's promise; the half of the scratch buffer is this turn's.
    unsafe { copy_here(scratch, source, bytes) };
    (scratch, true)
}
