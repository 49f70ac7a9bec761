//! Requests: operations whose ends are tested one by one, without blocking.

use std::sync::{Arc, MutexGuard, OnceLock};

use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::command::{Command, Issuer, Owner, Signal, Source};
use symrail_transport::{Error, Operation, Pe, Result};

use super::Session;
use super::operation::Place;
use crate::Engine;

/// The issuer of all requests. Host threads' issuers are not used otherwise in a session; the first two are those of
/// flushes and of the endpoint's own flags.
pub(super) const REQUESTS: Issuer = 2;

/// How an operation has ended; unset while it is under way.
pub(super) type Outcome = OnceLock<Result<()>>;

/// An operation that was started with [`Session::start_put`] or one of its siblings. Dropping it does not cancel the
/// operation.
#[derive(Debug)]
#[must_use = "the operation's memory is lent until it has ended"]
pub struct Request(Arc<Outcome>);

impl Request {
    /// The end of the operation, if it was noticed: by a [`Session::test`] of this or any other request.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<()>> {
        self.0.get().cloned()
    }
}

impl Session {
    /// As [`Session::put`], but it does not block, and the operation's end can be tested. `None`, with nothing started,
    /// while there is no room for another operation.
    ///
    /// # Safety
    /// A [`Source::Stable`] source stays valid and unchanged until the request has ended, or until the session is
    /// dropped.
    ///
    /// # Errors
    /// As for [`Session::put`], but for the lack of room.
    pub unsafe fn start_put(&self, to: Place<'_>, source: Source, len: u64) -> Result<Option<Request>> {
        let dest = to.offset(Operation::Put, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start_request(&[to], Command::Put { dest, source, len }) }
    }

    /// As [`Session::get`], in the manner of [`Session::start_put`].
    ///
    /// # Safety
    /// `dest` stays valid, and no other code uses it, until the request has ended, or until the session is dropped.
    ///
    /// # Errors
    /// As for [`Session::start_put`].
    pub unsafe fn start_get(&self, from: Place<'_>, dest: *mut u8, len: u64) -> Result<Option<Request>> {
        let source = from.offset(Operation::Get, len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start_request(&[from], Command::Get { source, dest, len }) }
    }

    /// As [`Session::put_signal`], in the manner of [`Session::start_put`]. Its end means that both the data and the
    /// signal are visible.
    ///
    /// # Safety
    /// As for [`Session::start_put`].
    ///
    /// # Errors
    /// As for [`Session::put_signal`], but for the lack of room.
    pub unsafe fn start_put_signal(
        &self,
        to: Place<'_>,
        (source, len): (Source, u64),
        signal: Place<'_>,
        (op, value): (AmoOp, u64),
    ) -> Result<Option<Request>> {
        let (dest, offset) = to.signalled_by(len, &signal, op)?;
        let command = Command::PutSignal { dest, source, len, signal: Signal { offset, value, op } };
        // SAFETY: the caller's promise.
        unsafe { self.start_request(&[to, signal], command) }
    }

    /// Whether a request has ended. It makes progress, and never blocks: if another thread drives the engine right now,
    /// that one does the work.
    ///
    /// # Errors
    /// The failure of the request's operation, each time it is tested.
    pub fn test(&self, request: &Request) -> Result<bool> {
        if request.0.get().is_none() {
            self.progress();
        }
        request.0.get().map_or(Ok(false), |outcome| outcome.clone().map(|()| true))
    }

    /// Asks a peer for a sign of life. The request's end means that the peer's process is there.
    ///
    /// # Errors
    /// As for [`Session::start_put`].
    pub fn start_probe(&self, pe: Pe) -> Result<Option<Request>> {
        self.begin(self.turn_at_engine(), |engine, owner| engine.endpoint().probe(pe, owner))
    }

    unsafe fn start_request(&self, places: &[Place<'_>], command: Command) -> Result<Option<Request>> {
        let Some(pe) = places.first().map(Place::pe) else { return Ok(None) };
        let mut engine = self.turn_at_engine();
        engine.endpoint().accepts(command.operation(), pe)?;
        self.learn(&mut engine, places)?;
        // SAFETY: the caller's promise.
        self.begin(engine, |engine, owner| unsafe { engine.submit(pe, command, owner) }.map(drop))
    }

    /// Starts what `submit` submits.
    fn begin(
        &self,
        mut engine: MutexGuard<'_, Engine>,
        submit: impl FnOnce(&mut Engine, Owner) -> Result<()>,
    ) -> Result<Option<Request>> {
        if !engine.ready() {
            self.advance(&mut engine);
            if !engine.ready() {
                return Ok(None);
            }
        }
        let outcome = Arc::new(Outcome::new());
        let tag = symrail_core::lock(&self.requests).insert(Arc::clone(&outcome)) as u64;
        let owner = Owner { issuer: REQUESTS, tag: Some(tag) };
        if let Err(error) = submit(&mut engine, owner) {
            symrail_core::lock(&self.requests).try_remove(tag as usize);
            return if matches!(error, Error::Full { .. }) { Ok(None) } else { Err(error) };
        }
        // A poll sends what the endpoint has gathered: the caller may do other work before it tests the request.
        self.advance(&mut engine);
        Ok(Some(Request(outcome)))
    }

    /// The engine, for one operation.
    fn turn_at_engine(&self) -> MutexGuard<'_, Engine> {
        if self.delegated { self.driver.engine_first() } else { self.driver.engine() }
    }

    /// Has the engine polled: by this thread, or by the session's, which is woken if it sleeps.
    fn advance(&self, engine: &mut MutexGuard<'_, Engine>) {
        if self.delegated {
            self.driver.expect_traffic();
            self.note_ends(engine);
        } else {
            self.drive(engine);
        }
    }

    /// Polls the engine once, and notes the requests that have ended. Returns the number of events.
    pub(super) fn drive(&self, engine: &mut MutexGuard<'_, Engine>) -> usize {
        let events = self.driver.poll(engine);
        self.note_ends(engine);
        events
    }

    /// Notes the requests that have ended. Returns their number.
    pub(super) fn note_ends(&self, engine: &mut MutexGuard<'_, Engine>) -> usize {
        let finished = engine.host_finished();
        let ended = finished.len();
        if ended > 0 {
            let mut requests = symrail_core::lock(&self.requests);
            for ended in finished.drain(..).filter(|ended| ended.issuer == REQUESTS) {
                if let Some(outcome) = requests.try_remove(ended.tag as usize) {
                    // It is set once, since its entry is removed with it.
                    let _ = outcome.set(ended.result.map(drop).map_err(|error| *error));
                }
            }
        }
        ended
    }
}
