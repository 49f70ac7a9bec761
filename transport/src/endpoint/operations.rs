//! The operations of an endpoint that have not ended: one record each, from submission to the end.
//!
//! An operation ends when all events that it waits for have happened: completions of work requests, acknowledgements,
//! outcomes. Its end releases what it held ([`Held`]), stores what it fetched, and is reported to its issuer.

use slotmap::{DefaultKey, Key as _, KeyData, SlotMap};

use super::command::{Issuer, OpHandle, Owner, Signal};
use super::issuers::Issuers;
use super::swap_loop::{Next, SwapLoop, Word};
use crate::bounce::Slot;
use crate::error::{Error, Fault, Operation};
use crate::pe::Pe;
use crate::wire::{Outcome, Refusal};

/// The number of operations in flight at which [`Operations::has_room`] returns `false`.
const MOST: usize = 2048;
// Each operation is counted at most once in `Connection::later`. One that is entered without a check for room holds no
// lane.
const _: () = assert!(MOST < u16::MAX as usize);

/// An operation in flight.
pub(super) struct Op {
    operation: Operation,
    pe: Pe,
    bytes: u64,
    owner: Owner,
    /// Work requests and acknowledgements still to come.
    remaining: u32,
    /// The signal to send when all else is done.
    followup: Option<Signal>,
    /// The loop, if the AMO is one or the signal has become one.
    swap_loop: Option<SwapLoop>,
    /// The target will send its outcome in addition to the acknowledgement.
    pub awaits_outcome: bool,
    /// The lane on which no operation may pass this one.
    holds: Option<u8>,
    value: u64,
    /// The destination of the bytes that its outcome carries.
    dest: Option<*mut u8>,
    /// The destination of a fetched value, and its size in bytes.
    pub result: Option<(*mut u8, usize)>,
    fault: Option<Box<Error>>,
    /// The time of issue, in seconds in which a thread polled ([`Clock::now`](super::clock::Clock::now)).
    since: u32,
    /// The slot that holds a copied source until the operation is complete.
    slot: Option<Slot>,
}

impl Op {
    /// A record of an operation that has posted nothing yet, issued `now`. `slot` holds its source, if it was copied.
    #[inline(always)]
    pub fn new(operation: Operation, pe: Pe, bytes: u64, owner: Owner, now: u32, slot: Option<Slot>) -> Op {
        Op {
            operation,
            pe,
            bytes,
            owner,
            remaining: 0,
            followup: None,
            swap_loop: None,
            awaits_outcome: false,
            holds: None,
            value: 0,
            dest: None,
            result: None,
            fault: None,
            since: now,
            slot,
        }
    }
}

/// Stores the low `size` bytes (4 or 8) of a fetched value.
///
/// # Safety
/// `to` is valid for writes of `size` bytes.
pub(super) unsafe fn store(to: *mut u8, size: usize, value: u64) {
    // SAFETY: the caller's promise; unaligned stores are allowed here.
    unsafe {
        if size == 4 { to.cast::<u32>().write_unaligned(value as u32) } else { to.cast::<u64>().write_unaligned(value) }
    }
}

/// Stores the bytes that a get has read, if their number is right.
///
/// # Safety
/// `dest` is valid for writes of so many bytes.
unsafe fn take_bytes(dest: *mut u8, asked: u64, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() as u64 != asked {
        return Err(format!("the target answered with {} bytes", bytes.len()));
    }
    // SAFETY: the caller's promise; the message lies in a receive buffer.
    unsafe { dest.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// What an operation held until its end.
pub(super) struct Held {
    pub pe: Pe,
    /// The lane on which no operation could pass it.
    pub lane: Option<u8>,
    /// The word of its loop, if the loop broke off.
    pub word: Option<Word>,
    /// The slot of its source. Work requests that a rail may still read from it have their own references to it.
    pub slot: Option<Slot>,
}

/// The state of an operation after one of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// It waits for more events, or for its signal to be sent.
    Waits,
    /// The last request of its loop has completed.
    Loop,
    /// All its events have happened.
    End,
}

/// The id of a table's entry outside of the table; never 0. Ids travel to peers and back; a stale id names no entry.
#[inline]
pub(super) fn handle(key: DefaultKey) -> u64 {
    key.data().as_ffi()
}

/// The key of the entry that an id names, if there is one.
#[inline]
pub(super) fn key(id: u64) -> DefaultKey {
    KeyData::from_ffi(id).into()
}

/// The table of operations.
pub(super) struct Operations {
    table: SlotMap<DefaultKey, Op>,
    /// Operations whose data is delivered and whose signal has yet to be sent.
    followups: Vec<OpHandle>,
}

impl Operations {
    pub fn new() -> Operations {
        Operations { table: SlotMap::with_capacity(MOST), followups: Vec::with_capacity(64) }
    }

    /// Whether there is room for another.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.table.len() < MOST
    }

    /// Whether there is room for as many again.
    #[inline]
    pub fn has_plenty_of_room(&self) -> bool {
        self.table.len() < MOST / 2
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Enters an operation.
    #[inline(always)]
    pub fn start(&mut self, op: Op, issuers: &mut Issuers) -> OpHandle {
        issuers.started(op.owner.issuer);
        handle(self.table.insert(op))
    }

    /// Whether an operation has ended.
    #[inline]
    pub fn is_over(&self, id: OpHandle) -> bool {
        self.table.get(key(id)).is_none()
    }

    /// Whether an operation has failed, or has ended.
    pub fn has_failed(&self, id: OpHandle) -> bool {
        self.table.get(key(id)).is_none_or(|op| op.fault.is_some())
    }

    /// Whether an operation on a PE's memory has neither ended nor failed.
    #[inline]
    pub fn goes_on(&self, id: OpHandle, pe: Pe) -> bool {
        self.table.get(key(id)).is_some_and(|op| op.pe == pe && op.fault.is_none())
    }

    /// Adds an event to those that an operation waits for, if it is on a PE's memory and has neither ended nor failed.
    #[inline]
    pub fn extend(&mut self, id: OpHandle, pe: Pe) -> bool {
        let op = self.table.get_mut(key(id)).filter(|op| op.pe == pe && op.fault.is_none());
        op.map(|op| op.remaining += 1).is_some()
    }

    /// The PE of an operation.
    pub fn pe(&self, id: OpHandle) -> Option<Pe> {
        self.table.get(key(id)).map(|op| op.pe)
    }

    /// The slot that holds an operation's source, if it was copied.
    pub fn slot(&self, id: OpHandle) -> Option<Slot> {
        self.table.get(key(id)).and_then(|op| op.slot)
    }

    /// Adds events that an operation waits for.
    #[inline]
    pub fn expect(&mut self, id: OpHandle, count: u32) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.remaining += count;
        }
    }

    /// Removes events that an operation waits for, when it does not end by that.
    #[inline]
    pub fn unexpect(&mut self, id: OpHandle, count: u32) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.remaining -= count;
        }
    }

    /// Notes that so many events of an operation have happened.
    #[inline(always)]
    pub fn release(&mut self, id: OpHandle, count: u32) -> After {
        let Some(op) = self.table.get_mut(key(id)) else { return After::Waits };
        op.remaining = op.remaining.saturating_sub(count);
        if op.remaining > 0 {
            return After::Waits;
        }
        if op.fault.is_none() {
            if op.followup.is_some() {
                self.followups.push(id);
                return After::Waits;
            }
            if op.swap_loop.is_some() {
                return After::Loop;
            }
        }
        After::End
    }

    /// Ends an operation, and reports it to its issuer.
    #[inline(always)]
    pub fn end(&mut self, id: OpHandle, issuers: &mut Issuers) -> Option<Held> {
        let op = self.table.get_mut(key(id))?;
        // The record is large, and is not moved out of the table.
        let Op { pe, owner, value, slot, holds, result, .. } = *op;
        let word = op.swap_loop.map(|swap_loop| swap_loop.word(pe));
        let outcome = op.fault.take().map_or(Ok(value), Err);
        self.table.remove(key(id));
        if let (Ok(value), Some((to, size))) = (&outcome, result) {
            // SAFETY: the submitter of the operation keeps the destination valid until the operation is complete, which
            // is now.
            unsafe { store(to, size, *value) };
        }
        issuers.ended(owner, outcome);
        Some(Held { pe, lane: holds, word, slot })
    }

    /// Marks an operation as failed. It ends when all its work requests have completed.
    pub fn fail(&mut self, id: OpHandle, rail: &str, fault: Fault) {
        let Some(op) = self.table.get_mut(key(id)) else { return };
        let (operation, pe, bytes) = (op.operation, op.pe, op.bytes);
        op.fault.get_or_insert(Box::new(Error::Operation { operation, pe, rail: rail.into(), bytes, fault }));
    }

    /// Fails an operation that got no buffer although one should have been free.
    pub fn fail_full(&mut self, id: OpHandle) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.fault = Some(Box::new(Error::Full { operation: op.operation, pe: op.pe }));
        }
    }

    /// Fails an operation that has taken longer than so many seconds. `unreachable` names a rail and its fault if no
    /// rail reaches the PE, and `rails` those that have not returned the operation's data while others lead to the PE.
    pub fn fail_late(&mut self, id: OpHandle, seconds: u64, unreachable: Option<(String, Fault)>, rails: String) {
        let Some(op) = self.table.get_mut(key(id)) else { return };
        let (operation, pe, bytes) = (op.operation, op.pe, op.bytes);
        let error = match unreachable {
            Some((rail, fault)) => Error::Operation { operation, pe, rail, bytes, fault },
            None => Error::Timeout { operation, pe, seconds, rails },
        };
        op.fault.get_or_insert(Box::new(error));
    }

    /// Fails an operation whose PE was given up.
    pub fn fail_unreachable(&mut self, id: OpHandle, why: &str) {
        let Some(op) = self.table.get_mut(key(id)) else { return };
        let error = Error::PeerLost { operation: op.operation, pe: op.pe, why: why.to_owned() };
        op.fault.get_or_insert(Box::new(error));
    }

    /// Counts an operation as issued `now`.
    pub fn restart(&mut self, id: OpHandle, now: u32) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.since = now;
        }
    }

    /// The operations that were issued more than `limit` seconds ago.
    pub fn older_than(&self, now: u32, limit: u64) -> Vec<OpHandle> {
        self.ids_of(|op| u64::from(now.wrapping_sub(op.since)) > limit)
    }

    /// The PEs whose outcomes are overdue, at ages of 2, 4, 8, … seconds.
    pub fn late_outcomes(&self, now: u32) -> Vec<Pe> {
        let is_late = |op: &&Op| {
            let age = now.wrapping_sub(op.since);
            op.awaits_outcome && age > 1 && age.is_power_of_two()
        };
        self.table.values().filter(is_late).map(|op| op.pe).collect()
    }

    /// The operations on a PE's memory.
    pub fn on(&self, pe: Pe) -> Vec<OpHandle> {
        self.ids_of(|op| op.pe == pe)
    }

    /// The PE of some operation of an issuer.
    pub fn waits_for(&self, issuer: Issuer) -> Option<Pe> {
        self.table.values().find(|op| op.owner.issuer == issuer).map(|op| op.pe)
    }

    fn ids_of(&self, such: impl Fn(&Op) -> bool) -> Vec<OpHandle> {
        self.table.iter().filter(|(_, op)| such(op)).map(|(key, _)| handle(key)).collect()
    }
}

/// Results that arrive while an operation is under way.
impl Operations {
    /// Stores a fetched value.
    #[inline]
    pub fn fetched(&mut self, id: OpHandle, value: u64) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.value = value;
        }
    }

    /// Makes a get wait for an outcome that carries its bytes.
    pub fn fetches(&mut self, id: OpHandle, dest: *mut u8) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.remaining += 1;
            (op.awaits_outcome, op.dest) = (true, Some(dest));
        }
    }

    /// Handles an outcome from the target of an operation, with the bytes that the target has read. Returns whether the
    /// operation waited for it.
    pub fn take_outcome(&mut self, source: Pe, rail: &str, outcome: &Outcome, bytes: &[u8]) -> bool {
        let Some(op) = self.table.get_mut(key(outcome.id)).filter(|op| op.pe == source) else { return false };
        op.value = outcome.value;
        let awaited = std::mem::take(&mut op.awaits_outcome);
        let wrong = if outcome.refusal != Refusal::None {
            Some(format!("the target refused it: {:?}", outcome.refusal))
        } else if let Some(dest) = op.dest.take() {
            // SAFETY: the submitter of the get keeps the destination valid until it is complete, which it is not yet.
            unsafe { take_bytes(dest, op.bytes, bytes) }.err()
        } else {
            None
        };
        if let Some(text) = wrong {
            self.fail(outcome.id, rail, Fault { code: outcome.refusal as i32, text, retryable: false });
        }
        awaited
    }

    /// Sets the signal to send when all else of an operation is done.
    pub fn follow_up(&mut self, id: OpHandle, signal: Signal) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.followup = Some(signal);
        }
    }

    /// Whether any signal is to be sent now.
    #[inline]
    pub fn has_followups(&self) -> bool {
        !self.followups.is_empty()
    }

    /// Takes the next signal to send: its operation, the PE, and the lane.
    pub fn next_followup(&mut self) -> Option<(OpHandle, Pe, usize, Signal)> {
        while let Some(id) = self.followups.pop() {
            if let Some(op) = self.table.get_mut(key(id))
                && let Some(signal) = op.followup.take()
            {
                return Some((id, op.pe, op.holds.map_or(0, usize::from), signal));
            }
        }
        None
    }

    /// Makes an operation hold `lane`, so that no operation may pass it there until it has ended. Returns the PE if the
    /// operation did not hold the lane before.
    pub fn hold(&mut self, id: OpHandle, lane: usize) -> Option<Pe> {
        let op = self.table.get_mut(key(id)).filter(|op| op.holds.is_none())?;
        op.holds = Some(lane as u8);
        Some(op.pe)
    }

    /// Makes an operation a loop.
    pub fn begin_loop(&mut self, id: OpHandle, swap_loop: SwapLoop) {
        if let Some(op) = self.table.get_mut(key(id)) {
            op.swap_loop = Some(swap_loop);
        }
    }

    /// Whether an operation is a loop.
    pub fn is_loop(&self, id: OpHandle) -> bool {
        self.table.get(key(id)).is_some_and(|op| op.swap_loop.is_some())
    }

    /// The word of an operation's loop, and the value that its last request returned.
    pub fn seen(&self, id: OpHandle) -> Option<(Word, u64)> {
        let op = self.table.get(key(id))?;
        op.swap_loop.map(|swap_loop| (swap_loop.word(op.pe), op.value))
    }

    /// Continues an operation's loop whose word held `seen`. Returns the next step, and the PE to which it goes.
    pub fn continue_loop(&mut self, id: OpHandle, seen: u64) -> Option<(Pe, SwapLoop, Next)> {
        let op = self.table.get_mut(key(id))?;
        let swap_loop = op.swap_loop.as_mut()?;
        let next = swap_loop.next(seen);
        let step = (op.pe, *swap_loop, next);
        if let Next::Done { old, .. } = next {
            (op.value, op.swap_loop) = (old, None);
        }
        Some(step)
    }
}
