//! Collectives of teams by put-signals.
//!
//! A *ticket* numbers a team's collectives. Arrivals are counted in the ticket's word, of which there are [`TICKETS`]; so a PE
//! that only sends must not run further ahead than that. Every [`TICKETS`]` / 2`th ticket starts with a barrier, which
//! sees to it.
//!
//! Reductions and exchanges of numbers have two sets of memory in turn. Who is in one of them has heard from everybody
//! in the one before, so everybody has left the one before that, which used the same set.

use std::sync::atomic::{AtomicU64, Ordering};

use symrail_transport::Pe;

use super::buffer::Buffer;
use super::reduction::Reduction;
use crate::error::Result;
use crate::rma::SignalOp;
use crate::runtime::{Runtime, lock};
use crate::team::{SMALL, TICKETS, Team};

/// Up to here a put-signal is copied and forgotten; beyond it, several are better under way at once.
const ONE_BY_ONE_UP_TO: usize = 2048;

/// Takes the next ticket.
fn ticket(team: &Team<'_>) -> Result<u64> {
    let ticket = {
        let mut progress = lock(&team.progress);
        progress.tickets += 1;
        progress.tickets
    };
    if ticket.is_multiple_of(TICKETS / 2) {
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

/// Puts `bytes` to `pe` and counts the arrival there. The source is free after [`sent`].
///
/// # Safety
/// `source` is valid for reads until then.
unsafe fn send(team: &Team<'_>, dest: *mut u8, source: *const u8, bytes: usize, word: *mut u64, pe: Pe) -> Result<()> {
    let signal = (word, 1, SignalOp::Add);
    // SAFETY: the caller's promise.
    unsafe {
        if bytes == 0 {
            team.runtime.signal_op(word, 1, SignalOp::Add, pe)
        } else if bytes <= ONE_BY_ONE_UP_TO {
            team.runtime.put_signal(dest, source, bytes, signal, pe)
        } else {
            team.runtime.put_signal_nbi(dest, source, bytes, signal, pe)
        }
    }
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

/// A binomial tree over the indexes counted from the root: a PE gets the data from the index without its lowest bit, and
/// passes it on to those that add a lower bit, the largest part of the tree first.
pub(super) unsafe fn broadcast(
    team: &Team<'_>,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    root: u32,
) -> Result<()> {
    let group = team.group;
    let size = group.size();
    team.pe(root.into())?;
    if group.me() == root {
        // SAFETY: the caller's promise.
        unsafe { copy_here(dest, source, bytes) };
    }
    if size == 1 {
        return Ok(());
    }
    let ticket = ticket(team)?;
    let word = team.area.count(ticket);
    let rank = (group.me() + size - root) % size;
    let mut from = source;
    if rank != 0 {
        await_count(team, word, 1)?;
        from = dest;
    }
    let below = if rank == 0 { size.next_power_of_two().trailing_zeros() } else { rank.trailing_zeros() };
    for bit in (0..below).rev() {
        let child = rank + (1 << bit);
        if child < size {
            // SAFETY: the caller's promise; what was received is complete.
            unsafe { send(team, dest, from, bytes, word, group.pe((child + root) % size)) }?;
        }
    }
    sent(team, bytes)
}

/// Puts this PE's block to all PEs, `before` bytes into the destination.
pub(super) unsafe fn to_all(
    team: &Team<'_>,
    dest: *mut u8,
    source: *const u8,
    bytes: usize,
    before: usize,
) -> Result<()> {
    let dest = dest.wrapping_add(before);
    // SAFETY: the caller's promise.
    unsafe { copy_here(dest, source, bytes) };
    // SAFETY: the caller's promise.
    each(team, bytes, |word, _, pe| unsafe { send(team, dest, source, bytes, word, pe) })
}

/// Sends each PE its own block.
pub(super) unsafe fn all_to_all(team: &Team<'_>, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
    let me = team.group.me() as usize;
    let dest = dest.wrapping_add(me * bytes);
    // SAFETY: the caller's promise.
    unsafe { copy_here(dest, source.wrapping_add(me * bytes), bytes) };
    each(team, bytes, |word, index, pe| {
        // SAFETY: the caller's promise.
        unsafe { send(team, dest, source.wrapping_add(index as usize * bytes), bytes, word, pe) }
    })
}

/// Sends something to each of the others and waits for as much.
fn each(team: &Team<'_>, bytes: usize, send: impl Fn(*mut u64, u32, Pe) -> Result<()>) -> Result<()> {
    if team.group.size() == 1 {
        return Ok(());
    }
    let word = team.area.count(ticket(team)?);
    for (index, pe) in team.group.others() {
        send(word, index, pe)?;
    }
    // Who waits for memory serves those who wait for their puts.
    await_count(team, word, u64::from(team.group.size() - 1))?;
    sent(team, bytes)
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

/// Recursive doubling: in each round two PEs exchange what they have and both combine it. PEs beyond the largest power of two
/// hand in theirs before and get the result after.
pub(super) unsafe fn reduce(
    team: &Team<'_>,
    dest: *mut u8,
    source: *const u8,
    count: usize,
    reduction: Reduction,
) -> Result<()> {
    let (group, area, bytes) = (team.group, team.area, count * reduction.size());
    debug_assert!(bytes <= SMALL);
    let stamp = {
        let mut progress = lock(&team.progress);
        progress.reductions += 1;
        progress.reductions
    };
    let set = stamp & 1;
    let mut buffer = Buffer::zeroed(bytes);
    let mine = buffer.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe { copy_here(mine, source, bytes) };
    let send = |round: u32, to: u32| {
        let signal = (area.stamp(set, round), stamp, SignalOp::Set);
        // SAFETY: the buffer is copied, or not touched before the call returns.
        unsafe { team.runtime.put_signal(area.data(set, round), mine, bytes, signal, group.pe(to)) }
    };
    let receive = |round: u32| {
        let word = area.stamp(set, round);
        team.runtime.wait_for("a reduction", group, || {
            // SAFETY: the word is in this PE's committed heap and aligned.
            (unsafe { Runtime::load(word.cast(), 8) } == stamp).then(|| area.data(set, round))
        })
    };
    let doubling = 1 << group.size().ilog2();
    let (hand_in, hand_out) = (area.rounds() - 2, area.rounds() - 1);
    let me = group.me();
    if me >= doubling {
        send(hand_in, me - doubling)?;
        let result = receive(hand_out)?;
        // SAFETY: the result has arrived, and the caller vouches for the destination.
        unsafe { copy_here(dest, result, bytes) };
        return Ok(());
    }
    let extra = (me + doubling < group.size()).then_some(me + doubling);
    if extra.is_some() {
        let theirs = receive(hand_in)?;
        // SAFETY: both have `count` elements, the peer's have arrived and stay.
        unsafe { reduction.combine(mine, theirs, count) };
    }
    for round in 0..doubling.ilog2() {
        let peer = me ^ (1 << round);
        send(round, peer)?;
        let theirs = receive(round)?;
        // SAFETY: as above.
        unsafe { reduction.combine(mine, theirs, count) };
    }
    if let Some(extra) = extra {
        send(hand_out, extra)?;
    }
    // SAFETY: the caller's promise.
    unsafe { copy_here(dest, mine, bytes) };
    Ok(())
}
