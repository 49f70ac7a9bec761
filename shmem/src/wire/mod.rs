//! Host threads on the wire: their own endpoint, and the engine's rails for what is large.
//!
//! Small operations go over the host endpoint, which no other thread polls (on one rail, while that works). Operations of at least
//! [`MANY_RAILS_FROM`] bytes go over the proxy endpoint when it has several rails. A fence between
//! two operations on different endpoints is kept by draining the first before the second starts.

mod host;
mod lanes;
#[cfg(test)]
mod tests;
mod wait;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symrail_proxy::{Driver, HOST, Proxy};
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::job::{Finished, Issue, Job, Source};
use symrail_transport::{Error, Pe};

use crate::staged::STAGED_OFFSET;
use host::Host;
pub(crate) use lanes::Lanes;
pub(crate) use wait::Wait;

/// From here on an operation is worth more than one rail.
const MANY_RAILS_FROM: u64 = 64 << 10;
/// Which endpoint an operation goes over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Host,
    Engine,
}

impl Path {
    const ALL: [Path; 2] = [Path::Host, Path::Engine];
}

/// A flag for each path.
#[derive(Default)]
struct Flags([AtomicBool; 2]);

impl Flags {
    #[inline]
    fn get(&self, path: Path) -> bool {
        self.0[path as usize].load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, path: Path, value: bool) {
        self.0[path as usize].store(value, Ordering::Relaxed);
    }
}

/// A PE's endpoints, as its host threads use them.
pub(crate) struct Wire {
    host: Arc<Host>,
    driver: Arc<Driver>,
    // Joined when dropped; everything that can fail has been done by then.
    _proxy: Proxy,
    many_rails: bool,
    /// Addresses that the CPU cannot touch: what is about them goes through the engine, which stages it.
    staged: Option<Range<usize>>,
    /// NICs write this PE's memory, whether it polls or not.
    by_hardware: bool,
    copy_limit: usize,
    started: Instant,
    /// Paths with operations since their last quiet; changed under the path's lock.
    used: Flags,
    /// Paths that a fence has closed since.
    fenced: Flags,
}

impl Wire {
    pub fn new(host: Endpoint, proxy: Proxy, staged: Option<Range<usize>>) -> Wire {
        let driver = Arc::clone(proxy.driver());
        let rails = driver.engine().endpoint().caps().to_vec();
        let (many_rails, by_hardware) = (rails.len() > 1, rails.iter().all(|rail| !rail.software));
        let copy_limit = host.copy_limit();
        let host = Arc::new(Host::new(host));
        // What a provider could not send at once goes out although the thread that posted it computes.
        let left_behind = Arc::clone(&host);
        driver.look_after(move || left_behind.look_after());
        Wire {
            host,
            driver,
            _proxy: proxy,
            many_rails,
            staged,
            by_hardware,
            copy_limit,
            started: Instant::now(),
            used: Flags::default(),
            fenced: Flags::default(),
        }
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// What the endpoints' lanes do, for whoever watches.
    pub fn lanes(&self) -> Lanes {
        Lanes::new(Arc::clone(&self.host), Arc::clone(&self.driver))
    }

    /// The host endpoint, between operations.
    pub fn with_host<T>(&self, f: impl FnOnce(&mut Endpoint) -> T) -> T {
        f(&mut self.host.lock().endpoint)
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
        let job = Job::Put { dest, source: Source::Stable(source), len };
        let path = self.path_of(&job);
        if path == Path::Host && len <= self.copy_limit as u64 {
            let job = Job::Put { dest, source: Source::Copied(source), len };
            // SAFETY: the bytes are copied during the call.
            return unsafe { self.start(path, pe, job, None) }.map(drop);
        }
        // SAFETY: this call does not return before the operation is complete.
        unsafe { self.run(path, pe, job) }.map(drop)
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
        let staged =
            |range: &Range<usize>| job.highest_offset() >= STAGED_OFFSET || range.contains(&job.local().addr());
        let large = || self.many_rails && job.bytes() >= MANY_RAILS_FROM && !matches!(job, Job::Amo { .. });
        if self.staged.as_ref().is_some_and(staged) || large() { Path::Engine } else { Path::Host }
    }

    /// Submits to a path, making room as needed. Returns the tag that the operation has there.
    unsafe fn start(&self, path: Path, pe: Pe, job: Job, tagged: Option<()>) -> Result<u64, Error> {
        self.driver.expect_traffic();
        self.keep_fence(path)?;
        let mut wait = self.wait();
        loop {
            match path {
                Path::Host => {
                    let mut side = self.host.lock();
                    if side.endpoint.ready() {
                        self.used.set(path, true);
                        let tag = side.new_tag();
                        let issue = Issue { issuer: HOST, tag: tagged.map(|()| tag) };
                        // SAFETY: the caller's promise.
                        return unsafe { side.endpoint.submit(pe, job, issue) }.map(|_| tag);
                    }
                    side.poll();
                }
                Path::Engine => {
                    let tag = self.host.lock().new_tag();
                    let mut engine = self.driver.engine();
                    if engine.ready() {
                        self.used.set(path, true);
                        let issue = Issue { issuer: HOST, tag: tagged.map(|()| tag) };
                        // SAFETY: the caller's promise.
                        let done = unsafe { engine.submit(pe, job, issue) }.map(|()| tag);
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
                let mut side = self.host.lock();
                if side.poll_until(|side| !side.finished.is_empty())
                    && let Some(result) = take(&mut side.finished, tag)
                {
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
        for path in Path::ALL {
            let used = self.used.get(path);
            if used {
                match path {
                    Path::Host => self.host.lock().endpoint.fence(),
                    Path::Engine => self.driver.engine().fence(),
                }
            }
            self.fenced.set(path, used);
        }
    }

    /// Before an operation on `path`: what a fence closed on the other path has to be delivered.
    #[inline]
    fn keep_fence(&self, path: Path) -> Result<(), Error> {
        let other = if path == Path::Host { Path::Engine } else { Path::Host };
        if self.fenced.get(other) {
            self.drain(other)?;
            self.fenced.set(other, false);
        }
        Ok(())
    }

    /// Waits until everything that host threads have issued is delivered.
    pub fn quiet(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for path in Path::ALL {
            if self.used.get(path) {
                result = result.and(self.drain(path));
            }
            self.fenced.set(path, false);
        }
        result
    }

    fn drain(&self, path: Path) -> Result<(), Error> {
        let mut wait = self.wait();
        loop {
            let quiet = match path {
                Path::Host => {
                    let mut side = self.host.lock();
                    side.endpoint.start_quiet(HOST);
                    side.poll_until(|side| side.endpoint.is_quiet(HOST));
                    let error = side.endpoint.take_error(HOST);
                    self.note_quiet(path, error, side.endpoint.is_quiet(HOST))?
                }
                Path::Engine => {
                    let mut engine = self.driver.engine();
                    engine.start_quiet(HOST);
                    engine.poll();
                    let error = engine.take_error(HOST);
                    self.note_quiet(path, error, engine.is_quiet(HOST))?
                }
            };
            if quiet {
                return Ok(());
            }
            wait.step();
        }
    }

    /// Whether a path is quiet; written down while its lock is held, so that no operation comes in between.
    fn note_quiet(&self, path: Path, error: Option<Error>, quiet: bool) -> Result<bool, Error> {
        error.map_or(Ok(()), Err)?;
        if quiet {
            self.used.set(path, false);
        }
        Ok(quiet)
    }

    /// Waits until nothing of host threads is on its way: not even what no quiet waits for. At most `TIMEOUT_S`.
    pub fn settle(&self, patience: Duration) {
        let mut wait = self.wait();
        let deadline = Instant::now() + patience;
        while self.host.look_after() && Instant::now() < deadline {
            wait.step();
        }
    }

    /// Progress for a host thread that waits for its own operations.
    fn wait(&self) -> Wait<'_> {
        Wait::new(self, false)
    }

    /// Progress for a host thread that waits for memory to change.
    pub fn wait_for_memory(&self) -> Wait<'_> {
        Wait::new(self, self.driver.wakes())
    }

    /// Looks at memory that are worth their while between two polls.
    pub fn looks_per_poll(&self) -> u32 {
        if self.by_hardware { 8 } else { 1 }
    }

    /// Polls the host endpoint if that brings anything forward; nobody sends to a host endpoint first.
    #[inline]
    fn poll_host(&self, now_and_then: bool) -> usize {
        // What was posted without a completion may still be on its way out of the provider.
        let worthwhile = self.host.is_active() || (now_and_then && self.used.get(Path::Host));
        if worthwhile { self.host.try_lock().map_or(0, |mut side| side.poll()) } else { 0 }
    }

    /// Writes a byte that the peer waits for and that no quiet has to wait for.
    pub fn put_flag(&self, pe: Pe, dest: u64, value: u8) -> Result<(), Error> {
        self.driver.expect_traffic();
        self.keep_fence(Path::Host)?;
        let mut wait = self.wait();
        loop {
            let mut side = self.host.lock();
            self.used.set(Path::Host, true);
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
        let tag = {
            let mut side = self.host.lock();
            self.used.set(Path::Host, true);
            let tag = side.new_tag();
            side.endpoint.probe(pe, Issue { issuer: HOST, tag: Some(tag) })?;
            tag
        };
        let mut wait = self.wait();
        loop {
            let mut side = self.host.lock();
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
