//! Host threads on the wire: their own endpoint, and the engine's rails for what is large.
//!
//! Small operations go over the host endpoint, which no other thread polls. Operations of at least
//! [`MANY_RAILS_FROM`] bytes go over the proxy endpoint when it has several rails. A fence between
//! two operations on different endpoints is kept by draining the first before the second starts.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use symrail_proxy::{Driver, HOST, Proxy, Turn};
use symrail_transport::endpoint::job::{Finished, Issue, Job, Source};
use symrail_transport::endpoint::{Endpoint, NoAgent};
use symrail_transport::{Error, Pe};

/// From here on an operation is worth more than one rail.
const MANY_RAILS_FROM: u64 = 64 << 10;
/// Polls of the host endpoint before a waiting thread also drives the engine: about the time of a round trip, which
/// would only become longer.
const ALONE: u32 = 64;
/// Idle polls before a waiting thread lets others run in between.
const BEFORE_YIELD: u32 = 256;
/// How long a thread waits by polling; then the proxy thread takes over and the waiting thread naps, each time for an
/// eighth of what it has waited.
const PATIENCE: Duration = Duration::from_millis(10);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// Which endpoint an operation goes over.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Path {
    Host = 1,
    Engine = 2,
}

struct HostSide {
    endpoint: Endpoint,
    finished: Vec<Finished>,
    next_tag: u64,
}

impl HostSide {
    /// A tag that no operation of a host thread has had, on either path.
    fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn poll(&mut self) -> usize {
        let events = self.endpoint.poll(&mut NoAgent);
        while let Some(finished) = self.endpoint.next_finished() {
            self.finished.push(finished);
        }
        events
    }

    /// Polls if that brings anything forward. Whether it will go on doing so.
    fn poll_if_active(&mut self) -> bool {
        if self.endpoint.is_active() {
            self.poll();
        }
        self.endpoint.is_active()
    }
}

/// A PE's endpoints, as its host threads use them.
pub(crate) struct Wire {
    host: Arc<Mutex<HostSide>>,
    driver: Arc<Driver>,
    // Joined when dropped; everything that can fail has been done by then.
    _proxy: Proxy,
    many_rails: bool,
    copy_limit: usize,
    started: Instant,
    /// Paths with operations since their last quiet, and paths that a fence has closed since.
    used: AtomicU8,
    fenced: AtomicU8,
}

impl Wire {
    pub fn new(host: Endpoint, proxy: Proxy) -> Wire {
        let driver = Arc::clone(proxy.driver());
        let many_rails = driver.engine().endpoint().caps().len() > 1;
        let copy_limit = host.copy_limit();
        let host = Arc::new(Mutex::new(HostSide { endpoint: host, finished: Vec::new(), next_tag: 0 }));
        // What a provider could not send at once goes out although the thread that posted it computes.
        let left_behind = Arc::clone(&host);
        driver.look_after(move || left_behind.try_lock().is_ok_and(|mut side| side.poll_if_active()));
        Wire {
            host,
            driver,
            _proxy: proxy,
            many_rails,
            copy_limit,
            started: Instant::now(),
            used: AtomicU8::new(0),
            fenced: AtomicU8::new(0),
        }
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    fn host(&self) -> MutexGuard<'_, HostSide> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host endpoint, between operations.
    pub fn with_host<T>(&self, f: impl FnOnce(&mut Endpoint) -> T) -> T {
        f(&mut self.host().endpoint)
    }

    /// The most bytes of a put (or put-signal) whose source is certainly copied when the call returns, whatever became
    /// of the operation.
    pub fn copied_at_once(&self) -> usize {
        self.copy_limit.min(MANY_RAILS_FROM as usize - 1)
    }

    /// A put whose source may be re-used when this returns.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes.
    pub unsafe fn put(&self, pe: Pe, dest: u64, source: *const u8, len: u64) -> Result<(), Error> {
        let path = self.path(len);
        if path == Path::Host && len <= self.copy_limit as u64 {
            let job = Job::Put { dest, source: Source::Copied(source), len };
            // SAFETY: the bytes are copied during the call.
            return unsafe { self.start(path, pe, job, None) }.map(drop);
        }
        // SAFETY: this call does not return before the operation is complete.
        unsafe { self.run(path, pe, Job::Put { dest, source: Source::Stable(source), len }) }.map(drop)
    }

    /// Starts an operation that a later quiet completes.
    ///
    /// # Safety
    /// The operation's buffers stay valid, and sources unchanged, until then.
    pub unsafe fn nbi(&self, pe: Pe, job: Job) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.start(self.path_of(&job), pe, job, None) }.map(drop)
    }

    /// Does an operation and waits for its end. Returns the value of a fetching AMO.
    ///
    /// # Safety
    /// The operation's buffers are valid.
    pub unsafe fn blocking(&self, pe: Pe, job: Job) -> Result<u64, Error> {
        // SAFETY: the caller's promise, for as long as this call takes.
        unsafe { self.run(self.path_of(&job), pe, job) }
    }

    /// A put-signal whose source may be re-used when this returns.
    ///
    /// # Safety
    /// As for [`Wire::put`].
    pub unsafe fn put_signal(&self, pe: Pe, mut job: Job) -> Result<(), Error> {
        let path = self.path_of(&job);
        if let Job::PutSignal { source, len, .. } = &mut job
            && path == Path::Host
            && *len <= self.copy_limit as u64
        {
            let (Source::Stable(ptr) | Source::Copied(ptr)) = *source;
            *source = Source::Copied(ptr);
            // SAFETY: the bytes are copied during the call.
            return unsafe { self.start(path, pe, job, None) }.map(drop);
        }
        // SAFETY: this call does not return before the operation is complete.
        unsafe { self.run(path, pe, job) }.map(drop)
    }

    fn path_of(&self, job: &Job) -> Path {
        if matches!(job, Job::Amo { .. }) { Path::Host } else { self.path(job.bytes()) }
    }

    fn path(&self, len: u64) -> Path {
        if self.many_rails && len >= MANY_RAILS_FROM { Path::Engine } else { Path::Host }
    }

    /// Submits to a path, making room as needed. Returns the tag that the operation has there.
    unsafe fn start(&self, path: Path, pe: Pe, job: Job, tagged: Option<()>) -> Result<u64, Error> {
        self.keep_fence(path)?;
        self.used.fetch_or(path as u8, Ordering::Relaxed);
        let mut wait = self.wait();
        loop {
            match path {
                Path::Host => {
                    let side = &mut *self.host();
                    if side.endpoint.ready() {
                        let tag = side.new_tag();
                        let issue = Issue { issuer: HOST, tag: tagged.map(|()| tag) };
                        // SAFETY: the caller's promise.
                        return unsafe { side.endpoint.submit(pe, job, issue) }.map(|_| tag);
                    }
                    side.poll();
                }
                Path::Engine => {
                    let tag = self.host().new_tag();
                    let mut engine = self.driver.engine();
                    if engine.endpoint().ready() {
                        let issue = Issue { issuer: HOST, tag: tagged.map(|()| tag) };
                        // SAFETY: the caller's promise.
                        let done = unsafe { engine.endpoint().submit(pe, job, issue) }.map(|_| tag);
                        drop(engine);
                        return done;
                    }
                    engine.poll();
                }
            }
            wait.step();
        }
    }

    unsafe fn run(&self, path: Path, pe: Pe, job: Job) -> Result<u64, Error> {
        // SAFETY: the caller's promise; this call waits for the end.
        let tag = unsafe { self.start(path, pe, job, Some(())) }?;
        let mut wait = self.wait();
        loop {
            if path == Path::Host {
                let mut side = self.host();
                side.poll();
                if let Some(result) = take(&mut side.finished, tag) {
                    return result;
                }
            } else {
                let mut engine = self.driver.engine();
                engine.poll();
                if let Some(result) = take(engine.host_finished(), tag) {
                    return result;
                }
            }
            wait.step();
        }
    }

    /// Orders what comes after it behind what came before it, per destination.
    pub fn fence(&self) {
        let used = self.used.load(Ordering::Relaxed);
        if used & Path::Host as u8 != 0 {
            self.host().endpoint.fence();
        }
        if used & Path::Engine as u8 != 0 {
            self.driver.engine().endpoint().fence();
        }
        self.fenced.store(used, Ordering::Relaxed);
    }

    /// Before an operation on `path`: what a fence closed on the other path has to be delivered.
    fn keep_fence(&self, path: Path) -> Result<(), Error> {
        let others = self.fenced.load(Ordering::Relaxed) & !(path as u8);
        if others == 0 {
            return Ok(());
        }
        let other = if path == Path::Host { Path::Engine } else { Path::Host };
        self.drain(other)?;
        self.fenced.fetch_and(path as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until everything that host threads have issued is delivered.
    pub fn quiet(&self) -> Result<(), Error> {
        let used = self.used.load(Ordering::Relaxed);
        let mut result = Ok(());
        for path in [Path::Host, Path::Engine] {
            if used & path as u8 != 0 {
                result = result.and(self.drain(path));
            }
        }
        self.fenced.store(0, Ordering::Relaxed);
        result
    }

    fn drain(&self, path: Path) -> Result<(), Error> {
        let mut wait = self.wait();
        loop {
            // Taken away first: an operation that another thread issues meanwhile marks it again.
            self.used.fetch_and(!(path as u8), Ordering::Relaxed);
            let (quiet, error) = if path == Path::Host {
                let mut side = self.host();
                side.endpoint.start_quiet(HOST);
                let quiet = side.endpoint.is_quiet(HOST) || {
                    side.poll();
                    side.endpoint.is_quiet(HOST)
                };
                (quiet, side.endpoint.take_error(HOST))
            } else {
                let mut engine = self.driver.engine();
                engine.endpoint().start_quiet(HOST);
                engine.poll();
                (engine.endpoint().is_quiet(HOST), engine.endpoint().take_error(HOST))
            };
            if let Some(error) = error {
                self.used.fetch_or(path as u8, Ordering::Relaxed);
                return Err(error);
            }
            if quiet {
                return Ok(());
            }
            self.used.fetch_or(path as u8, Ordering::Relaxed);
            wait.step();
        }
    }

    /// Waits until nothing of host threads is on its way: not even what no quiet waits for. At most `TIMEOUT_S`.
    pub fn settle(&self, patience: Duration) {
        let mut wait = self.wait();
        let deadline = Instant::now() + patience;
        while self.host().poll_if_active() && Instant::now() < deadline {
            wait.step();
        }
    }

    /// Progress for a host thread that waits for its own operations.
    fn wait(&self) -> Wait<'_> {
        Wait { wire: self, turn: None, polls: 0, idle_since: None, naps: false, may_nap: false }
    }

    /// Progress for a host thread that waits for memory to change.
    pub fn wait_for_memory(&self) -> Wait<'_> {
        Wait { may_nap: self.driver.wakes(), ..self.wait() }
    }

    /// Polls the host endpoint if that brings anything forward; nobody sends to a host endpoint first.
    fn poll_host(&self, now_and_then: bool) -> usize {
        let Ok(mut side) = self.host.try_lock() else { return 0 };
        // What was posted without a completion may still be on its way out of the provider.
        let unseen = now_and_then && self.used.load(Ordering::Relaxed) & Path::Host as u8 != 0;
        if side.endpoint.is_active() || unseen { side.poll() } else { 0 }
    }

    /// Writes a byte that the peer waits for and that no quiet has to wait for.
    pub fn put_flag(&self, pe: Pe, dest: u64, value: u8) -> Result<(), Error> {
        self.keep_fence(Path::Host)?;
        self.used.fetch_or(Path::Host as u8, Ordering::Relaxed);
        let mut wait = self.wait();
        loop {
            let mut side = self.host();
            match side.endpoint.put_flag(pe, dest, value, Issue { issuer: HOST, tag: None }) {
                Err(Error::Full { .. }) => drop(side.poll()),
                done => return done,
            }
            drop(side);
            wait.step();
        }
    }

    fn seconds(&self) -> u32 {
        self.started.elapsed().as_secs() as u32
    }

    /// Asks `pe`'s agent for a sign of life; an error after `TIMEOUT_S` without one.
    pub fn probe(&self, pe: Pe) -> Result<(), Error> {
        self.used.fetch_or(Path::Host as u8, Ordering::Relaxed);
        let tag = {
            let side = &mut *self.host();
            let tag = side.new_tag();
            side.endpoint.probe(pe, Issue { issuer: HOST, tag: Some(tag) })?;
            tag
        };
        let mut wait = self.wait();
        loop {
            let mut side = self.host();
            side.poll();
            if let Some(result) = take(&mut side.finished, tag) {
                return result.map(drop);
            }
            drop(side);
            wait.step();
        }
    }
}

fn take(finished: &mut Vec<Finished>, tag: u64) -> Option<Result<u64, Error>> {
    let at = finished.iter().rposition(|f| f.tag == tag)?;
    Some(finished.swap_remove(at).result)
}

/// One host thread's waiting: polls, then yields, then (for memory) naps; and counts time-outs.
pub(crate) struct Wait<'a> {
    wire: &'a Wire,
    turn: Option<Turn<'a>>,
    polls: u32,
    idle_since: Option<Instant>,
    /// It has come to naps; never for a thread that waits for its own operations.
    naps: bool,
    may_nap: bool,
}

impl Wait<'_> {
    /// After the caller's own poll of its endpoint has found nothing: does something useful, or lets others.
    pub fn step(&mut self) {
        if self.polls < ALONE {
            self.polls += 1;
            std::hint::spin_loop();
        } else {
            self.drive();
        }
    }

    /// Drives both endpoints, or lets others.
    pub fn drive(&mut self) {
        if self.naps {
            let waited = self.idle_since.map_or(PATIENCE, |since| since.elapsed());
            std::thread::sleep((waited / 8).min(LONGEST_NAP));
            self.wire.poll_host(true);
            return;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(64) {
            let now = Instant::now();
            self.wire.host().endpoint.tick(self.wire.seconds());
            if self.may_nap && now - *self.idle_since.get_or_insert(now) > PATIENCE {
                self.turn = None;
                self.naps = true;
                return;
            }
        }
        let turn = self.turn.get_or_insert_with(|| self.wire.driver.wait_turn());
        if turn.poll() + self.wire.poll_host(self.polls.is_multiple_of(16)) > 0 {
            self.idle_since = None;
        } else if self.polls > BEFORE_YIELD && self.polls.is_multiple_of(16) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
