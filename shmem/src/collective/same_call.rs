//! Do all PEs make the same call? Before each call on the heap its PEs compare what they call, and with `SYMRAIL_CHECK_COLLECTIVES` before
//! every collective.
//!
//! Without it, PEs that make different calls wait for each other, or take one call's data for the other's. It is a setting
//! for programs under development: each collective takes a barrier or a small reduction more.
//!
//! All calls of all PEs are compared in one sequence, whatever they are: barriers, calls on the heap, collectives of the team of all PEs,
//! leaving. So one that differs is found as soon as all have made one. Calls of a smaller team are compared among its PEs. That PEs are in calls of
//! different teams, and so wait for ever, shows where they wait ([`crate::waiting`]).
//!
//! Threads of a PE make compared calls one at a time, as PEs would otherwise not do the same things in the same order.

use std::sync::{Mutex, MutexGuard};

use symrail_heap::agreement::ALLOC_CALL_LEN;
use symrail_heap::{AllocCall, AllocOp};
use symrail_transport::Pe;

use super::reduce;
use crate::error::{Error, Result};
use crate::runtime::{Runtime, lock};
use crate::team::{Group, Team};
use crate::waiting::{CallId, IN_CALL};

/// What is called. PEs tell each other the index.
const CALLS: [&str; 21] = [
    "a call on the heap",
    "barrier_all",
    "sync_all",
    "finalize",
    "sync",
    "broadcast",
    "collect",
    "fcollect",
    "alltoall",
    "alltoalls",
    "scan",
    "split of a team",
    "end of a team",
    "sum reduction",
    "product reduction",
    "min reduction",
    "max reduction",
    "and reduction",
    "or reduction",
    "xor reduction",
    "other reduction",
];

/// Bits of the number by which PEs of a team tell each other what they call: size, root, and the call above them.
const SIZE_BITS: u32 = 38;
const ROOT_BITS: u32 = 20;

/// Bytes of a call as all PEs compare it: that number, the bytes, and what is asked of the heap.
pub(crate) const CALL_LEN: usize = 16 + ALLOC_CALL_LEN;

/// A call, as one PE makes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// One of [`CALLS`].
    pub what: &'static str,
    /// Bytes that each PE hands in, where all hand in the same.
    pub bytes: usize,
    pub root: u32,
    /// For a call on the heap.
    pub heap: Option<AllocCall>,
}

impl Call {
    pub fn new(what: &'static str, bytes: usize) -> Call {
        Call { what, bytes, root: 0, heap: None }
    }

    pub fn on_heap(call: AllocCall) -> Call {
        Call { heap: Some(call), ..Call::new(CALLS[0], 0) }
    }

    fn to_number(self) -> u64 {
        let what = CALLS.iter().position(|call| *call == self.what).unwrap_or(CALLS.len() - 1) as u64;
        let (root, bytes) = (u64::from(self.root) & ((1 << ROOT_BITS) - 1), self.bytes as u64 & ((1 << SIZE_BITS) - 1));
        what << (ROOT_BITS + SIZE_BITS) | root << SIZE_BITS | bytes
    }

    fn encode(&self) -> [u8; CALL_LEN] {
        let mut bytes = [0; CALL_LEN];
        bytes[..8].copy_from_slice(&self.to_number().to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        if let Some(call) = &self.heap {
            bytes[16..].copy_from_slice(&call.encode());
        }
        bytes
    }

    /// A call in words, as PE `pe` has encoded it, and what it is if it is on the heap.
    fn decode(bytes: &[u8], pe: Pe) -> Result<(String, Option<AllocCall>)> {
        let Some((number, rest)) = bytes.split_first_chunk::<8>().filter(|_| bytes.len() == CALL_LEN) else {
            let why = format!("it has {} bytes instead of {CALL_LEN}", bytes.len());
            return Err(symrail_transport::Error::Malformed { what: "collective call", pe, why }.into());
        };
        let number = u64::from_le_bytes(*number);
        if number >> (ROOT_BITS + SIZE_BITS) != 0 {
            return Ok((describe(number), None));
        }
        let call = AllocCall::decode(&rest[8..], pe)?;
        Ok((describe_on_heap(&call), Some(call)))
    }

    fn words(&self) -> String {
        self.heap.as_ref().map_or_else(|| describe(self.to_number()), describe_on_heap)
    }
}

/// A call in words, from its number.
fn describe(number: u64) -> String {
    let what = CALLS.get((number >> (ROOT_BITS + SIZE_BITS)) as usize).copied().unwrap_or("something unknown");
    let (root, bytes) = (number >> SIZE_BITS & ((1 << ROOT_BITS) - 1), number & ((1 << SIZE_BITS) - 1));
    match what {
        "broadcast" => format!("broadcast of {bytes} bytes from root {root}"),
        "alltoall" | "alltoalls" | "fcollect" | "scan" => format!("{what} of {bytes} bytes"),
        _ if what.ends_with("reduction") => format!("{what} of {bytes} bytes"),
        _ => what.to_owned(),
    }
}

fn describe_on_heap(call: &AllocCall) -> String {
    match call.op {
        AllocOp::Alloc => format!("allocation of {} bytes aligned to {}", call.size, call.align),
        AllocOp::Realloc => format!("realloc of offset {:#x} to {} bytes", call.offset, call.size),
        AllocOp::Free => format!("free of offset {:#x}", call.offset),
    }
}

/// This thread's turn among those of its PE that make compared calls. It ends with the call.
pub(crate) struct Turn<'a> {
    guard: Option<MutexGuard<'a, u64>>,
}

impl Turn<'_> {
    /// Nothing is compared; or it has been, and this is a part of that call.
    pub fn none() -> Turn<'static> {
        Turn { guard: None }
    }

    fn take(group: Group, team: u32, calls: &Mutex<u64>) -> Turn<'_> {
        if IN_CALL.with_borrow(Option::is_some) {
            return Turn::none();
        }
        let mut calls = lock(calls);
        *calls += 1;
        IN_CALL.set(Some((CallId { group, team, number: *calls }, String::new())));
        Turn { guard: Some(calls) }
    }

    fn say(&self, words: impl FnOnce() -> String) {
        IN_CALL.with_borrow_mut(|call| {
            if let Some((_, said)) = call.as_mut().filter(|_| self.guard.is_some()) {
                *said = words();
            }
        });
    }

    /// Compares a call with those of all other PEs.
    ///
    /// # Errors
    /// [`Error::CallsDiffer`], on all of them; or a peer that does not answer.
    pub fn compare(&self, runtime: &Runtime, call: &Call) -> Result<()> {
        self.say(|| call.words());
        let mine = call.encode();
        if runtime.same_call(call.what, &mine)? { Ok(()) } else { Err(runtime.differ(call, &mine)?) }
    }

    /// Compares a call with those of a team's other PEs.
    ///
    /// # Errors
    /// As for [`Turn::compare`].
    #[cold]
    pub fn of_team<'a>(team: &'a Team<'_>, call: &Call) -> Result<Turn<'a>> {
        if team.is_world() {
            return team.runtime.agree(*call);
        }
        team.runtime.here()?;
        let turn = Turn::take(team.group, team.area.slot(), &team.calls);
        if turn.guard.is_none() {
            return Ok(turn);
        }
        let (size, pe) = (team.group.size(), |index| team.group.pe(index));
        turn.say(|| format!("{} in a team of {size} PEs, {} to {}", call.words(), pe(0), pe(size - 1)));
        let mine = call.to_number();
        let numbers = reduce::exchange_numbers(team, mine)?;
        match numbers.iter().enumerate().find(|(_, number)| **number != mine) {
            None => Ok(turn),
            Some((index, &theirs)) => Err(Error::CallsDiffer {
                pe: team.runtime.me,
                called: call.words(),
                other: team.group.pe(index as u32),
                other_called: describe(theirs),
            }),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.guard.is_some() {
            IN_CALL.set(None);
        }
    }
}

impl Runtime {
    /// Sees to it that all PEs make the same call, if that is asked for.
    #[inline]
    pub(crate) fn agree(&self, call: Call) -> Result<Turn<'_>> {
        if self.settings.check_collectives { self.agree_now(&call) } else { Ok(Turn::none()) }
    }

    #[cold]
    fn agree_now(&self, call: &Call) -> Result<Turn<'_>> {
        let turn = self.take_turn()?;
        if turn.guard.is_some() {
            turn.compare(self, call)?;
        }
        Ok(turn)
    }

    /// Waits until no other thread of this PE is in a compared call of all PEs.
    pub(crate) fn take_turn(&self) -> Result<Turn<'_>> {
        self.here()?;
        Ok(Turn::take(self.everybody(), 0, &self.calls))
    }

    /// The error of calls that differ. Collective: all have found out that they do.
    #[cold]
    fn differ(&self, call: &Call, mine: &[u8; CALL_LEN]) -> Result<Error> {
        let all = lock(&self.bootstrap).allgather(mine)?;
        let calls = all.iter().zip(0..).map(|(bytes, pe)| Call::decode(bytes, pe)).collect::<Result<Vec<_>>>()?;
        let on_heap: Vec<AllocCall> = calls.iter().filter_map(|(_, call)| *call).collect();
        if on_heap.len() == calls.len()
            && let Err(error) = AllocCall::check(&on_heap)
        {
            return Ok(error.into());
        }
        if call.heap.is_some() {
            // It was none of all PEs.
            self.alloc_calls.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
        let other = all.iter().position(|bytes| bytes != mine).unwrap_or_default();
        let other_called = calls.get(other).map_or_else(String::new, |(words, _)| words.clone());
        Ok(Error::CallsDiffer { pe: self.me, called: call.words(), other: other as Pe, other_called })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn calls_are_told_by_numbers() {
        let broadcast = Call { root: 3, ..Call::new("broadcast", 24) };
        assert_eq!(describe(broadcast.to_number()), "broadcast of 24 bytes from root 3");
        assert_eq!(describe(Call::new("sum reduction", 1 << 37).to_number()), "sum reduction of 137438953472 bytes");
        assert_eq!(describe(Call::new("sync", 0).to_number()), "sync");
        assert_eq!(Call::decode(&broadcast.encode(), 0).unwrap(), (broadcast.words(), None));
        let free = AllocCall { sequence: 3, op: AllocOp::Free, size: 0, align: 0, offset: 64 };
        let (words, call) = Call::decode(&Call::on_heap(free).encode(), 0).unwrap();
        assert_eq!((words.as_str(), call), ("free of offset 0x40", Some(free)));
        assert!(Call::decode(&[0; CALL_LEN - 1], 0).is_err());
        assert!(Call::new("other reduction", usize::MAX).to_number() < u64::MAX, "there is one more number");
        let numbers: std::collections::BTreeSet<u64> = CALLS.iter().map(|c| Call::new(c, 8).to_number()).collect();
        assert_eq!(numbers.len(), CALLS.len());
    }
}
