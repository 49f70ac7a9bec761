//! The engine: takes requests from channels, drives the proxy endpoint, runs the target agent.
//!
//! One [`Engine::poll`] is one round: a bounded number of requests from each channel, then the rails, then answers
//! to peers, then what finished is told to whoever waits. A round never blocks and never allocates once warm.

use symrail_transport::endpoint::Endpoint;
use symrail_transport::endpoint::job::{Fetch, Finished, Issue, Issuer, Job, Signal, Source};
use symrail_transport::rail::Export;
use symrail_transport::region::{Regions, Segment};
use symrail_transport::wire::MAX_ORIGINS;
use symrail_transport::{Error, Operation, Pe, Result};

use symrail_heap::Mover;

use crate::agent::Agent;
use crate::channel::{Consumer, Local, ReplyTo, Request};
use crate::stage::{Stage, WINDOW_ID};

/// Requests taken from a channel in one round, so that the rails are polled in between.
const REQUESTS_PER_ROUND: usize = 32;
/// More than the endpoint lets be in flight; a request that finds no place waits in its channel.
const MAX_PENDING: usize = 4096;

/// Rounds without an event after which there is time for acknowledgements that nobody waits for.
const IDLE_ROUNDS: u32 = 64;

/// The issuer of operations that host threads hand to the engine; context `i` issues as `HOST + i`, the default one being 0.
pub const HOST: Issuer = 0;
/// The issuer of what staging needs: behind as many contexts as have endpoints of their own.
const STAGE: Issuer = MAX_ORIGINS as Issuer;
/// Channel `i` issues as `FIRST_CHANNEL + i`.
const FIRST_CHANNEL: Issuer = STAGE + 1;

/// A channel's request that is in flight.
#[derive(Debug, Clone, Copy)]
struct Pending {
    channel: u16,
    position: u64,
    reply: Option<ReplyTo>,
    /// The reply's value is what a get brought into the request's scratch word.
    from_scratch: bool,
}

/// Drives one PE's proxy endpoint. Owned by one thread at a time: the proxy thread, or a host thread that waits.
pub struct Engine {
    endpoint: Endpoint,
    agent: Agent,
    /// For memory that rails do not reach.
    stage: Option<Box<Stage>>,
    channels: Vec<Consumer>,
    pending: slab::Slab<Pending>,
    /// One word per pending request, for values that travel in the reply.
    scratch: Box<[u64]>,
    host_finished: Vec<Finished>,
    device_error: Option<Error>,
    rounds: u64,
    idle_rounds: u32,
}

impl Engine {
    /// An engine over a connected proxy endpoint of PE `me`.
    #[must_use]
    pub fn new(endpoint: Endpoint, me: Pe, n_pes: u32) -> Self {
        let agent = Agent::new(me, n_pes, endpoint.caps().len());
        Engine {
            endpoint,
            agent,
            stage: None,
            channels: Vec::new(),
            pending: slab::Slab::with_capacity(MAX_PENDING),
            scratch: vec![0; MAX_PENDING].into(),
            host_finished: Vec::with_capacity(64),
            device_error: None,
            rounds: 0,
            idle_rounds: 0,
        }
    }

    /// The endpoint, for what it knows. Operations are started by [`Engine::submit`].
    pub fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The addresses of the endpoint's rails.
    #[must_use]
    pub fn addresses(&self) -> Vec<Vec<u8>> {
        self.endpoint.addresses()
    }

    /// The target agent's counters: requests applied and refused.
    #[must_use]
    pub fn agent_counts(&self) -> (u64, u64) {
        self.agent.counts()
    }

    /// Adds a channel.
    pub fn add_channel(&mut self, consumer: Consumer) {
        self.channels.push(consumer);
    }

    /// The channels' consuming ends.
    #[must_use]
    pub fn channels(&self) -> &[Consumer] {
        &self.channels
    }

    /// Registers a segment of this PE with all rails and opens it to requests of peers.
    ///
    /// # Safety
    /// The segment stays mapped as long as the engine lives.
    ///
    /// # Errors
    /// What the provider says.
    pub unsafe fn register(&mut self, segment: Segment) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise.
        let card = unsafe { self.endpoint.register(segment) }?;
        self.agent.add_segment(segment);
        Ok(card)
    }

    /// Undoes [`Engine::register`] and [`Engine::add_staged_segment`]. Peers' operations on the segment must have ended.
    pub fn deregister(&mut self, id: u32) {
        self.agent.remove_segment(id);
        self.endpoint.deregister(id);
        if let Some(stage) = &mut self.stage {
            stage.remove_segment(id);
        }
    }

    /// From now on operations on memory that rails and the CPU do not reach go through the mover's window. The card goes to
    /// [`Engine::learn_window`] on all PEs; all of them stage, or none.
    ///
    /// # Errors
    /// The window is too small, or what the provider says about registering it.
    pub fn stage(&mut self, mover: Box<dyn Mover>) -> Result<Vec<u8>> {
        let stage = Stage::new(mover, STAGE, self.endpoint.n_pes(), self.endpoint.policy().timeout_s)?;
        // SAFETY: the window lives as long as the mover, which the engine drops after the endpoint.
        let card = unsafe { self.endpoint.register(stage.window()) }?;
        self.agent.stage();
        // What takes its target longer is answered once.
        self.endpoint.forgo_failover();
        self.stage = Some(Box::new(stage));
        Ok(card)
    }

    /// Takes in what all PEs said about their windows.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn_window(&mut self, cards: &[Vec<u8>]) -> Result<()> {
        self.endpoint.learn(WINDOW_ID, cards)
    }

    /// Adds a segment of symmetric memory that only the mover reaches; every PE has one at the same offset. Before
    /// [`Engine::stage`] nothing happens.
    pub fn add_staged_segment(&mut self, segment: Segment) {
        if let Some(stage) = &mut self.stage {
            stage.add_segment(segment);
        }
    }

    /// Lets rails move what is large to and from a staged segment themselves, if all of them reach it. The card goes to
    /// [`Engine::learn_direct`] on all PEs.
    ///
    /// # Safety
    /// As for [`Engine::register`].
    ///
    /// # Errors
    /// What the first rail says that does not.
    pub unsafe fn register_direct(&mut self, segment: Segment, export: Export<'_>) -> Result<Vec<u8>> {
        // SAFETY: the caller's promise. The agent is not told, since the CPU does not touch it.
        unsafe { self.endpoint.register_device(segment, export) }
    }

    /// Takes in what all PEs said about a segment that all their rails reach; or, where one has nothing to say (an empty card), lets this
    /// PE's rails forget theirs.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn learn_direct(&mut self, id: u32, cards: &[Vec<u8>]) -> Result<bool> {
        let all = cards.iter().all(|card| !card.is_empty());
        if all {
            self.endpoint.learn(id, cards)?;
        } else {
            self.endpoint.deregister(id);
        }
        Ok(all)
    }

    /// Takes in where this PE's device has mapped a staged segment of each PE, 0 where it has not: from now on its mover copies there and
    /// from there what lies in staged memory of this PE. Before [`Engine::stage`] nothing happens.
    ///
    /// # Errors
    /// The mover cannot copy there.
    pub fn map_peers(&mut self, segment: &Segment, bases: Vec<usize>) -> Result<()> {
        let me = self.endpoint.me();
        self.stage.as_mut().map_or(Ok(()), |stage| stage.map_peers(me, segment, bases))
    }

    /// Makes what NICs have written to staged memory visible to its device, before something else tells of it.
    pub fn see_writes(&mut self) {
        if let Some(stage) = &mut self.stage {
            stage.see_writes();
        }
    }

    /// Takes in that `pe` has laid out `len` bytes of memory at `offset`, apart from those of others, which only its mover reaches.
    ///
    /// # Errors
    /// Nothing is staged here; no such PE.
    pub fn learn_staged(&mut self, pe: Pe, offset: u64, len: u64) -> Result<()> {
        let n_pes = self.endpoint.n_pes();
        let Some(stage) = &mut self.stage else {
            return Err(Error::Unsupported {
                what: format!("memory of PE {pe} that neither rails nor the CPU reach"),
                by: "a PE that stages nothing".into(),
                remedy: "run on a machine with a GPU, or use a heap in host memory".into(),
            });
        };
        stage.learn_apart((pe, n_pes), offset, len)
    }

    /// Whether a segment of `pe` that begins at `offset`, apart from those of others, is known.
    #[must_use]
    pub fn knows_apart(&self, pe: Pe, offset: u64) -> bool {
        let knows = |regions: &Regions| regions.knows_apart(pe, offset);
        knows(self.endpoint.regions()) || self.stage.as_ref().is_some_and(|stage| knows(stage.memory()))
    }

    /// Forgets it, of whatever kind it is.
    pub fn forget_apart(&mut self, pe: Pe, offset: u64) {
        self.endpoint.forget_apart(pe, offset);
        if let Some(stage) = &mut self.stage {
            stage.forget_apart(pe, offset);
        }
    }

    /// Adds a local buffer that only the mover reaches, for use as a source or destination. `id` is no other buffer's.
    /// Before [`Engine::stage`] nothing happens.
    pub fn add_staged_buffer(&mut self, base: *mut u8, len: usize, id: u32) {
        if let Some(stage) = &mut self.stage {
            stage.add_buffer(base, len, id);
        }
    }

    /// Forgets the staged buffer that starts at `base`; unknown ones are ignored. Nothing may be using it.
    pub fn remove_staged_buffer(&mut self, base: *const u8) {
        if let Some(stage) = &mut self.stage {
            stage.remove_buffer(base);
        }
    }

    /// Starts an operation on `pe`'s symmetric memory, whatever memory it and the local buffer are.
    ///
    /// # Safety
    /// As for [`Endpoint::submit`].
    ///
    /// # Errors
    /// As for [`Endpoint::submit`]; of a source in memory that the CPU cannot touch no copy can be kept.
    pub unsafe fn submit(&mut self, pe: Pe, job: Job, issue: Issue) -> Result<()> {
        match &mut self.stage {
            // SAFETY: the caller's promise.
            None => unsafe { self.endpoint.submit(pe, job, issue) }.map(drop),
            // SAFETY: the caller's promise.
            Some(stage) => unsafe { stage.submit(&mut self.endpoint, pe, job, issue) },
        }
    }

    /// Whether there is room for another operation; if not, poll.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.endpoint.ready() && self.stage.as_ref().is_none_or(|stage| stage.ready())
    }

    /// Orders what comes after it behind what came before it, per destination. Returns at once.
    pub fn fence(&mut self) {
        self.endpoint.fence();
        if let Some(stage) = &mut self.stage {
            stage.fence();
        }
    }

    /// As [`Endpoint::start_quiet`].
    pub fn start_quiet(&mut self, issuer: Issuer) {
        self.endpoint.start_quiet(issuer);
    }

    /// Whether everything that `issuer` issued has been delivered (or failed).
    #[must_use]
    pub fn is_quiet(&self, issuer: Issuer) -> bool {
        self.endpoint.is_quiet(issuer) && self.stage.as_ref().is_none_or(|stage| stage.is_quiet(issuer))
    }

    /// The first error since it was last asked for, of operations without a tag.
    pub fn take_error(&mut self, issuer: Issuer) -> Option<Error> {
        let staged = self.stage.as_mut().and_then(|stage| stage.take_error(issuer));
        self.endpoint.take_error(issuer).or(staged)
    }

    /// Tells the time in whole seconds; fails operations that are too old. See [`Endpoint::tick`].
    pub fn tick(&mut self, now_s: u32) {
        self.endpoint.tick(now_s);
        if let Some(stage) = &mut self.stage {
            stage.tick(now_s);
        }
    }

    /// The first failure of a device's request since it was last asked for.
    pub fn take_device_error(&mut self) -> Option<Error> {
        self.device_error.take()
    }

    /// What has finished of the host threads' tagged operations.
    pub fn host_finished(&mut self) -> &mut Vec<Finished> {
        &mut self.host_finished
    }

    /// Rounds so far.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// One round. Returns how much happened; 0 means that the engine is idle for now.
    pub fn poll(&mut self) -> usize {
        self.rounds += 1;
        let mut events = 0;
        for channel in 0..self.channels.len() {
            if self.channels[channel].is_ready() {
                events += self.take_requests(channel);
            }
        }
        events += self.endpoint.poll(&mut self.agent);
        while let Some(new) = self.agent.next_introduction() {
            if let Err(error) = self.endpoint.connect_introduced(new.pe, new.origin, &new.address) {
                tracing::warn!(pe = new.pe, %error, "an endpoint of a context cannot be answered");
            }
        }
        let mut told = self.tell_all();
        if let Some(stage) = &mut self.stage {
            events += stage.poll(&mut self.endpoint, &mut self.agent);
            told |= self.tell_all();
        }
        self.idle_rounds = if events > 0 { 0 } else { self.idle_rounds.saturating_add(1) };
        if self.agent.owes() {
            self.agent.answer(&mut self.endpoint, self.idle_rounds >= IDLE_ROUNDS);
        }
        if told || events > 0 {
            self.channels.iter_mut().for_each(Consumer::publish);
        }
        events + usize::from(told)
    }

    /// Tells whoever waits what has finished.
    fn tell_all(&mut self) -> bool {
        let mut told = false;
        loop {
            while let Some(finished) = self.endpoint.next_finished() {
                told = true;
                match &mut self.stage {
                    Some(stage) if finished.issuer == STAGE => {
                        stage.came(&mut self.endpoint, &mut self.agent, finished);
                    }
                    _ => self.tell(finished),
                }
            }
            let Some(finished) = self.stage.as_mut().and_then(|stage| stage.next_finished()) else { return told };
            self.tell(finished);
            told = true;
        }
    }

    /// Prepares to sleep; `false` when there is something to do. [`Engine::wake`] ends it in either case.
    pub fn prepare_sleep(&mut self) -> bool {
        self.agent.answer(&mut self.endpoint, true);
        let mut quiet = !self.agent.owes() && self.stage.as_ref().is_none_or(|stage| !stage.is_busy());
        for channel in &mut self.channels {
            quiet &= channel.prepare_sleep();
        }
        quiet && self.endpoint.arm()
    }

    /// Ends what [`Engine::prepare_sleep`] began.
    pub fn wake(&mut self) {
        self.channels.iter_mut().for_each(Consumer::wake);
    }

    fn take_requests(&mut self, channel: usize) -> usize {
        let mut taken = 0;
        while taken < REQUESTS_PER_ROUND && self.ready() && self.pending.len() < MAX_PENDING {
            let Some((position, request)) = self.channels[channel].next() else { break };
            taken += 1;
            let pending = Pending { channel: channel as u16, position, reply: None, from_scratch: false };
            if let Err((error, reply)) = self.start(request, pending) {
                self.fail(channel, position, reply, error);
            }
        }
        taken
    }

    fn start(&mut self, request: Request, mut pending: Pending) -> Result<(), (Error, Option<ReplyTo>)> {
        let (word, source);
        let (pe, job) = match request {
            Request::Nop => {
                self.channels[usize::from(pending.channel)].complete(pending.position);
                return Ok(());
            }
            Request::Fence => {
                self.fence();
                self.channels[usize::from(pending.channel)].complete(pending.position);
                return Ok(());
            }
            Request::Put { pe, offset, local, size, reply } => {
                pending.reply = reply;
                (word, source) = self.source(Operation::Put, pe, local, size).map_err(|e| (e, reply))?;
                (pe, Job::Put { dest: offset, source: source.unwrap_or(copied(&word)), len: size })
            }
            Request::P { pe, offset, width, value } => {
                word = value;
                (pe, Job::Put { dest: offset, source: copied(&word), len: width.bytes() as u64 })
            }
            Request::Get { pe, offset, local, size, reply } => {
                pending.reply = reply;
                let to = self.local(Operation::Get, pe, local, size).map_err(|e| (e, reply))?;
                (pe, Job::Get { source: offset, dest: to, len: size })
            }
            Request::G { pe, offset, width, reply } => {
                (pending.reply, pending.from_scratch) = (Some(reply), true);
                let key = self.pending.vacant_key();
                self.scratch[key] = 0;
                let dest = self.scratch.as_mut_ptr().wrapping_add(key).cast();
                (pe, Job::Get { source: offset, dest, len: width.bytes() as u64 })
            }
            Request::PutSignal { pe, offset, local, size, signal, op, value, reply } => {
                pending.reply = reply;
                (word, source) = self.source(Operation::PutSignal, pe, local, size).map_err(|e| (e, reply))?;
                let signal = Signal { offset: signal, value, op: op.into() };
                (pe, Job::PutSignal { dest: offset, source: source.unwrap_or(copied(&word)), len: size, signal })
            }
            Request::Amo { pe, offset, ty, op, operand, compare } => {
                (pe, Job::Amo { offset, ty, op, operand, compare, fetch: Fetch::No })
            }
            Request::FetchAmo { pe, offset, ty, op, operand, compare, reply } => {
                pending.reply = Some(reply);
                (pe, Job::Amo { offset, ty, op, operand, compare, fetch: Fetch::Told })
            }
            Request::Invalid { w0, why } => {
                let why = format!("request {w0:#018x} at position {}: {why}", pending.position);
                return Err((Error::Malformed { what: "device request", pe: self.endpoint.me(), why }, None));
            }
        };
        let tag = self.pending.insert(pending) as u64;
        let issue = Issue { issuer: FIRST_CHANNEL + pending.channel, tag: Some(tag) };
        // SAFETY: sources and destinations were checked to be heap or registered memory, which stays mapped; the device
        // keeps its hands off them until the request is complete, as its API says; `word` is copied during the call.
        let started = unsafe { self.submit(pe, job, issue) };
        started.map_err(|error| {
            self.pending.remove(tag as usize);
            (error, pending.reply)
        })
    }

    /// The source of a device's put: bytes from its slot, or memory.
    fn source(&self, operation: Operation, pe: Pe, local: Local, size: u64) -> Result<(u64, Option<Source>)> {
        match local {
            Local::Value(bits) => Ok((bits, None)),
            _ => Ok((0, Some(Source::Stable(self.local(operation, pe, local, size)?)))),
        }
    }

    /// The address of a device's local buffer, which must be heap or registered memory from first to last byte.
    fn local(&self, operation: Operation, pe: Pe, local: Local, size: u64) -> Result<*mut u8> {
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        let known = [Some(self.endpoint.regions()), self.stage.as_ref().map(|stage| stage.memory())];
        let mut known = known.into_iter().flatten();
        match local {
            Local::Symmetric(offset) => {
                let me = self.endpoint.me();
                let outside = Error::OutOfSegment { operation, pe: me, offset, bytes: size };
                known.find_map(|regions| regions.local(offset, size)).ok_or(outside)
            }
            Local::Value(bits) => Err(Error::LocalBuffer { operation, pe, address: bits, bytes: size }),
            Local::Address(address) => {
                let ptr = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
                if known.any(|regions| regions.owns(ptr, size)) {
                    return Ok(ptr);
                }
                Err(Error::LocalBuffer { operation, pe, address, bytes: size })
            }
        }
    }

    fn fail(&mut self, channel: usize, position: u64, reply: Option<ReplyTo>, error: Error) {
        tracing::debug!(channel, position, %error, "a device request failed");
        self.device_error.get_or_insert(error);
        let channel = &mut self.channels[channel];
        let answered = reply.is_none_or(|to| channel.reply(to, 0, true));
        if !answered {
            tracing::debug!(position, "its reply entry does not exist");
        }
        channel.fail(position);
    }

    fn tell(&mut self, finished: Finished) {
        if finished.issuer < STAGE {
            self.host_finished.push(finished);
            return;
        }
        let Some(pending) = self.pending.try_remove(finished.tag as usize) else { return };
        let channel = usize::from(pending.channel);
        match finished.result {
            Ok(value) => {
                let value = if pending.from_scratch { self.scratch[finished.tag as usize] } else { value };
                if let Some(to) = pending.reply
                    && !self.channels[channel].reply(to, value, false)
                {
                    let why = format!("reply entry {} does not exist", to.index);
                    let error = Error::Malformed { what: "device request", pe: self.endpoint.me(), why };
                    return self.fail(channel, pending.position, None, error);
                }
                self.channels[channel].complete(pending.position);
            }
            Err(error) => self.fail(channel, pending.position, pending.reply, *error),
        }
    }
}

/// A source that is copied when the operation is submitted.
fn copied(word: &u64) -> Source {
    Source::Copied((&raw const *word).cast())
}
