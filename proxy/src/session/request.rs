//! Requests: operations whose ends are tested one by one, without blocking.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use symrail_transport::amo::AmoOp;
use symrail_transport::endpoint::Part as Counted;
use symrail_transport::endpoint::command::{Command, Finished, Issuer, Owner, Source};
use symrail_transport::{Error, Operation, Pe, Result};

use super::Session;
use super::operation::Place;
use crate::Engine;

/// The issuer of all requests. Host threads' issuers are not used otherwise in a session; the first two are those of
/// flushes and of the endpoint's own flags.
pub(super) const REQUESTS: Issuer = 2;

/// How the operations of a request have ended; unset while any is under way.
type Outcome = OnceLock<Result<()>>;

/// A request whose end was not noticed.
pub(super) struct Pending {
    outcome: Arc<Outcome>,
    under_way: usize,
    failed: Option<Error>,
}

/// One part of a list: bytes in memory of a peer, and as many here.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The bytes of the peer.
    pub place: Place<'a>,
    /// The bytes here.
    pub local: *mut u8,
    /// The length of both.
    pub len: u64,
}

/// An operation that was started with [`Session::start_put`] or one of its siblings, or the operations of a list.
/// Dropping it does not cancel them.
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

    /// As [`Session::start_get`], of a word, by the peer's agent: memory that the peer has deregistered is an error of this
    /// request alone. `None` also where agents do not answer reads ([`Session::agent_reads_words`]).
    ///
    /// # Safety
    /// As for [`Session::start_get`].
    ///
    /// # Errors
    /// As for [`Session::start_get`].
    pub unsafe fn start_get_by_agent(&self, from: Place<'_>, dest: *mut u8) -> Result<Option<Request>> {
        let command = Command::Get { source: from.offset(Operation::Get, 8)?, dest, len: 8 };
        let mut engine = self.turn_at_engine();
        if !engine.endpoint().agent_reads_words() {
            return Ok(None);
        }
        engine.endpoint().accepts(Operation::Get, from.pe())?;
        self.learn(&mut engine, &[from])?;
        self.begin(engine, |engine, owner| {
            // SAFETY: the caller's promise.
            unsafe { engine.endpoint().submit_to_agent(from.pe(), command, owner) }.map(|_| 1)
        })
    }

    /// Whether peers' agents answer [`Session::start_get_by_agent`].
    #[must_use]
    pub fn agent_reads_words(&self) -> bool {
        self.driver.engine().endpoint().agent_reads_words()
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
        let command = to.put_signal((source, len), &signal, (op, value))?;
        // SAFETY: the caller's promise.
        unsafe { self.start_request(&[to, signal], command) }
    }

    /// As [`Session::start_put_signal`], for a caller that does not wait for its end. Data of up to
    /// [`Session::message_limit`] bytes and the signal are one message then, which the peer acknowledges at leisure, with
    /// others. It waits for others to travel with until [`Session::send_gathered`], a test or a poll.
    ///
    /// # Safety
    /// As for [`Session::start_put_signal`].
    ///
    /// # Errors
    /// As for [`Session::start_put_signal`].
    pub unsafe fn start_put_signal_at_leisure(
        &self,
        to: Place<'_>,
        (source, len): (Source, u64),
        signal: Place<'_>,
        (op, value): (AmoOp, u64),
    ) -> Result<Option<Request>> {
        let command = to.put_signal((source, len), &signal, (op, value))?;
        let mut engine = self.turn_at_engine();
        engine.endpoint().accepts(command.operation(), to.pe())?;
        self.learn(&mut engine, &[to, signal])?;
        // SAFETY: the caller's promise.
        let begun =
            self.enter(engine, |engine, owner| unsafe { engine.submit_at_leisure(to.pe(), command, owner) }.map(|_| 1));
        begun.map(|begun| begun.map(|(request, _)| request))
    }

    /// Sends what waits for others to travel with.
    pub fn send_gathered(&self) {
        if !self.delegated {
            return self.driver.engine().endpoint().send_gathered();
        }
        // The session's thread may sleep, or have lost its core.
        self.driver.expect_traffic();
        if let Some(mut engine) = self.driver.try_engine() {
            engine.endpoint().send_gathered();
        }
    }

    /// Whether a peer can count arrivals in this word: see [`Session::start_counted`]. It can where the peer's CPU moves
    /// the bytes over one rail.
    #[must_use]
    pub fn counts_in(&self, word: Place<'_>) -> bool {
        let mut engine = self.driver.engine();
        word.offset(Operation::PutSignal, 8).is_ok_and(|offset| !engine.stages() && engine.endpoint().counts_in(offset))
    }

    /// Starts writes of parts to a peer, the last of which is not empty, and behind them adds 1 to a word of the peer, as
    /// one message where it has room for them. The peer acknowledges nothing: the request ends when the bytes here may
    /// be used again. What a connection loses that fails afterwards, no end reports.
    ///
    /// # Safety
    /// As for [`Session::start_put`].
    ///
    /// # Errors
    /// As for [`Session::start_put_signal`]; [`Error::Unsupported`] where [`Session::counts_in`] is false.
    pub unsafe fn start_counted<const N: usize>(
        &self,
        parts: [Part<'_>; N],
        word: Place<'_>,
    ) -> Result<Option<Request>> {
        let pe = word.pe();
        let mut counted = [Counted { dest: 0, source: std::ptr::null(), len: 0 }; N];
        for (counted, Part { place, local, len }) in counted.iter_mut().zip(parts) {
            let (dest, _) = place.signalled_by(len, &word, AmoOp::Add)?;
            *counted = Counted { dest, source: local.cast_const(), len };
        }
        let offset = word.offset(Operation::PutSignal, 8)?;
        let mut engine = self.turn_at_engine();
        engine.endpoint().accepts(Operation::PutSignal, pe)?;
        if engine.stages() {
            let what = "a put whose arrival is counted, of memory that may be staged,".to_owned();
            return Err(Error::Unsupported { what, by: "this session".into(), remedy: "put with a signal".into() });
        }
        for place in parts.map(|part| part.place).iter().chain(&[word]) {
            self.learn(&mut engine, std::slice::from_ref(place))?;
        }
        let begun = self.enter(engine, |engine, owner| {
            // SAFETY: the caller's promise.
            unsafe { engine.endpoint().put_parts_counted(pe, &counted, offset, owner) }.map(|()| 1)
        });
        // It was posted, with what had been gathered before it.
        begun.map(|begun| begun.map(|(request, _)| request))
    }

    /// Starts a write of each part from here to the peer, as many as there is room for. Returns their number, and one
    /// request that ends when all of them have ended. `None`, with nothing started, while there is no room for any.
    ///
    /// # Safety
    /// The bytes here stay valid and unchanged until the request has ended, or until the session is dropped.
    ///
    /// # Errors
    /// As for [`Session::start_put`], for the first part; parts of different peers. What is wrong with a later part is
    /// the error of the call that begins with it.
    pub unsafe fn start_puts<'a>(&self, parts: impl Iterator<Item = Part<'a>>) -> Result<Option<(usize, Request)>> {
        let put = |part: &Part<'_>, dest| Command::Put { dest, source: Source::Stable(part.local), len: part.len };
        // SAFETY: the caller's promise.
        unsafe { self.start_list(Operation::Put, parts, put) }
    }

    /// Starts a read of each part from the peer to here, in the manner of [`Session::start_puts`].
    ///
    /// # Safety
    /// The bytes here stay valid, and no other code uses them, until the request has ended, or until the session is
    /// dropped.
    ///
    /// # Errors
    /// As for [`Session::start_puts`].
    pub unsafe fn start_gets<'a>(&self, parts: impl Iterator<Item = Part<'a>>) -> Result<Option<(usize, Request)>> {
        let get = |part: &Part<'_>, source| Command::Get { source, dest: part.local, len: part.len };
        // SAFETY: the caller's promise.
        unsafe { self.start_list(Operation::Get, parts, get) }
    }

    unsafe fn start_list<'a>(
        &self,
        operation: Operation,
        mut parts: impl Iterator<Item = Part<'a>>,
        command: impl Fn(&Part<'_>, u64) -> Command,
    ) -> Result<Option<(usize, Request)>> {
        let Some(first) = parts.next() else { return Ok(None) };
        let pe = first.place.pe();
        let engine = self.turn_at_engine();
        let mut started = 0;
        let request = self.begin(engine, |engine, owner| {
            engine.endpoint().accepts(operation, pe)?;
            let mut start = |part: &Part<'_>| {
                if part.place.pe() != pe {
                    let last = self.n_pes.saturating_sub(1);
                    return Err(Error::NoSuchPe { pe: part.place.pe().into(), last });
                }
                let command = command(part, part.place.offset(operation, part.len)?);
                self.learn(engine, &[part.place])?;
                // SAFETY: the caller's promise.
                unsafe { engine.submit_as(pe, command, owner, self.priority.load()) }.map(drop)
            };
            start(&first)?;
            started = 1;
            // An error here returns when the next call begins with this part.
            started += parts.take_while(|part| start(part).is_ok()).count();
            Ok(started)
        })?;
        Ok(request.map(|request| (started, request)))
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
        self.begin(self.turn_at_engine(), |engine, owner| engine.endpoint().probe(pe, owner).map(|()| 1))
    }

    /// As [`Session::start_probe`], over one of the rails. The answer is behind all that the peer has sent before it over
    /// that rail.
    ///
    /// # Errors
    /// As for [`Session::start_probe`].
    pub fn start_probe_over(&self, rail: usize, pe: Pe) -> Result<Option<Request>> {
        self.begin(self.turn_at_engine(), |engine, owner| {
            engine.endpoint().probe_over(Some(rail), pe, owner).map(|()| 1)
        })
    }

    unsafe fn start_request(&self, places: &[Place<'_>], command: Command) -> Result<Option<Request>> {
        let Some(pe) = places.first().map(Place::pe) else { return Ok(None) };
        let mut engine = self.turn_at_engine();
        engine.endpoint().accepts(command.operation(), pe)?;
        self.learn(&mut engine, places)?;
        let priority = self.priority.load();
        // SAFETY: the caller's promise.
        self.begin(engine, |engine, owner| unsafe { engine.submit_as(pe, command, owner, priority) }.map(|_| 1))
    }

    /// Starts the operations that `submit` submits, and whose number it returns.
    fn begin(
        &self,
        engine: MutexGuard<'_, Engine>,
        submit: impl FnOnce(&mut MutexGuard<'_, Engine>, Owner) -> Result<usize>,
    ) -> Result<Option<Request>> {
        let Some((request, mut engine)) = self.enter(engine, submit)? else { return Ok(None) };
        // A poll sends what the endpoint has gathered: the caller may do other work before it tests the request.
        self.advance(&mut engine);
        Ok(Some(request))
    }

    /// As [`Session::begin`], without a poll behind it. Returns the engine, too.
    fn enter<'a>(
        &self,
        mut engine: MutexGuard<'a, Engine>,
        submit: impl FnOnce(&mut MutexGuard<'_, Engine>, Owner) -> Result<usize>,
    ) -> Result<Option<(Request, MutexGuard<'a, Engine>)>> {
        if !engine.ready() {
            self.advance(&mut engine);
            if !engine.ready() {
                return Ok(None);
            }
        }
        let outcome = Arc::new(Outcome::new());
        let pending = Pending { outcome: Arc::clone(&outcome), under_way: 0, failed: None };
        let tag = self.requests.lock().insert(pending);
        let owner = Owner { issuer: REQUESTS, tag: Some(tag as u64) };
        let submitted = submit(&mut engine, owner);
        let mut requests = self.requests.lock();
        match submitted {
            // Ends are noticed under the engine's lock, which is held here.
            Ok(under_way) => requests.get_mut(tag).map_or((), |pending| pending.under_way = under_way),
            Err(error) => {
                requests.try_remove(tag);
                if !matches!(error, Error::Full { .. }) {
                    return Err(error);
                }
                // A caller that only tries again makes progress, too.
                drop(requests);
                self.advance(&mut engine);
                return Ok(None);
            }
        }
        drop(requests);
        if self.delegated {
            self.driver.expect_traffic();
        }
        Ok(Some((Request(outcome), engine)))
    }

    /// The engine, for one operation.
    pub(super) fn turn_at_engine(&self) -> MutexGuard<'_, Engine> {
        if self.delegated { self.driver.engine_first() } else { self.driver.engine() }
    }

    /// Has the engine polled: by this thread, or by the session's, which is woken if it sleeps.
    fn advance(&self, engine: &mut MutexGuard<'_, Engine>) {
        if self.delegated && self.is_polled() {
            return;
        }
        self.driver.poll(engine);
    }
}

/// The requests whose ends were not noticed, by tag.
#[derive(Clone, Default)]
pub(super) struct Requests(Arc<Mutex<slab::Slab<Pending>>>);

impl Requests {
    fn lock(&self) -> MutexGuard<'_, slab::Slab<Pending>> {
        symrail_core::lock(&self.0)
    }

    /// Notes the operations that have ended. It is called under the engine's lock.
    pub(super) fn note_ends(&self, finished: &mut Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        let mut requests = self.lock();
        for ended in finished.drain(..).filter(|ended| ended.issuer == REQUESTS) {
            let tag = ended.tag as usize;
            let Some(pending) = requests.get_mut(tag) else { continue };
            pending.under_way -= 1;
            if let Err(error) = ended.result {
                pending.failed.get_or_insert(*error);
            }
            if pending.under_way == 0 {
                let Pending { outcome, failed, .. } = requests.remove(tag);
                // It is set once, since its entry is removed with it.
                let _ = outcome.set(failed.map_or(Ok(()), Err));
            }
        }
    }
}
