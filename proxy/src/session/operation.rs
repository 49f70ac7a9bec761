//! Operations on registered memory of peers, and waiting for them.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use symrail_transport::amo::{AmoOp, AmoType};
use symrail_transport::endpoint::command::{Command, Fetch, Issuer, Owner, Signal, Source};
use symrail_transport::{Error, Operation, Pe, Result};

use super::Session;
use super::memory::{HANDLE_SIZE, Head, Memory};
use crate::Engine;
use crate::engine::FIRST_CONTEXT;

/// What an operation is counted for: each context has its own quiet.
pub type Context = u16;

/// Flush requests are counted for nobody in particular: what one context's quiet flushes, another's may have written.
const FLUSHES: Issuer = 0;

fn issuer(context: Context) -> Issuer {
    context.saturating_add(FIRST_CONTEXT)
}

/// Polls between two checks of the clock, and how long a thread polls in vain before it lets others run.
const POLLS_PER_CHECK: u32 = 16;
const BEFORE_YIELD: Duration = Duration::from_micros(20);

/// A place in registered memory of some PE.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    handle: &'a [u8; HANDLE_SIZE],
    head: Head,
    /// Bytes from the memory's first.
    at: u64,
}

impl<'a> Place<'a> {
    /// The byte `at` of the memory behind an encoded handle.
    ///
    /// # Errors
    /// [`Error::Malformed`]: it is not a handle.
    #[inline]
    pub fn new(handle: &'a [u8; HANDLE_SIZE], at: u64) -> Result<Place<'a>> {
        Ok(Place { handle, head: Head::read(handle)?, at })
    }

    /// The place whose address in its PE is `address`; below the memory's first byte it is outside.
    ///
    /// # Errors
    /// As for [`Place::new`].
    #[inline]
    pub fn at_address(handle: &'a [u8; HANDLE_SIZE], address: u64) -> Result<Place<'a>> {
        let head = Head::read(handle)?;
        Ok(Place { handle, head, at: address.wrapping_sub(head.base) })
    }

    /// The PE.
    #[must_use]
    pub fn pe(&self) -> Pe {
        self.head.pe
    }

    /// Its offset among the PE's registrations, if `bytes` from there are inside.
    fn offset(&self, operation: Operation, bytes: u64) -> Result<u64> {
        let inside = self.at.checked_add(bytes).is_some_and(|end| end <= self.head.len);
        let offset = self.head.offset.wrapping_add(self.at);
        if inside { Ok(offset) } else { Err(Error::OutOfSegment { operation, pe: self.head.pe, offset, bytes }) }
    }
}

impl Session {
    /// Starts to write `len` bytes.
    ///
    /// # Safety
    /// A [`Source::Stable`] source stays valid and unchanged until a quiet of its context.
    ///
    /// # Errors
    /// Nothing was started: outside of the memory, no such PE, a copied source of more than [`Session::copy_limit`]
    /// bytes, or no room within the time-out.
    pub unsafe fn put(&self, context: Context, to: Place<'_>, source: Source, len: u64) -> Result<()> {
        let dest = to.offset(Operation::Put, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[to], Command::Put { dest, source, len }) }
    }

    /// Starts to read `len` bytes.
    ///
    /// # Safety
    /// `dest` stays valid and is used by nobody else until the operation is complete.
    ///
    /// # Errors
    /// As for [`Session::put`].
    pub unsafe fn get(&self, context: Context, from: Place<'_>, dest: *mut u8, len: u64) -> Result<()> {
        let source = from.offset(Operation::Get, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[from], Command::Get { source, dest, len }) }
    }

    /// Starts an AMO. With `old`, the old value is stored there by the time the operation is complete.
    ///
    /// # Safety
    /// `old` stays valid and is used by nobody else until then.
    ///
    /// # Errors
    /// As for [`Session::put`]; a word that is not aligned, an operation that is not defined on the type.
    pub unsafe fn amo(
        &self,
        context: Context,
        word: Place<'_>,
        (op, ty): (AmoOp, AmoType),
        (operand, compare): (u64, u64),
        old: Option<*mut u8>,
    ) -> Result<()> {
        let offset = word.offset(Operation::Amo, ty.size() as u64)?;
        let fetch = old.map_or(Fetch::No, Fetch::Stored);
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[word], Command::Amo { offset, ty, op, operand, compare, fetch }) }
    }

    /// Starts to write `len` bytes and then to update a signal word of the same PE: who sees the signal sees the bytes.
    ///
    /// # Safety
    /// As for [`Session::put`].
    ///
    /// # Errors
    /// As for [`Session::put`] and [`Session::amo`]; data and signal on different PEs.
    pub unsafe fn put_signal(
        &self,
        context: Context,
        to: Place<'_>,
        (source, len): (Source, u64),
        signal: Place<'_>,
        (op, value): (AmoOp, u64),
    ) -> Result<()> {
        let dest = to.offset(Operation::PutSignal, len)?;
        let offset = signal.offset(Operation::PutSignal, 8)?;
        if to.pe() != signal.pe() || !matches!(op, AmoOp::Set | AmoOp::Add) {
            return Err(Error::Unsupported {
                what: format!("a signal by {op:?} on PE {} for data on PE {}", signal.pe(), to.pe()),
                by: "put_signal".into(),
                remedy: "set or add, on the PE that gets the data".into(),
            });
        }
        let command = Command::PutSignal { dest, source, len, signal: Signal { offset, value, op } };
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[to, signal], command) }
    }

    /// Orders what comes after it behind what came before it, to each PE. Returns at once; gets are not ordered.
    pub fn fence(&self) {
        self.driver.engine().fence();
    }

    /// Waits until everything that was started in `context` is complete: visible at its target, or here. Costs
    /// next to nothing when nothing was.
    ///
    /// # Errors
    /// The first failure since the last quiet; a time-out. It does not wait for what else is under way then: what fails
    /// later is the next quiet's error.
    pub fn quiet(&self, context: Context) -> Result<()> {
        let issuer = issuer(context);
        self.until(Operation::Quiet, issuer, |engine| {
            engine.start_quiet(FLUSHES);
            engine.is_quiet(FLUSHES) && engine.is_quiet(issuer)
        })
    }

    unsafe fn start(&self, context: Context, places: &[Place<'_>], command: Command) -> Result<()> {
        let Some(pe) = places.first().map(Place::pe) else { return Ok(()) };
        let owner = Owner { issuer: issuer(context), tag: None };
        let mut engine = self.driver.engine();
        self.learn(&mut engine, places)?;
        let mut wait = None;
        loop {
            if engine.ready() {
                // SAFETY: the caller's promise.
                match unsafe { engine.submit(pe, command, owner) } {
                    Err(Error::Full { .. }) => {}
                    done => return done.map(drop),
                }
            }
            self.driver.poll(&mut engine);
            drop(engine);
            wait.get_or_insert_with(|| Wait::new(self)).step(|| Error::Full { operation: command.operation(), pe })?;
            engine = self.driver.engine();
        }
    }

    /// Takes in the handles that have not been used before.
    fn learn(&self, engine: &mut MutexGuard<'_, Engine>, places: &[Place<'_>]) -> Result<()> {
        for place in places {
            // Its own this PE knows since it has registered them, and no longer than that.
            if place.pe() == self.me || engine.knows_separate(place.pe(), place.head.offset) {
                continue;
            }
            let memory = Memory::decode(place.handle)?;
            if memory.is_staged() {
                engine.learn_staged(memory.pe(), memory.offset(), memory.len())?;
            }
            if memory.has_keys() {
                engine.endpoint().learn_separate(
                    memory.pe(),
                    memory.offset(),
                    memory.len(),
                    &memory.connection_info(),
                )?;
            }
        }
        Ok(())
    }

    /// Drives the engine until `done`, or until something of the context has failed.
    fn until(&self, operation: Operation, issuer: Issuer, mut done: impl FnMut(&mut Engine) -> bool) -> Result<()> {
        let (mut wait, mut turn) = (Wait::new(self), None);
        loop {
            let mut engine = self.driver.engine();
            let mut finished = done(&mut engine);
            if !finished {
                self.driver.poll(&mut engine);
                finished = done(&mut engine);
            }
            if let Some(error) = engine.take_error(issuer).or_else(|| engine.take_error(FLUSHES)) {
                return Err(error);
            }
            if finished {
                return Ok(());
            }
            let pe = engine.endpoint().waits_for(issuer);
            drop(engine);
            turn.get_or_insert_with(|| self.driver.wait_turn());
            let seconds = self.time_limit.as_secs();
            wait.step(|| Error::Timeout { operation, pe: pe.unwrap_or(self.me), seconds })?;
        }
    }
}

/// One thread's waiting: polls, then yields, and in the end gives up.
struct Wait<'a> {
    session: &'a Session,
    since: Option<Instant>,
    polls: u32,
}

impl Wait<'_> {
    fn new(session: &Session) -> Wait<'_> {
        Wait { session, since: None, polls: 0 }
    }

    /// After a poll that did not bring the end.
    fn step(&mut self, late: impl FnOnce() -> Error) -> Result<()> {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS_PER_CHECK) {
            std::hint::spin_loop();
            return Ok(());
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited > self.session.time_limit {
            return Err(late());
        }
        if waited > BEFORE_YIELD {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{FLUSHES, issuer};
    use crate::engine::STAGE;

    #[test]
    fn contexts_issue_apart_from_staging_and_flushes() {
        for context in [0, 1, 61, 62, 63, 4095] {
            assert!(issuer(context) != STAGE && issuer(context) != FLUSHES, "context {context}");
        }
        assert_ne!(issuer(62), issuer(63));
    }
}
