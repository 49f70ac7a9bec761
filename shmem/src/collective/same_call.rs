//! Checks that all PEs make the same call: before each call on the heap, and with `SYMRAIL_CHECK_COLLECTIVES` before
//! every collective.
//!
//! Without the check, PEs that make different calls wait for each other, or take one call's data for the other's. The
//! setting is for programs under development: each collective costs one more barrier or small reduction.
//!
//! All calls of all PEs are compared in one sequence, whatever they are: barriers, calls on the heap, collectives of
//! the team of all PEs, leaving. So a different call is found as soon as all PEs have made one. Calls of a smaller team
//! are compared among its PEs. If PEs are in calls of different teams, and so wait for ever, the report of waiting PEs
//! shows it ([`crate::waiting`]).
//!
//! Threads of a PE make compared calls one at a time; otherwise PEs would not make them in the same order.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use symrail_core::lock;
use symrail_heap::AllocCall;
use symrail_transport::Pe;

use super::call::{CALL_LEN, Call};
use crate::error::{Error, Result};
use crate::sync::Everybody;
use crate::team::group::Group;
use crate::waiting::post::{CallId, IN_CALL, Words};

/// Exclusive access of this thread to the compared calls of its PE. It ends with the call.
pub(crate) struct ComparedCall<'a> {
    guard: Option<MutexGuard<'a, u64>>,
}

impl ComparedCall<'_> {
    /// No comparison: none is wanted, or this call is a part of a compared call.
    pub fn none() -> ComparedCall<'static> {
        ComparedCall { guard: None }
    }

    /// Waits until no other thread of this PE is in a compared call of this team.
    pub fn begin(group: Group, team: u32, calls: &Mutex<u64>) -> ComparedCall<'_> {
        if IN_CALL.get().is_some() {
            return ComparedCall::none();
        }
        let mut calls = lock(calls);
        *calls += 1;
        IN_CALL.set(Some((CallId { group, team, number: *calls }, Words::new(""))));
        ComparedCall { guard: Some(calls) }
    }

    /// Whether it has exclusive access, so that its call is compared.
    pub fn is_taken(&self) -> bool {
        self.guard.is_some()
    }

    /// Sets the words for the call.
    pub fn describe(&self, words: impl FnOnce() -> String) {
        if let Some((call, _)) = IN_CALL.get().filter(|_| self.guard.is_some()) {
            IN_CALL.set(Some((call, Words::new(&words()))));
        }
    }

    /// Compares a call with those of all other PEs.
    ///
    /// # Errors
    /// [`Error::CallsDiffer`], on all of them; or a peer that does not answer.
    pub fn compare(&self, all: &Everybody<'_>, call: &Call) -> Result<()> {
        self.describe(|| call.words());
        let mine = call.encode();
        if all.same_call(call.what, &mine)? { Ok(()) } else { Err(differ(all, call, &mine)?) }
    }
}

impl Drop for ComparedCall<'_> {
    fn drop(&mut self) {
        if self.guard.is_some() {
            IN_CALL.set(None);
        }
    }
}

impl<'rt> Everybody<'rt> {
    /// Fails unless all PEs make the same call, if that check is on.
    #[inline]
    pub fn agree(&self, call: Call) -> Result<ComparedCall<'rt>> {
        if self.ops.comm.job.settings.check_collectives { self.agree_now(&call) } else { Ok(ComparedCall::none()) }
    }

    #[cold]
    fn agree_now(&self, call: &Call) -> Result<ComparedCall<'rt>> {
        let compared = self.begin_compared_call()?;
        if compared.is_taken() {
            compared.compare(self, call)?;
        }
        Ok(compared)
    }

    /// Waits until no other thread of this PE is in a compared call of all PEs.
    pub fn begin_compared_call(&self) -> Result<ComparedCall<'rt>> {
        self.ops.comm.job.here()?;
        Ok(ComparedCall::begin(self.ops.comm.job.everybody(), 0, &self.area.calls))
    }
}

/// The error of calls that differ. Collective: all PEs have found the difference.
#[cold]
fn differ(everybody: &Everybody<'_>, call: &Call, mine: &[u8; CALL_LEN]) -> Result<Error> {
    let job = &everybody.ops.comm.job;
    let all = lock(&job.bootstrap).allgather(mine)?;
    let calls = all.iter().zip(0..).map(|(bytes, pe)| Call::decode(bytes, pe)).collect::<Result<Vec<_>>>()?;
    let on_heap: Vec<AllocCall> = calls.iter().filter_map(|(_, call)| *call).collect();
    if on_heap.len() == calls.len()
        && let Err(error) = AllocCall::check(&on_heap)
    {
        return Ok(error.into());
    }
    if call.heap.is_some() {
        // This PE's call was no call of all PEs.
        everybody.area.heap_calls.fetch_sub(1, Ordering::Relaxed);
    }
    let other = all.iter().position(|bytes| bytes != mine).unwrap_or_default();
    let other_called = calls.get(other).map_or_else(String::new, |(words, _)| words.clone());
    Ok(Error::CallsDiffer { pe: job.me, called: call.words(), other: other as Pe, other_called })
}
