//! Operations of a context on the wire: starting them, and waiting for those whose caller waits.

use symrail_proxy::HOST;
use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::command::{Command, Finished, Owner, Source};
use symrail_transport::{Error as Failure, Pe};

use super::WireContext;
use super::context::Path;
use super::host::InUse;
use super::wait::Wait;
use crate::error::{Error, Result};

/// An operation whose completion is tested individually.
pub(crate) struct Tracked {
    path: Path,
    tag: u64,
}

impl<'a> WireContext<'a> {
    /// A put whose source may be re-used when this returns.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes.
    pub unsafe fn put(&self, pe: Pe, dest: u64, source: *const u8, len: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.put_copied(pe, Command::Put { dest, source: Source::Stable(source), len }) }
    }

    /// Starts an operation that a later quiet completes.
    ///
    /// # Safety
    /// The operation's buffers stay valid, and sources unchanged, until then.
    pub unsafe fn nbi(&self, pe: Pe, command: Command) -> Result<()> {
        let path = self.path_of(&command);
        // SAFETY (both): the caller's promise.
        match command {
            // A thread of the peer may wait for a word to change.
            // SAFETY: see above.
            Command::Amo { .. } | Command::PutSignal { .. } => unsafe { self.start_and_leave(path, pe, &command) },
            // SAFETY: see above.
            _ => unsafe { self.start(path, pe, &command, false) }.map(drop),
        }
    }

    /// As [`WireContext::nbi`], for an operation whose completion is tested individually.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn track(&self, pe: Pe, command: Command) -> Result<Tracked> {
        let path = self.path_of(&command);
        // SAFETY: the caller's promise.
        let tag = unsafe { self.start(path, pe, &command, true) }?;
        if self.host().leaves_behind() {
            self.wire().driver().leave_behind();
        }
        Ok(Tracked { path, tag })
    }

    /// The outcome of an operation, once it has completed; must not be called after that.
    pub fn take_end(&self, Tracked { path, tag }: &Tracked) -> Option<Result<()>> {
        let finished = match path {
            Path::Host => self.host().lock().endpoint.take_finished(HOST, *tag),
            Path::Engine(thread) => {
                Finished::take(self.wire().drivers[*thread].engine().host_finished(), self.issuer(), *tag)
            }
        };
        finished.map(|finished| result(finished).map(drop))
    }

    /// The caller will not test the completion of an operation any more.
    pub fn abandon(&self, Tracked { path, tag }: &Tracked) {
        match path {
            Path::Host => self.host().lock().endpoint.abandon(HOST, *tag),
            Path::Engine(thread) => self.wire().drivers[*thread].engine().abandon(self.issuer(), *tag),
        }
    }

    /// Performs an operation and waits until it is complete. Returns the value of a fetching AMO.
    ///
    /// # Safety
    /// The operation's buffers are valid.
    #[inline]
    pub unsafe fn blocking(&self, pe: Pe, command: Command) -> Result<u64> {
        if let Command::Get { .. } = command {
            self.end_fences()?;
        }
        // SAFETY: the caller's promise, for as long as this call takes.
        unsafe { self.run(self.path_of(&command), pe, &command) }
    }

    /// A put or put-signal whose source may be re-used when this returns.
    ///
    /// # Safety
    /// As for [`WireContext::put`].
    #[inline]
    pub unsafe fn put_copied(&self, pe: Pe, mut command: Command) -> Result<()> {
        let path = self.path_of(&command);
        if let Command::Put { source, len, .. } | Command::PutSignal { source, len, .. } = &mut command
            && path == Path::Host
            && *len <= self.wire().copy_limit as u64
        {
            *source = Source::Copied(source.ptr());
            // SAFETY: the bytes are copied during the call.
            return unsafe { self.start_and_leave(path, pe, &command) };
        }
        // SAFETY: this call does not return before the operation is complete.
        unsafe { self.run(path, pe, &command) }.map(drop)
    }

    /// Starts an operation. The proxy thread will send operations that wait to be coalesced, since this thread may
    /// compute from now on.
    unsafe fn start_and_leave(&self, path: Path, pe: Pe, command: &Command) -> Result<()> {
        // SAFETY: the caller's promise.
        let done = unsafe { self.start(path, pe, command, false) }.map(drop);
        if self.host().leaves_behind() {
            self.wire().driver().leave_behind();
        }
        done
    }

    /// Submits to a path, freeing slots as needed. Returns the operation's tag there.
    #[inline(always)]
    unsafe fn start(&self, path: Path, pe: Pe, command: &Command, tagged: bool) -> Result<u64> {
        // SAFETY: the caller's promise.
        unsafe {
            match path {
                Path::Host => self.start_on_host(pe, command, tagged).map(|(_, tag)| tag),
                Path::Engine(thread) => self.start_on_engine(thread, pe, command, tagged),
            }
        }
    }

    /// Submits to the host endpoint; the caller may continue to use it without taking its lock again.
    #[inline(always)]
    unsafe fn start_on_host(&self, pe: Pe, command: &Command, tagged: bool) -> Result<(InUse<'a>, u64)> {
        self.wire().driver().expect_traffic();
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
        self.note_use(Path::Host);
        let tag = side.new_tag();
        let owner = Owner { issuer: HOST, tag: tagged.then_some(tag) };
        // SAFETY: the caller's promise.
        unsafe { side.endpoint.submit(pe, *command, owner) }?;
        Ok((side, tag))
    }

    unsafe fn start_on_engine(&self, thread: usize, pe: Pe, command: &Command, tagged: bool) -> Result<u64> {
        let (driver, path) = (&self.wire().drivers[thread], Path::Engine(thread));
        driver.expect_traffic();
        self.keep_fence(path)?;
        Wait::for_engine(*self, thread).until(|| {
            let tag = self.host().lock().new_tag();
            let mut engine = driver.engine_to_issue();
            if !engine.ready() {
                engine.poll();
                return Ok(None);
            }
            self.note_use(path);
            let owner = Owner { issuer: self.issuer(), tag: tagged.then_some(tag) };
            // SAFETY: the caller's promise.
            match unsafe { engine.submit_as(pe, *command, owner, self.priority()) } {
                // There is room for fewer bulk operations.
                Err(Failure::Full { .. }) => {
                    engine.poll();
                    Ok(None)
                }
                done => done.map(|_| Some(tag)).map_err(Error::from),
            }
        })
    }

    #[inline]
    unsafe fn run(&self, path: Path, pe: Pe, command: &Command) -> Result<u64> {
        // SAFETY (both): the caller's promise; this call waits for the completion.
        match path {
            Path::Host => {
                // SAFETY: see above.
                let (side, tag) = unsafe { self.start_on_host(pe, command, true) }?;
                self.end_on_host(side, tag)
            }
            Path::Engine(thread) => {
                // SAFETY: see above.
                let tag = unsafe { self.start_on_engine(thread, pe, command, true) }?;
                let mut wait = Wait::for_engine(*self, thread);
                loop {
                    let mut engine = self.wire().drivers[thread].engine();
                    engine.poll();
                    if let Some(finished) = Finished::take(engine.host_finished(), self.issuer(), tag) {
                        return result(finished);
                    }
                    drop(engine);
                    if let Err(interrupted) = wait.step() {
                        self.wire().drivers[thread].engine().abandon(self.issuer(), tag);
                        return Err(interrupted);
                    }
                }
            }
        }
    }

    /// Waits for the completion of an operation on the host endpoint; the caller holds its lock.
    #[inline(always)]
    fn end_on_host(&self, mut side: InUse<'a>, tag: u64) -> Result<u64> {
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

    /// Starts an operation on the host endpoint as soon as it has a free slot.
    pub(super) fn when_there_is_room(&self, start: impl Fn(&mut Endpoint) -> Result<(), Failure>) -> Result<()> {
        self.wire().driver().expect_traffic();
        self.keep_fence(Path::Host)?;
        self.wait().until(|| {
            let mut side = self.host().lock();
            self.note_use(Path::Host);
            match start(&mut side.endpoint) {
                Err(Failure::Full { .. }) => {
                    side.poll();
                    Ok(None)
                }
                done => Ok(Some(done?)),
            }
        })
    }

    /// Starts to connect the host endpoint and the proxy threads' endpoints to a peer; a quiet waits until it has
    /// answered.
    pub fn start_to_connect(&self, pe: Pe) -> Result<()> {
        self.when_there_is_room(|endpoint| endpoint.probe(pe, Owner { issuer: HOST, tag: None }))?;
        for (thread, driver) in self.wire().drivers.iter().enumerate() {
            Wait::for_engine(*self, thread).until(|| {
                let mut engine = driver.engine();
                self.note_use(Path::Engine(thread));
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

    /// Probes `pe`'s agent; an error after `TIMEOUT_S` without a keepalive.
    pub fn probe(&self, pe: Pe) -> Result<()> {
        let mut side = self.host().lock();
        self.note_use(Path::Host);
        let tag = side.new_tag();
        side.endpoint.probe(pe, Owner { issuer: HOST, tag: Some(tag) })?;
        self.end_on_host(side, tag).map(drop)
    }
}

fn result(finished: Finished) -> Result<u64> {
    finished.result.map_err(|error| Error::from(*error))
}
