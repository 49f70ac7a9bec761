//! Collectives of teams by put-signals.
//!
//! A *ticket* numbers a team's collectives. Arrivals are counted in the ticket's words, of which there are [`TICKETS`]; so a PE
//! that only sends must not run further ahead than that. Every [`TICKETS`]` / 2`th ticket in a row of broadcasts starts with a
//! barrier, which sees to it; in other collectives all hear from all.
//!
//! Exchanges of numbers have two sets of memory in turn. Who is in one of them has heard from everybody
//! in the one before, so everybody has left the one before that, which used the same set. So it is with the team's room, from
//! which blocks are sent that fit: then nobody waits until they have left, since they stay as they are long enough.

use std::sync::atomic::{AtomicU64, Ordering};

use symrail_transport::Pe;

use super::{relay, tree};
use crate::error::Result;
use crate::rma::SignalOp;
use crate::runtime::{Runtime, lock};
use crate::team::{TICKETS, Team};

/// Up to here a put-signal is copied and forgotten; beyond it, several are better under way at once.
const ONE_BY_ONE_UP_TO: usize = 2048;

/// Takes the next ticket, for a collective in which all hear from all or not.
fn ticket(team: &Team<'_>, all_hear: bool) -> Result<u64> {
    let (ticket, unheard) = {
        let mut progress = lock(&team.progress);
        progress.tickets += 1;
        progress.unheard = if all_hear { 0 } else { progress.unheard + 1 };
        (progress.tickets, progress.unheard)
    };
    if unheard > 0 && unheard.is_multiple_of(TICKETS / 2) {
        team.sync_flags()?;
    }
    Ok(ticket)
}

/// Waits until `arrivals` have been counted in a word, then makes it ready for its next use.
fn await_count(team: &Team<'_>, word: *mut u64, arrivals: u64) -> Result<()> {
    team.runtime.wait_for("a team's collective", team.group, || {
        // SAFETY: the word is in this PE's committed heap and aligned.
        (unsafe { Runtime::load(word.cast(), 8) } >= arrivals).then_some(())
    })?;
    // SAFETY: as above. No one adds to it before the next use, which is behind a barrier.
    unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
    Ok(())
}

/// Puts `bytes` to `pe` with a signal. The source is free after [`sent`].
///
/// # Safety
/// `source` is valid for reads until then.
pub(super) unsafe fn send(
    team: &Team<'_>,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    signal: (*mut u64, u64, SignalOp),
    pe: Pe,
) -> Result<()> {
    let (word, value, op) = signal;
    // SAFETY: the caller's promise.
    unsafe {
        if bytes == 0 {
            team.runtime.signal_op(word, value, op, pe)
        } else if bytes <= ONE_BY_ONE_UP_TO {
            team.runtime.put_signal(dest, source, bytes, signal, pe)
        } else {
            team.runtime.put_signal_nbi(dest, source, bytes, signal, pe)
        }
    }
}

/// An arrival counted in a word.
fn counted(word: *mut u64) -> (*mut u64, u64, SignalOp) {
    (word, 1, SignalOp::Add)
}

/// Waits until sources of `bytes` bytes may be used again.
fn sent(team: &Team<'_>, bytes: usize) -> Result<()> {
    if bytes > ONE_BY_ONE_UP_TO { team.runtime.quiet() } else { Ok(()) }
}

/// Copies within this PE.
///
/// # Safety
/// Both are valid for `bytes`.
pub(super) unsafe fn copy_here(dest: *mut u8, source: *const u8, bytes: usize) {
    if bytes > 0 && !std::ptr::eq(dest, source) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(source, dest, bytes) };
    }
}

/// From the root down a [`tree`].
pub(super) unsafe fn broadcast(
    team: &Team<'_>,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    root: u32,
) -> Result<()> {
    let group = team.group;
    team.pe(root.into())?;
    if group.me() == root {
        // SAFETY: the caller's promise.
        unsafe { copy_here(dest, source, bytes) };
    }
    if group.size() == 1 {
        return Ok(());
    }
    let word = team.area.count(ticket(team, false)?);
    let mut from = source;
    if group.me() != root {
        await_count(team, word, 1)?;
        from = dest;
    }
    for child in tree::children(&team.hosts, root) {
        // SAFETY: the caller's promise; what was received is complete.
        unsafe { send(team, dest, from, bytes, counted(word), group.pe(child)) }?;
    }
    sent(team, bytes)
}

/// Puts this PE's block to all PEs. `block` says where in the destination each PE's is, and how many bytes it has.
///
/// A block goes to one PE of each other host, which passes it on to those that are there. That is the one with the same place, or where
/// there is none, the places there in turn, so that all have as much to do.
pub(super) unsafe fn to_all(
    team: &Team<'_>,
    dest: *mut u8,
    source: *const u8,
    block: impl Fn(u32) -> (usize, usize),
) -> Result<()> {
    let (hosts, group) = (&team.hosts, team.group);
    let (start, bytes) = block(group.me());
    let own = dest.wrapping_add(start);
    // SAFETY: the caller's promise.
    unsafe { copy_here(own, source, bytes) };
    if group.size() == 1 {
        return Ok(());
    }
    let most = (0..group.size()).map(|index| block(index).1).max().unwrap_or(0);
    // SAFETY: the caller's promise.
    let (source, kept) = unsafe { keep(team, source, bytes, most) };
    let ticket = ticket(team, true)?;
    let (afar, here) = (team.area.count(ticket), team.area.host_count(ticket));
    let (to, from) = (relay::takers(hosts), relay::givers(hosts));
    for &index in &to {
        // SAFETY: the caller's promise; the source is kept, or not touched before the call returns.
        unsafe { send(team, own, source, bytes, counted(afar), group.pe(index)) }?;
    }
    let pass_on = |index: u32, from: *const u8| {
        let (start, bytes) = block(index);
        let at = dest.wrapping_add(start);
        // SAFETY: the caller's promise; what was received is complete.
        hosts.other_mates().try_for_each(|mate| unsafe { send(team, at, from, bytes, counted(here), group.pe(mate)) })
    };
    pass_on(group.me(), source)?;
    await_count(team, afar, from.len() as u64)?;
    for &index in &from {
        pass_on(index, dest.wrapping_add(block(index).0))?;
    }
    let passed_on = group.size() as usize - 1 - from.len();
    await_count(team, here, passed_on as u64)?;
    let all_kept = kept && hosts.other_mates().all(|mate| team.runtime.is_mapped(group.pe(mate)));
    if all_kept { Ok(()) } else { sent(team, most) }
}

/// Sends each PE its own block.
pub(super) unsafe fn all_to_all(team: &Team<'_>, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
    let (group, me) = (team.group, team.group.me() as usize);
    let dest = dest.wrapping_add(me * bytes);
    // SAFETY: the caller's promise.
    unsafe { copy_here(dest, source.wrapping_add(me * bytes), bytes) };
    if group.size() == 1 {
        return Ok(());
    }
    let all = bytes.saturating_mul(group.size() as usize);
    // SAFETY: the caller's promise.
    let (source, kept) = unsafe { keep(team, source, all, all) };
    let word = team.area.count(ticket(team, true)?);
    for (index, pe) in group.others() {
        let from = source.wrapping_add(index as usize * bytes);
        // SAFETY: the caller's promise; the source is kept, or not touched before the call returns.
        unsafe { send(team, dest, from, bytes, counted(word), pe) }?;
    }
    // Who waits for memory serves those who wait for their puts.
    await_count(team, word, u64::from(group.size() - 1))?;
    if kept { Ok(()) } else { sent(team, bytes) }
}

/// Copies what will be sent to the team's room, if everybody's fits: then it stays there, as it is, until it has left. `most` is the most that
/// any PE has. In what follows all hear from all.
///
/// # Safety
/// The source is valid.
unsafe fn keep(team: &Team<'_>, source: *const u8, bytes: usize, most: usize) -> (*const u8, bool) {
    if most <= ONE_BY_ONE_UP_TO || most > team.area.room_bytes() || team.hosts.count() == 1 {
        return (source, false);
    }
    let room = team.area.room(team.next_turn());
    // SAFETY: the caller's promise; the half of the room is this turn's.
    unsafe { copy_here(room, source, bytes) };
    (room, true)
}

/// Tells all PEs a number and returns everybody's, by index.
pub(super) fn exchange_numbers(team: &Team<'_>, mine: u64) -> Result<Vec<u64>> {
    let (runtime, group) = (team.runtime, team.group);
    let set = {
        let mut progress = lock(&team.progress);
        progress.gathers += 1;
        progress.gathers & 1
    };
    for (_, pe) in group.others() {
        runtime.signal_op(team.area.number(set, group.me()), mine + 1, SignalOp::Set, pe)?;
    }
    let mut numbers = vec![mine; group.size() as usize];
    for (index, _) in group.others() {
        let word = team.area.number(set, index);
        let seen = runtime.wait_for("a team's collective", group, || {
            // SAFETY: the word is in this PE's committed heap and aligned.
            Some(unsafe { Runtime::load(word.cast(), 8) }).filter(|&seen| seen != 0)
        })?;
        // SAFETY: as above. The peer does not write it before its next but one exchange.
        unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
        if let Some(number) = numbers.get_mut(index as usize) {
            *number = seen - 1;
        }
    }
    Ok(numbers)
}
