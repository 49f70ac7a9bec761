//! Common parts of teams' collectives: sends whose arrival the receiver can count; and broadcasts.
//!
//! A *ticket* numbers a team's collectives. Arrivals are counted in the ticket's words. There are [`TICKETS`] sets of
//! words, so a PE that only sends must not run further ahead than that. In a row of broadcasts every [`TICKETS`]` /
//! 2`th ticket starts with a barrier for this reason; in other collectives every PE hears from all.

use std::sync::atomic::{AtomicU64, Ordering};

use symrail_core::lock;
use symrail_transport::Pe;

use super::tree;
use crate::error::Result;
use crate::rma::SignalUpdate;
use crate::space::load;
use crate::team::Team;
use crate::team::area::TICKETS;
use crate::waiting::Among;

/// Up to this size data is sent from a copy, if a copy may be so large.
pub(super) const IN_MESSAGE_UP_TO: usize = 4096;

/// The most bytes that are sent from a copy, after which the source is free at once.
fn forgotten(team: &Team) -> usize {
    team.ops().comm.wire.as_ref().map_or(IN_MESSAGE_UP_TO, |wire| wire.copied_at_once().min(IN_MESSAGE_UP_TO))
}

/// Takes the next ticket. `all_hear`: in this collective every PE hears from all.
pub(super) fn ticket(team: &Team, all_hear: bool) -> Result<u64> {
    let (ticket, since_barrier) = {
        let mut progress = lock(team.progress());
        progress.tickets += 1;
        progress.since_barrier = if all_hear { 0 } else { progress.since_barrier + 1 };
        (progress.tickets, progress.since_barrier)
    };
    if since_barrier > 0 && since_barrier.is_multiple_of(TICKETS / 2) {
        team.sync_flags()?;
    }
    Ok(ticket)
}

/// Waits until `arrivals` have been counted in a word, then resets it for its next use.
pub(super) fn await_count(team: &Team, word: *mut u64, arrivals: u64) -> Result<()> {
    team.ops().wait_for("a team's collective", Among::All(team.group()), || {
        // SAFETY: the word is in this PE's committed heap and aligned.
        (unsafe { load(word.cast(), 8) } >= arrivals).then_some(())
    })?;
    // SAFETY: as above. No PE adds to it before the next use, which a barrier precedes.
    unsafe { AtomicU64::from_ptr(word) }.store(0, Ordering::Release);
    Ok(())
}

/// Puts `bytes` to `pe` with a signal. The source may be reused after [`sent`].
///
/// # Safety
/// `source` is valid for reads until then.
pub(super) unsafe fn send(
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    signal: SignalUpdate<*mut u64>,
    pe: Pe,
) -> Result<()> {
    let SignalUpdate { word, value, op } = signal;
    // SAFETY: the caller's promise.
    unsafe {
        if bytes == 0 {
            team.ops().signal_op(word, value, op, pe)
        } else if bytes <= forgotten(team) {
            team.ops().put_signal(dest, source, bytes, signal, pe)
        } else {
            team.ops().put_signal_nbi(dest, source, bytes, signal, pe)
        }
    }
}

/// Puts `bytes` to `pe`, and counts the arrival in a word. The source may be reused after [`sent`].
///
/// # Safety
/// As for [`send`].
pub(super) unsafe fn send_counted(
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    word: *mut u64,
    pe: Pe,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if team.counts() && bytes > 0 {
            team.ops().put_counted(dest, source, bytes, word, bytes <= forgotten(team), pe)
        } else {
            send(team, dest, source, bytes, SignalUpdate::add(word, 1), pe)
        }
    }
}

/// Waits until sources of up to `bytes` bytes may be reused.
pub(super) fn sent(team: &Team, bytes: usize) -> Result<()> {
    if bytes <= forgotten(team) {
        Ok(())
    } else if team.counts() {
        team.ops().counted_have_left()
    } else {
        team.ops().quiet()
    }
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

/// Broadcasts down a [`tree`]. The root's own destination stays unchanged.
pub(super) unsafe fn broadcast(team: &Team, dest: *mut u8, source: *const u8, bytes: usize, root: u32) -> Result<()> {
    team.pe(root.into())?;
    if team.group().size() == 1 {
        return Ok(());
    }
    let ticket = ticket(team, false)?;
    // SAFETY: the caller's promise.
    unsafe { pass_on(team, dest, source, bytes, root, ticket, &tree::children(team.hosts(), root)) }
}

/// This PE's part of a broadcast: receives the data, if it is not the root, and puts it to its children.
///
/// # Safety
/// As for [`broadcast`].
pub(super) unsafe fn pass_on(
    team: &Team,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    root: u32,
    ticket: u64,
    children: &[u32],
) -> Result<()> {
    let (group, word) = (team.group(), team.area().count(ticket));
    let mut from = source;
    if group.me() != root {
        await_count(team, word, 1)?;
        from = dest;
    }
    for &child in children {
        // SAFETY: the caller's promise; what was received is complete.
        unsafe { send_counted(team, dest, from, bytes, word, group.pe(child)) }?;
    }
    sent(team, bytes)
}
