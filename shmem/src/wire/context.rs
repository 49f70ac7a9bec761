//! A context on the wire: operations of host threads that are ordered and completed together.
//!
//! Small operations go over the context's host endpoint; no other context uses it, if the context can have its own.
//! Operations of at least [`MANY_RAILS_FROM`] bytes go over the proxy threads' endpoints if there are several rails, or
//! if the context is [bulk](Priority::Bulk), so that the proxy thread posts piece after piece.
//! There each context is a separate issuer, and its operations alternate between the threads. To keep a fence between
//! two operations on different endpoints, the first one is drained before the second starts.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use symrail_proxy::HOST;
use symrail_transport::Error as Failure;
use symrail_transport::endpoint::command::{AtomicPriority, Command, Issuer, Priority};
use symrail_transport::proxy_threads::MAX_THREADS;

use super::host::Host;
use super::host_endpoints::HostEndpoint;
use super::wait::Wait;
use super::{MANY_RAILS_FROM, Wire};
use crate::error::{Error, Result};
use crate::staged::STAGED_OFFSET;

/// The endpoint of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Host,
    /// The endpoint of a proxy thread.
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

/// A flag for each path. One word holds them all, since each operation tests those of all other paths.
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

    /// A flag that already has the value costs only a load.
    #[inline]
    fn set(&self, path: Path, value: bool) {
        match (value, self.get(path)) {
            (true, false) => self.0.fetch_or(path.bit(), Ordering::Relaxed),
            (false, true) => self.0.fetch_and(!path.bit(), Ordering::Relaxed),
            _ => return,
        };
    }
}

/// The state of a context.
#[derive(Default)]
pub(crate) struct ContextState {
    /// Set by its first operation on the wire.
    host_endpoint: OnceLock<HostEndpoint>,
    /// Paths with operations since their last quiet; changed under the path's lock.
    used: Flags,
    /// Paths that a fence has closed since. Threads share a context: only what makes a path quiet clears its flags.
    fenced: Flags,
    /// The proxy thread that had the last large operation.
    turn: AtomicUsize,
    priority: AtomicPriority,
}

impl ContextState {
    /// The state of the default context.
    pub fn first(wire: &Wire) -> ContextState {
        ContextState { host_endpoint: OnceLock::from(wire.host_endpoints.first()), ..ContextState::default() }
    }

    /// Whether no operation was issued since the last quiet.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        // A path that a fence has closed was used before.
        !self.used.any() && !self.fenced.any()
    }

    /// Sets the priority of later operations.
    pub fn set_priority(&self, priority: Priority) {
        self.priority.store(priority);
    }

    pub(super) fn priority(&self) -> Priority {
        self.priority.load()
    }

    /// Whether it has its own host endpoint.
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
    pub(super) fn issuer(&self) -> Issuer {
        self.host_endpoint().issuer
    }

    pub(super) fn priority(&self) -> Priority {
        self.context.priority()
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

    /// Polls the host endpoint if that can make progress; no peer sends to a host endpoint unasked.
    #[inline]
    pub(super) fn poll_host(&self, now_and_then: bool) -> usize {
        let Some(HostEndpoint { host, .. }) = self.context.host_endpoint.get() else { return 0 };
        // An operation posted without a completion may still be in the provider's queue.
        let worthwhile = host.is_active() || (now_and_then && self.context.used.get(Path::Host));
        if worthwhile { host.try_lock().map_or(0, |mut side| side.poll()) } else { 0 }
    }

    /// Fails operations on the host endpoint that have timed out.
    pub(super) fn tick(&self) {
        if let Some(host_endpoint) = self.context.host_endpoint.get() {
            host_endpoint.host.lock().endpoint.tick(self.wire.seconds());
        }
    }

    /// Marks a path as used; the caller holds the path's lock.
    #[inline]
    pub(super) fn note_use(&self, path: Path) {
        self.context.used.set(path, true);
    }

    #[inline]
    pub(super) fn path_of(&self, command: &Command) -> Path {
        let staged =
            |range: &Range<usize>| command.highest_offset() >= STAGED_OFFSET || range.contains(&command.local().addr());
        let large = || {
            command.bytes() >= MANY_RAILS_FROM
                && (self.wire.rails.len() > 1 || self.priority() == Priority::Bulk)
                && !matches!(command, Command::Amo { .. })
        };
        if large() {
            self.next_engine()
        } else if self.wire.staged.as_ref().is_some_and(staged) {
            Path::Engine(0)
        } else {
            Path::Host
        }
    }

    /// The next proxy thread in turn; after a fence the thread of the last operation, which need not be drained then.
    fn next_engine(&self) -> Path {
        let last = self.context.turn.load(Ordering::Relaxed);
        if self.context.fenced.get(Path::Engine(last)) {
            return Path::Engine(last);
        }
        let next = (last + 1) % self.wire.drivers.len();
        self.context.turn.store(next, Ordering::Relaxed);
        Path::Engine(next)
    }

    /// All paths: the host endpoint, and the proxy threads'.
    #[inline]
    fn paths(&self) -> impl Iterator<Item = Path> + use<> {
        std::iter::once(Path::Host).chain((0..self.wire.drivers.len()).map(Path::Engine))
    }

    /// Orders later operations behind earlier ones, per destination.
    pub fn fence(&self) {
        for path in self.paths() {
            if self.context.used.get(path) {
                match path {
                    Path::Host => self.host().lock().endpoint.fence(),
                    Path::Engine(thread) => self.wire.drivers[thread].engine().fence(),
                }
                self.context.fenced.set(path, true);
            }
        }
    }

    /// Before an operation on `path`: waits until the operations on other paths that a fence closed are delivered.
    #[inline]
    pub(super) fn keep_fence(&self, path: Path) -> Result<()> {
        if !self.context.fenced.any_but(path) {
            return Ok(());
        }
        self.paths().filter(|other| *other != path).try_for_each(|other| self.end_fence(other))
    }

    /// Before a blocking get: waits for all paths that a fence closed. OpenSHMEM does not order gets, but many programs
    /// rely on it, and TCP rails let gets overtake puts.
    #[inline]
    pub(super) fn end_fences(&self) -> Result<()> {
        if self.context.fenced.any() {
            self.paths().try_for_each(|path| self.end_fence(path))?;
        }
        Ok(())
    }

    /// Waits until the operations that a fence closed on a path are delivered.
    #[inline]
    fn end_fence(&self, path: Path) -> Result<()> {
        if self.context.fenced.get(path) { self.drain(path) } else { Ok(()) }
    }

    /// Waits until all operations issued on the context are delivered.
    #[inline(never)]
    pub fn quiet(&self) -> Result<()> {
        let mut result = Ok(());
        for path in self.paths() {
            if self.context.used.get(path) || self.context.fenced.get(path) {
                result = result.and(self.drain(path));
            }
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

    /// Records that a path is quiet; called under its lock, so that no operation starts in between. Returns a value if
    /// it is.
    fn note_quiet(&self, path: Path, error: Option<Failure>, quiet: bool) -> Result<Option<()>> {
        error.map_or(Ok(()), |error| Err(Error::from(error)))?;
        if quiet {
            self.context.used.set(path, false);
            self.context.fenced.set(path, false);
        }
        Ok(quiet.then_some(()))
    }
}
