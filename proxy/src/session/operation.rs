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

/// The context of an operation. Each context has its own quiet.
pub type Context = u16;

/// The issuer of flush requests. It is no particular context, because a flush for one context's quiet may cover
/// another's writes.
const FLUSHES: Issuer = 0;

fn issuer(context: Context) -> Issuer {
    context.saturating_add(FIRST_CONTEXT)
}

/// Polls between two checks of the clock, and the time for which a thread polls without progress before it yields.
const POLLS_PER_CHECK: u32 = 16;
const BEFORE_YIELD: Duration = Duration::from_micros(20);

/// A place in registered memory of a PE.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    handle: Handle<'a>,
    head: Head,
    /// Offset from the memory's first byte.
    at: u64,
}

/// A handle, of which more than the head is read once, when its session learns it.
#[derive(Debug, Clone, Copy)]
enum Handle<'a> {
    Encoded(&'a [u8; HANDLE_SIZE]),
    Decoded(&'a Memory),
}

impl Memory {
    /// The byte `at` of the memory.
    #[inline]
    #[must_use]
    pub fn place(&self, at: u64) -> Place<'_> {
        Place { handle: Handle::Decoded(self), head: self.head(), at }
    }
}

impl<'a> Place<'a> {
    /// The byte `at` of the memory behind an encoded handle.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not a handle.
    #[inline]
    pub fn new(handle: &'a [u8; HANDLE_SIZE], at: u64) -> Result<Place<'a>> {
        Ok(Place { handle: Handle::Encoded(handle), head: Head::read(handle)?, at })
    }

    /// The place with this address in its PE; below the memory's first byte it is outside.
    ///
    /// # Errors
    /// As for [`Place::new`].
    #[inline]
    pub fn at_address(handle: &'a [u8; HANDLE_SIZE], address: u64) -> Result<Place<'a>> {
        let head = Head::read(handle)?;
        Ok(Place { handle: Handle::Encoded(handle), head, at: address.wrapping_sub(head.base) })
    }

    /// The PE.
    #[must_use]
    pub fn pe(&self) -> Pe {
        self.head.pe
    }

    /// Its offset among the PE's registrations, if `bytes` from there are inside. No bytes may be anywhere: they go to
    /// the memory's nearest byte, in the order of other operations.
    pub(super) fn offset(&self, operation: Operation, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(self.head.offset.wrapping_add(self.at.min(self.head.len.saturating_sub(1))));
        }
        let inside = self.at.checked_add(bytes).is_some_and(|end| end <= self.head.len);
        let offset = self.head.offset.wrapping_add(self.at);
        if inside { Ok(offset) } else { Err(Error::OutOfSegment { operation, pe: self.head.pe, offset, bytes }) }
    }

    /// The command of a put to here and its signal.
    pub(super) fn put_signal(
        &self,
        (source, len): (Source, u64),
        signal: &Place<'_>,
        (op, value): (AmoOp, u64),
    ) -> Result<Command> {
        let (dest, offset) = self.signalled_by(len, signal, op)?;
        Ok(Command::PutSignal { dest, source, len, signal: Signal { offset, value, op } })
    }

    /// The offsets of `len` bytes from here and of their signal.
    pub(super) fn signalled_by(&self, len: u64, signal: &Place<'_>, op: AmoOp) -> Result<(u64, u64)> {
        let offsets = (self.offset(Operation::PutSignal, len)?, signal.offset(Operation::PutSignal, 8)?);
        if self.pe() == signal.pe() && matches!(op, AmoOp::Set | AmoOp::Add) {
            return Ok(offsets);
        }
        Err(Error::Unsupported {
            what: format!("a signal by {op:?} on PE {} for data on PE {}", signal.pe(), self.pe()),
            by: "put_signal".into(),
            remedy: "set or add, on the PE that gets the data".into(),
        })
    }
}

impl Session {
    /// Starts a write of `len` bytes.
    ///
    /// # Safety
    /// A [`Source::Stable`] source stays valid and unchanged until a quiet of its context.
    ///
    /// # Errors
    /// On an error nothing was started: the place is outside of the memory, the PE does not exist, a copied source has
    /// more than [`Session::copy_limit`] bytes, or there was no room within the time-out.
    pub unsafe fn put(&self, context: Context, to: Place<'_>, source: Source, len: u64) -> Result<()> {
        let dest = to.offset(Operation::Put, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[to], Command::Put { dest, source, len }) }
    }

    /// Starts a read of `len` bytes.
    ///
    /// # Safety
    /// `dest` stays valid, and no other code uses it, until the operation is complete.
    ///
    /// # Errors
    /// As for [`Session::put`].
    pub unsafe fn get(&self, context: Context, from: Place<'_>, dest: *mut u8, len: u64) -> Result<()> {
        let source = from.offset(Operation::Get, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[from], Command::Get { source, dest, len }) }
    }

    /// Starts an AMO. With `old`, the old value is stored there when the operation is complete.
    ///
    /// # Safety
    /// `old` stays valid, and no other code uses it, until then.
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

    /// Starts a write of `len` bytes and then an update of a signal word of the same PE. A reader that observes the
    /// signal also observes the bytes.
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
        let command = to.put_signal((source, len), &signal, (op, value))?;
        // SAFETY: the caller's promise.
        unsafe { self.start(context, &[to, signal], command) }
    }

    /// Orders later operations behind earlier ones, to each PE. Returns at once. Gets are not ordered.
    pub fn fence(&self) {
        self.driver.engine().fence();
    }

    /// Waits until all operations of `context` are complete: visible at their targets, or here. It costs next to
    /// nothing when there are none.
    ///
    /// # Errors
    /// The first failure since the last quiet, or a time-out. It does not wait for the other operations under way then:
    /// the next quiet returns later failures.
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
        let mut engine = self.turn_at_engine();
        engine.endpoint().accepts(command.operation(), pe)?;
        self.learn(&mut engine, places)?;
        let mut wait = None;
        loop {
            if engine.ready() {
                // SAFETY: the caller's promise.
                match unsafe { engine.submit_as(pe, command, owner, self.priority.load()) } {
                    Err(Error::Full { .. }) => {}
                    done => return done.map(drop),
                }
            }
            self.driver.poll(&mut engine);
            drop(engine);
            wait.get_or_insert_with(|| Wait::new(self)).step(|| Error::Full { operation: command.operation(), pe })?;
            engine = self.turn_at_engine();
        }
    }

    /// Learns the handles that are used for the first time.
    pub(super) fn learn(&self, engine: &mut MutexGuard<'_, Engine>, places: &[Place<'_>]) -> Result<()> {
        for place in places {
            // This PE knows its own handles by their registration, and only as long as they are registered.
            if place.pe() == self.me || engine.knows_separate(place.pe(), place.head.offset) {
                continue;
            }
            let memory = match place.handle {
                Handle::Encoded(bytes) => &Memory::decode(bytes)?,
                Handle::Decoded(memory) => memory,
            };
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

    /// Drives the engine until `done`, or until an operation of the context has failed.
    fn until(&self, operation: Operation, issuer: Issuer, mut done: impl FnMut(&mut Engine) -> bool) -> Result<()> {
        let (mut wait, mut turn) = (Wait::new(self), None);
        loop {
            let mut engine = self.turn_at_engine();
            let mut finished = done(&mut engine);
            if !finished {
                // Pieces of large operations move one after the other: the limit is for a time without any event.
                if self.driver.poll(&mut engine) > 0 {
                    wait = Wait::new(self);
                }
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
            wait.step(|| {
                let pe = pe.unwrap_or(self.me);
                Error::Timeout { operation, pe, seconds, rails: String::new() }
            })?;
        }
    }
}

/// The wait of one thread: it polls, then yields, and gives up in the end.
struct Wait<'a> {
    session: &'a Session,
    since: Option<Instant>,
    polls: u32,
}

impl Wait<'_> {
    fn new(session: &Session) -> Wait<'_> {
        Wait { session, since: None, polls: 0 }
    }

    /// Continues after a poll without success.
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
