//! One round: requests from channels are checked and started, rails polled, peers answered, and completions reported.

use symrail_transport::endpoint::command::{Command, Fetch, Finished, OpHandle, Owner, Priority, Signal, Source};
use symrail_transport::{Error, Operation, Pe, Result};

use super::{Engine, FIRST_CHANNEL, STAGE};
use crate::channel::{Consumer, Local, ReplyTo, Request};

/// Rounds without an event after which there is time for acknowledgements that no source waits for.
const IDLE_ROUNDS: u32 = 64;

/// Rounds after which gathered requests of devices are sent with a request for their acknowledgement, though more
/// follow.
const ROUNDS_PER_ASK: u64 = 4;

/// Requests taken from a channel in one round, so that the rails are polled between rounds.
const REQUESTS_PER_ROUND: usize = 128;

/// The limit of pending requests: more than the endpoint allows in flight. A request without room waits in its channel.
pub(super) const MAX_PENDING: usize = 4096;

/// Requests of a channel that are in flight as one operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    channel: u16,
    position: u64,
    /// The number of requests, at consecutive positions.
    count: u64,
    reply: Option<ReplyTo>,
    /// Whether the reply's value is in the request's scratch word, to which a get writes it.
    from_scratch: bool,
}

/// The operation that the last request of a channel joined, since the last poll, and its index in `pending`. Later
/// requests that no thread waits for alone join it, too.
#[derive(Debug, Clone, Copy)]
struct Run {
    op: OpHandle,
    key: usize,
}

impl Engine {
    /// Runs one round. Returns the number of events; 0 means that the engine is idle for now.
    pub fn poll(&mut self) -> usize {
        self.rounds += 1;
        let mut events = 0;
        self.awaited = false;
        for channel in 0..self.channels.len() {
            if self.channels[channel].is_ready() {
                events += self.take_requests(channel);
            }
        }
        let goes_on = !self.awaited
            && !self.rounds.is_multiple_of(ROUNDS_PER_ASK)
            && self.channels.iter().any(Consumer::is_ready);
        if goes_on {
            self.endpoint.expect_more(true);
        } else {
            self.endpoint.ask_for_acknowledgements();
        }
        events += self.endpoint.poll(&mut self.agent);
        self.endpoint.expect_more(false);
        while let Some(new) = self.agent.next_introduction() {
            if let Err(error) = self.endpoint.connect_introduced(new.pe, new.origin, &new.address) {
                tracing::warn!(pe = new.pe, %error, "an endpoint of a context cannot be answered");
            }
        }
        let mut reported = self.report_all();
        if let Some(stage) = &mut self.stage {
            events += stage.poll(&mut self.endpoint, &mut self.agent);
            reported |= self.report_all();
        }
        self.idle_rounds = if events > 0 { 0 } else { self.idle_rounds.saturating_add(1) };
        if self.agent.has_pending_replies() {
            self.agent.answer(&mut self.endpoint, self.idle_rounds >= IDLE_ROUNDS);
        }
        if reported || events > 0 {
            self.channels.iter_mut().for_each(Consumer::publish);
        }
        events + usize::from(reported)
    }

    /// Reports completions to waiting threads.
    fn report_all(&mut self) -> bool {
        let mut reported = false;
        loop {
            while let Some(finished) = self.endpoint.next_finished() {
                reported = true;
                match &mut self.stage {
                    Some(stage) if finished.issuer == STAGE => {
                        stage.operation_ended(&mut self.endpoint, &mut self.agent, finished);
                    }
                    _ => self.report(finished),
                }
            }
            let Some(finished) = self.stage.as_mut().and_then(|stage| stage.next_finished()) else { return reported };
            self.report(finished);
            reported = true;
        }
    }

    /// Takes and starts requests of a channel. It is a function of its own so that profiles tell what a request costs.
    #[inline(never)]
    fn take_requests(&mut self, channel: usize) -> usize {
        let (mut taken, mut run) = (0, None);
        // `poll` asks for acknowledgements when no more requests wait.
        self.endpoint.expect_more(true);
        while taken < REQUESTS_PER_ROUND && self.ready() && self.pending.len() < MAX_PENDING {
            let Some((position, request)) = self.channels[channel].next() else { break };
            taken += 1;
            let pending = Pending { channel: channel as u16, position, count: 1, reply: None, from_scratch: false };
            run = self.start(request, pending, run).unwrap_or_else(|(error, reply)| {
                self.fail(&Pending { reply, ..pending }, error);
                None
            });
        }
        taken
    }

    /// Starts an operation on `pe`'s symmetric memory, for any kind of memory at both ends. Returns its handle at the
    /// endpoint; 0 when it is already complete, or staged.
    ///
    /// # Safety
    /// As for [`submit`](symrail_transport::endpoint::Endpoint::submit).
    ///
    /// # Errors
    /// As for [`submit`](symrail_transport::endpoint::Endpoint::submit); a source in memory that the CPU cannot touch
    /// cannot be copied.
    pub unsafe fn submit(&mut self, pe: Pe, command: Command, owner: Owner) -> Result<OpHandle> {
        // SAFETY: the caller's promise.
        unsafe { self.submit_as(pe, command, owner, Priority::Urgent) }
    }

    /// As [`Engine::submit`], with a priority. Staged operations have none: they travel in fragments anyway.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub unsafe fn submit_as(&mut self, pe: Pe, command: Command, owner: Owner, priority: Priority) -> Result<OpHandle> {
        match &mut self.stage {
            // SAFETY: the caller's promise.
            None => unsafe { self.endpoint.submit_as(pe, command, owner, priority) },
            // SAFETY: the caller's promise.
            Some(stage) => unsafe { stage.submit(&mut self.endpoint, pe, command, owner) }.map(|()| 0),
        }
    }

    /// As [`Engine::submit`], for a put-signal whose end the caller does not wait for.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn submit_at_leisure(&mut self, pe: Pe, command: Command, owner: Owner) -> Result<OpHandle> {
        match &self.stage {
            // SAFETY: the caller's promise.
            None => unsafe { self.endpoint.submit_at_leisure(pe, command, owner) },
            // SAFETY: the caller's promise.
            Some(_) => unsafe { self.submit(pe, command, owner) },
        }
    }

    /// Whether there is room for another operation. If not, the caller polls.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.endpoint.ready() && self.stage.as_ref().is_none_or(|stage| stage.ready())
    }

    /// Starts a request, as a part of `run` if possible. Returns the run that the next request may join.
    fn start(
        &mut self,
        request: Request,
        mut pending: Pending,
        run: Option<Run>,
    ) -> Result<Option<Run>, (Error, Option<ReplyTo>)> {
        let (word, source);
        let (pe, command) = match request {
            Request::Nop => {
                self.channels[usize::from(pending.channel)].complete(pending.position);
                return Ok(None);
            }
            Request::Fence => {
                self.fence();
                self.channels[usize::from(pending.channel)].complete(pending.position);
                return Ok(None);
            }
            Request::Put { pe, offset, local, size, reply } => {
                pending.reply = reply;
                (word, source) = self.source(Operation::Put, pe, local, size).map_err(|e| (e, reply))?;
                (pe, Command::Put { dest: offset, source: source.unwrap_or(copied(&word)), len: size })
            }
            Request::P { pe, offset, width, value } => {
                word = value;
                (pe, Command::Put { dest: offset, source: copied(&word), len: width.bytes() as u64 })
            }
            Request::Get { pe, offset, local, size, reply } => {
                pending.reply = reply;
                let to = self.local(Operation::Get, pe, local, size).map_err(|e| (e, reply))?;
                (pe, Command::Get { source: offset, dest: to, len: size })
            }
            Request::G { pe, offset, width, reply } => {
                (pending.reply, pending.from_scratch) = (Some(reply), true);
                let key = self.pending.vacant_key();
                let word = self.scratch[key].get();
                // SAFETY: the word belongs to a request that is not under way yet.
                unsafe { word.write(0) };
                let dest = word.cast();
                (pe, Command::Get { source: offset, dest, len: width.bytes() as u64 })
            }
            Request::PutSignal { pe, offset, local, size, signal, op, value, reply } => {
                pending.reply = reply;
                (word, source) = self.source(Operation::PutSignal, pe, local, size).map_err(|e| (e, reply))?;
                let signal = Signal { offset: signal, value, op: op.into() };
                (pe, Command::PutSignal { dest: offset, source: source.unwrap_or(copied(&word)), len: size, signal })
            }
            Request::Amo { pe, offset, ty, op, operand, compare } => {
                (pe, Command::Amo { offset, ty, op, operand, compare, fetch: Fetch::No })
            }
            Request::FetchAmo { pe, offset, ty, op, operand, compare, reply } => {
                pending.reply = Some(reply);
                (pe, Command::Amo { offset, ty, op, operand, compare, fetch: Fetch::Returned })
            }
            Request::Invalid { w0, why } => {
                let why = format!("request {w0:#018x} at position {}: {why}", pending.position);
                return Err((Error::Malformed { what: "device request", pe: self.endpoint.me(), why }, None));
            }
        };
        let owner = |key: usize| Owner { issuer: FIRST_CHANNEL + pending.channel, tag: Some(key as u64) };
        if let (Some(run), None) = (run, pending.reply) {
            // SAFETY: as below.
            let joined = unsafe { self.endpoint.join(run.op, pe, &command, owner(run.key)) };
            if joined.map_err(|error| (error, None))? {
                self.pending[run.key].count += 1;
                return Ok(Some(run));
            }
        }
        self.awaited |= pending.reply.is_some();
        let key = self.pending.insert(pending);
        // SAFETY: sources and destinations were checked to be heap or registered memory, which stays mapped. The device
        // does not touch them until the request is complete, as its API demands. `word` is copied during the call.
        match unsafe { self.submit(pe, command, owner(key)) } {
            // No request joins an operation that is complete already, or staged.
            Ok(op) => Ok((op != 0 && pending.reply.is_none()).then_some(Run { op, key })),
            Err(error) => {
                self.pending.remove(key);
                Err((error, pending.reply))
            }
        }
    }

    /// The source of a device's put: bytes from its slot, or memory.
    fn source(&self, operation: Operation, pe: Pe, local: Local, size: u64) -> Result<(u64, Option<Source>)> {
        match local {
            Local::Value(bits) => Ok((bits, None)),
            _ => Ok((0, Some(Source::Stable(self.local(operation, pe, local, size)?)))),
        }
    }

    /// The address of a device's local buffer, which must be heap or registered memory from the first to the last byte.
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

    fn fail(&mut self, &Pending { channel, position, count, reply, .. }: &Pending, error: Error) {
        tracing::debug!(channel, position, count, %error, "a device's requests failed");
        self.device_error.get_or_insert(error);
        let channel = &mut self.channels[usize::from(channel)];
        let answered = reply.is_none_or(|to| channel.reply(to, 0, true));
        if !answered {
            tracing::debug!(position, "its reply entry does not exist");
        }
        channel.fail_run(position, count);
    }

    fn report(&mut self, finished: Finished) {
        if finished.issuer < STAGE {
            self.host_finished.push(finished);
            return;
        }
        let Some(pending) = self.pending.try_remove(finished.tag as usize) else { return };
        let channel = usize::from(pending.channel);
        match finished.result {
            Ok(value) => {
                let value = match pending.from_scratch {
                    // SAFETY: the request has ended, so its word is the engine's again.
                    true => unsafe { self.scratch[finished.tag as usize].get().read() },
                    false => value,
                };
                if let Some(to) = pending.reply
                    && !self.channels[channel].reply(to, value, false)
                {
                    let why = format!("reply entry {} does not exist", to.index);
                    let error = Error::Malformed { what: "device request", pe: self.endpoint.me(), why };
                    return self.fail(&Pending { reply: None, ..pending }, error);
                }
                self.channels[channel].complete_run(pending.position, pending.count);
            }
            Err(error) => self.fail(&pending, *error),
        }
    }
}

/// A source that is copied when the operation is submitted.
fn copied(word: &u64) -> Source {
    Source::Copied((&raw const *word).cast())
}
