//! A context on the wire: operations of host threads that are ordered and completed together.
//!
//! Small operations go over the context's host endpoint, which no other context uses if it can have one of its own.
//! Operations of at least [`MANY_RAILS_FROM`] bytes go over the proxy threads' endpoints when there are several rails,
//! where each context is an issuer of its own; the threads take turns. A fence between two operations on different
//! endpoints is kept by draining the first before the second starts.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use symrail_proxy::HOST;
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::command::{Command, Finished, Issuer, Owner, Source};
use symrail_transport::share::MAX_THREADS;
use symrail_transport::{Error as Failure, Pe};

use super::host::{Host, InUse};
use super::host_endpoints::HostEndpoint;
use super::wait::Wait;
use super::{MANY_RAILS_FROM, Wire};
use crate::error::{Error, Result};
use crate::staged::STAGED_OFFSET;

/// An operation whose end is asked for by itself.
pub(crate) struct Tracked {
    path: Path,
    tag: u64,
}

/// Which endpoint an operation goes over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Host,
    /// Of a proxy thread.
    Engine(usize),
}

impl Path {
    const fn bit(self) -> u32 {
        match self {
            Path::Host => 1,
            Path::Engine(thread) => 2 << thread,
        }
    }
}

/// A flag for each path. One word has them all, since each operation asks for those of all other paths.
#[derive(Default)]
struct Flags(AtomicU32);

const _: () = assert!(MAX_THREADS < u32::BITS as usize);

impl Flags {
    #[inline]
    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn any_but(&self, path: Path) -> bool {
        self.0.load(Ordering::Relaxed) & !path.bit() != 0
    }

    #[inline]
    fn get(&self, path: Path) -> bool {
        self.0.load(Ordering::Relaxed) & path.bit() != 0
    }

    /// A flag that is as it should be costs a load only.
    #[inline]
    fn set(&self, path: Path, value: bool) {
        match (value, self.get(path)) {
            (true, false) => self.0.fetch_or(path.bit(), Ordering::Relaxed),
            (false, true) => self.0.fetch_and(!path.bit(), Ordering::Relaxed),
            _ => return,
        };
    }
}

/// What is remembered of a context.
#[derive(Default)]
pub(crate) struct ContextState {
    /// From its first operation on the wire.
    host_endpoint: OnceLock<HostEndpoint>,
    /// Paths with operations since their last quiet; changed under the path's lock.
    used: Flags,
    /// Paths that a fence has closed since.
    fenced: Flags,
    /// The proxy thread that had the last large operation.
    turn: AtomicUsize,
}

impl ContextState {
    /// The default context's.
    pub fn first(wire: &Wire) -> ContextState {
        ContextState { host_endpoint: OnceLock::from(wire.host_endpoints.first()), ..ContextState::default() }
    }

    /// Whether nothing was issued since the last quiet.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        // A path that a fence has closed was used.
        !self.used.any() && !self.fenced.any()
    }

    /// Whether it has a host endpoint that no other context uses.
    pub fn has_own_endpoint(&self) -> bool {
        self.host_endpoint.get().is_some_and(|host_endpoint| host_endpoint.issuer != HOST)
    }
}

/// A context on the wire.
#[derive(Clone, Copy)]
pub(crate) struct WireContext<'a> {
    wire: &'a Wire,
    context: &'a ContextState,
}

impl<'a> WireContext<'a> {
    pub fn new(wire: &'a Wire, context: &'a ContextState) -> WireContext<'a> {
        WireContext { wire, context }
    }

    #[inline]
    fn host_endpoint(&self) -> &'a HostEndpoint {
        self.context.host_endpoint.get_or_init(|| self.wire.host_endpoints.take())
    }

    #[inline]
    pub(super) fn host(&self) -> &'a Host {
        &self.host_endpoint().host
    }

    #[inline]
    fn issuer(&self) -> Issuer {
        self.host_endpoint().issuer
    }

    pub(super) fn wire(&self) -> &'a Wire {
        self.wire
    }

    /// Progress for a host thread that waits for its own operations.
    pub(super) fn wait(&self) -> Wait<'a> {
        Wait::for_operations(*self)
    }

    /// Progress for a host thread that waits for memory to change.
    pub fn wait_for_memory(&self) -> Wait<'a> {
        Wait::for_memory(*self)
    }

    /// Polls the host endpoint if that brings anything forward; nobody sends to a host endpoint first.
    #[inline]
    pub(super) fn poll_host(&self, now_and_then: bool) -> usize {
        let Some(HostEndpoint { host, .. }) = self.context.host_endpoint.get() else { return 0 };
        // What was posted without a completion may still be on its way out of the provider.
        let worthwhile = host.is_active() || (now_and_then && self.context.used.get(Path::Host));
        if worthwhile { host.try_lock().map_or(0, |mut side| side.poll()) } else { 0 }
    }

    /// Fails operations on the host endpoint that are too old.
    pub(super) fn tick(&self) {
        if let Some(host_endpoint) = self.context.host_endpoint.get() {
            host_endpoint.host.lock().endpoint.tick(self.wire.seconds());
        }
    }

    /// A put whose source may be re-used when this returns.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes.
    pub unsafe fn put(&self, pe: Pe, dest: u64, source: *const u8, len: u64) -> Result<()> {
        let command = Command::Put { dest, source: Source::Stable(source), len };
        let path = self.path_of(&command);
        if path == Path::Host && len <= self.wire.copy_limit as u64 {
            let command = Command::Put { dest, source: Source::Copied(source), len };
            // SAFETY: the bytes are copied during the call.
            return unsafe { self.start_and_leave(path, pe, command) };
        }
        // SAFETY: this call does not return before the operation is complete.
        unsafe { self.run(path, pe, command) }.map(drop)
    }

    /// Starts an operation that a later quiet completes.
    ///
    /// # Safety
    /// The operation's buffers stay valid, and sources unchanged, until then.
    pub unsafe fn nbi(&self, pe: Pe, command: Command) -> Result<()> {
        let path = self.path_of(&command);
        // SAFETY (both): the caller's promise.
        match command {
            // Somebody at the peer may wait for a word to change.
            // SAFETY: see above.
            Command::Amo { .. } | Command::PutSignal { .. } => unsafe { self.start_and_leave(path, pe, command) },
            // SAFETY: see above.
            _ => unsafe { self.start(path, pe, command, false) }.map(drop),
        }
    }

    /// As [`WireContext::nbi`], of an operation whose end is asked for by itself.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn track(&self, pe: Pe, command: Command) -> Result<Tracked> {
        let path = self.path_of(&command);
        // SAFETY: the caller's promise.
        let tag = unsafe { self.start(path, pe, command, true) }?;
        if self.host().leaves_behind() {
            self.wire.driver().leave_behind();
        }
        Ok(Tracked { path, tag })
    }

    /// What became of an operation, once it has ended; asked for at most until then.
    pub fn take_end(&self, Tracked { path, tag }: &Tracked) -> Option<Result<()>> {
        let finished = match path {
            Path::Host => self.host().lock().endpoint.take_finished(HOST, *tag),
            Path::Engine(thread) => {
                Finished::take(self.wire.drivers[*thread].engine().host_finished(), self.issuer(), *tag)
            }
        };
        finished.map(|finished| result(finished).map(drop))
    }

    /// Nobody will ask about the end of an operation.
    pub fn abandon(&self, Tracked { path, tag }: &Tracked) {
        match path {
            Path::Host => self.host().lock().endpoint.abandon(HOST, *tag),
            Path::Engine(thread) => self.wire.drivers[*thread].engine().abandon(self.issuer(), *tag),
        }
    }

    /// Does an operation and waits for its end. Returns the value of a fetching AMO.
    ///
    /// # Safety
    /// The operation's buffers are valid.
    #[inline]
    pub unsafe fn blocking(&self, pe: Pe, command: Command) -> Result<u64> {
        if let Command::Get { .. } = command
            && self.context.fenced.any()
        {
            self.paths().try_for_each(|path| self.end_fence(path))?;
        }
        // SAFETY: the caller's promise, for as long as this call takes.
        unsafe { self.run(self.path_of(&command), pe, command) }
    }

    /// A put-signal whose source may be re-used when this returns.
    ///
    /// # Safety
    /// As for [`WireContext::put`].
    pub unsafe fn put_signal(&self, pe: Pe, mut command: Command) -> Result<()> {
        let path = self.path_of(&command);
        if let Command::PutSignal { source, len, .. } = &mut command
            && path == Path::Host
            && *len <= self.wire.copy_limit as u64
        {
            *source = Source::Copied(source.ptr());
            // SAFETY: the bytes are copied during the call.
            return unsafe { self.start_and_leave(path, pe, command) };
        }
        // SAFETY: this call does not return before the operation is complete.
        unsafe { self.run(path, pe, command) }.map(drop)
    }

    #[inline]
    fn path_of(&self, command: &Command) -> Path {
        let staged =
            |range: &Range<usize>| command.highest_offset() >= STAGED_OFFSET || range.contains(&command.local().addr());
        let large = || {
            self.wire.rails.len() > 1 && command.bytes() >= MANY_RAILS_FROM && !matches!(command, Command::Amo { .. })
        };
        if large() {
            self.next_engine()
        } else if self.wire.staged.as_ref().is_some_and(staged) {
            Path::Engine(0)
        } else {
            Path::Host
        }
    }

    /// The proxy thread whose turn it is; after a fence the one that had the last operation, which need not be drained
    /// then.
    fn next_engine(&self) -> Path {
        let last = self.context.turn.load(Ordering::Relaxed);
        if self.context.fenced.get(Path::Engine(last)) {
            return Path::Engine(last);
        }
        let next = (last + 1) % self.wire.drivers.len();
        self.context.turn.store(next, Ordering::Relaxed);
        Path::Engine(next)
    }

    /// The host endpoint, and the proxy threads'.
    #[inline]
    fn paths(&self) -> impl Iterator<Item = Path> + use<> {
        std::iter::once(Path::Host).chain((0..self.wire.drivers.len()).map(Path::Engine))
    }

    /// Starts an operation. The proxy thread sends what waits to be coalesced then, since this thread may compute from
    /// now on.
    unsafe fn start_and_leave(&self, path: Path, pe: Pe, command: Command) -> Result<()> {
        // SAFETY: the caller's promise.
        let done = unsafe { self.start(path, pe, command, false) }.map(drop);
        if self.host().leaves_behind() {
            self.wire.driver().leave_behind();
        }
        done
    }

    /// Submits to a path, making room as needed. Returns the tag that the operation has there.
    unsafe fn start(&self, path: Path, pe: Pe, command: Command, tagged: bool) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe {
            match path {
                Path::Host => self.start_on_host(pe, command, tagged).map(|(_, tag)| tag),
                Path::Engine(thread) => self.start_on_engine(thread, pe, command, tagged),
            }
        }
    }

    /// The same on the host endpoint, which the caller may go on using without taking its lock again.
    #[inline(always)]
    unsafe fn start_on_host(&self, pe: Pe, command: Command, tagged: bool) -> Result<(InUse<'a>, u64)> {
        self.wire.driver().expect_traffic();
        self.keep_fence(Path::Host)?;
        let mut side = self.host().lock();
        if !side.endpoint.ready() {
            let mut wait = self.wait();
            while !side.endpoint.ready() {
                side.poll();
                drop(side);
                wait.step()?;
                side = self.host().lock();
            }
        }
        self.context.used.set(Path::Host, true);
        let tag = side.new_tag();
        let owner = Owner { issuer: HOST, tag: tagged.then_some(tag) };
        // SAFETY: the caller's promise.
        unsafe { side.endpoint.submit(pe, command, owner) }?;
        Ok((side, tag))
    }

    unsafe fn start_on_engine(&self, thread: usize, pe: Pe, command: Command, tagged: bool) -> Result<u64> {
        let (driver, path) = (&self.wire.drivers[thread], Path::Engine(thread));
        driver.expect_traffic();
        self.keep_fence(path)?;
        Wait::for_engine(*self, thread).until(|| {
            let tag = self.host().lock().new_tag();
            let mut engine = driver.engine();
            if !engine.ready() {
                engine.poll();
                return Ok(None);
            }
            self.context.used.set(path, true);
            let owner = Owner { issuer: self.issuer(), tag: tagged.then_some(tag) };
            // SAFETY: the caller's promise.
            unsafe { engine.submit(pe, command, owner) }?;
            Ok(Some(tag))
        })
    }

    #[inline]
    unsafe fn run(&self, path: Path, pe: Pe, command: Command) -> Result<u64> {
        // SAFETY (both): the caller's promise; this call waits for the end.
        match path {
            Path::Host => {
                // SAFETY: see above.
                let (mut side, tag) = unsafe { self.start_on_host(pe, command, true) }?;
                let mut wait = self.wait();
                loop {
                    if side.poll_until(|side| side.endpoint.has_finished())
                        && let Some(finished) = side.endpoint.take_finished(HOST, tag)
                    {
                        return result(finished);
                    }
                    drop(side);
                    let go_on = wait.step();
                    side = self.host().lock();
                    if let Err(interrupted) = go_on {
                        side.endpoint.abandon(HOST, tag);
                        return Err(interrupted);
                    }
                }
            }
            Path::Engine(thread) => {
                // SAFETY: see above.
                let tag = unsafe { self.start_on_engine(thread, pe, command, true) }?;
                let mut wait = Wait::for_engine(*self, thread);
                loop {
                    let mut engine = self.wire.drivers[thread].engine();
                    engine.poll();
                    if let Some(finished) = Finished::take(engine.host_finished(), self.issuer(), tag) {
                        return result(finished);
                    }
                    drop(engine);
                    if let Err(interrupted) = wait.step() {
                        self.wire.drivers[thread].engine().abandon(self.issuer(), tag);
                        return Err(interrupted);
                    }
                }
            }
        }
    }

    /// Orders what comes after it behind what came before it, per destination.
    pub fn fence(&self) {
        for path in self.paths() {
            let used = self.context.used.get(path);
            if used {
                match path {
                    Path::Host => self.host().lock().endpoint.fence(),
                    Path::Engine(thread) => self.wire.drivers[thread].engine().fence(),
                }
            }
            self.context.fenced.set(path, used);
        }
    }

    /// Before an operation on `path`: what a fence closed on other paths has to be delivered.
    #[inline]
    fn keep_fence(&self, path: Path) -> Result<()> {
        if !self.context.fenced.any_but(path) {
            return Ok(());
        }
        self.paths().filter(|other| *other != path).try_for_each(|other| self.end_fence(other))
    }

    /// Waits until what a fence closed on a path is delivered. So does a get that is waited for: OpenSHMEM does not
    /// order gets, but many programs count on it, and TCP rails let gets overtake puts.
    #[inline]
    fn end_fence(&self, path: Path) -> Result<()> {
        if self.context.fenced.get(path) {
            self.drain(path)?;
            self.context.fenced.set(path, false);
        }
        Ok(())
    }

    /// Waits until everything that was issued on the context is delivered.
    #[inline(never)]
    pub fn quiet(&self) -> Result<()> {
        let mut result = Ok(());
        for path in self.paths() {
            if self.context.used.get(path) {
                result = result.and(self.drain(path));
            }
            self.context.fenced.set(path, false);
        }
        result
    }

    fn drain(&self, path: Path) -> Result<()> {
        let wait = match path {
            Path::Host => self.wait(),
            Path::Engine(thread) => Wait::for_engine(*self, thread),
        };
        wait.until(|| match path {
            Path::Host => {
                let mut side = self.host().lock();
                side.endpoint.start_quiet(HOST);
                side.poll_until(|side| side.endpoint.is_quiet(HOST));
                let error = side.endpoint.take_error(HOST);
                self.note_quiet(path, error, side.endpoint.is_quiet(HOST))
            }
            Path::Engine(thread) => {
                let mut engine = self.wire.drivers[thread].engine();
                let issuer = self.issuer();
                engine.start_quiet(issuer);
                engine.poll();
                let error = engine.take_error(issuer);
                self.note_quiet(path, error, engine.is_quiet(issuer))
            }
        })
    }

    /// Something, if a path is quiet; written down while its lock is held, so that no operation comes in between.
    fn note_quiet(&self, path: Path, error: Option<Failure>, quiet: bool) -> Result<Option<()>> {
        error.map_or(Ok(()), |error| Err(Error::from(error)))?;
        if quiet {
            self.context.used.set(path, false);
        }
        Ok(quiet.then_some(()))
    }

    /// Starts something on the host endpoint as soon as that has room.
    pub(super) fn when_there_is_room(&self, start: impl Fn(&mut Endpoint) -> Result<(), Failure>) -> Result<()> {
        self.wire.driver().expect_traffic();
        self.keep_fence(Path::Host)?;
        self.wait().until(|| {
            let mut side = self.host().lock();
            self.context.used.set(Path::Host, true);
            match start(&mut side.endpoint) {
                Err(Failure::Full { .. }) => {
                    side.poll();
                    Ok(None)
                }
                done => Ok(Some(done?)),
            }
        })
    }

    /// Starts to connect the host endpoint and the proxy threads' to a peer; a quiet waits until it has answered.
    pub fn start_to_connect(&self, pe: Pe) -> Result<()> {
        self.when_there_is_room(|endpoint| endpoint.probe(pe, Owner { issuer: HOST, tag: None }))?;
        for (thread, driver) in self.wire.drivers.iter().enumerate() {
            Wait::for_engine(*self, thread).until(|| {
                let mut engine = driver.engine();
                self.context.used.set(Path::Engine(thread), true);
                match engine.endpoint().probe(pe, Owner { issuer: self.issuer(), tag: None }) {
                    Err(Failure::Full { .. }) => {
                        engine.poll();
                        Ok(None)
                    }
                    done => Ok(Some(done?)),
                }
            })?;
        }
        Ok(())
    }

    /// Asks `pe`'s agent for a keepalive; an error after `TIMEOUT_S` without one.
    pub fn probe(&self, pe: Pe) -> Result<()> {
        let tag = {
            let mut side = self.host().lock();
            self.context.used.set(Path::Host, true);
            let tag = side.new_tag();
            side.endpoint.probe(pe, Owner { issuer: HOST, tag: Some(tag) })?;
            tag
        };
        let mut wait = self.wait();
        loop {
            let mut side = self.host().lock();
            side.poll();
            if let Some(finished) = side.endpoint.take_finished(HOST, tag) {
                return result(finished).map(drop);
            }
            drop(side);
            if let Err(interrupted) = wait.step() {
                self.host().lock().endpoint.abandon(HOST, tag);
                return Err(interrupted);
            }
        }
    }
}

fn result(finished: Finished) -> Result<u64> {
    finished.result.map_err(|error| Error::from(*error))
}
