//! Submission: an operation is checked. One on this PE's own memory is done at once, any other is entered and launched.

use std::sync::atomic::{Ordering, fence};

use super::abilities::{AMO_LANE, How};
use super::command::{Command, Fetch, OpHandle, Owner, Priority, Source};
use super::operations::{Op, store};
use super::protocol::{Completion, Form, Gather};
use super::swap_loop::WordAmo;
use super::{Core, Endpoint};
use crate::amo::{self, AmoType};
use crate::bounce::Slot;
use crate::error::{Error, Operation, Result};
use crate::pe::Pe;

impl Endpoint {
    /// Starts an operation on `pe`'s symmetric memory.
    ///
    /// Returns its handle: 0 when it is already complete. An operation on this PE's own memory is done at once.
    ///
    /// # Safety
    /// [`Source::Stable`] memory stays valid and unchanged, and destinations of gets and fetched values stay valid and
    /// unused, until the operation is complete (it has been reported as finished, or a quiet of its issuer has ended).
    ///
    /// # Errors
    /// On an error nothing was started: the PE does not exist, the range is not inside of one segment, the word is not
    /// aligned, the operation is not defined on the type, the provider lacks it ([`Error::Unsupported`]), or there is
    /// no room ([`Error::Full`]; see [`Endpoint::ready`]).
    #[inline]
    pub unsafe fn submit(&mut self, pe: Pe, command: Command, owner: Owner) -> Result<OpHandle> {
        // SAFETY: the caller's promise.
        unsafe { self.submit_as(pe, command, owner, Priority::Urgent) }
    }

    /// As [`Endpoint::submit`], with a priority.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there. There is room for fewer bulk operations than for urgent ones.
    #[inline]
    pub unsafe fn submit_as(&mut self, pe: Pe, command: Command, owner: Owner, priority: Priority) -> Result<OpHandle> {
        if let (Command::Put { dest, source: Source::Stable(source), len }, None) = (command, owner.tag)
            && self.continue_unrecorded(pe, (dest, source, len))?
        {
            return Ok(0);
        }
        let completion = self.core.issuers.completion(owner);
        // SAFETY: the caller's promise.
        unsafe { self.submit_alone(pe, command, owner, priority, completion) }
    }

    /// As [`Endpoint::submit_as`], for a put-signal whose end the caller does not wait for. Where its data travels with
    /// the signal, the target acknowledges it at leisure, while there is room for many operations.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn submit_at_leisure(&mut self, pe: Pe, command: Command, owner: Owner) -> Result<OpHandle> {
        let travels_with_signal = command.bytes() <= self.message_limit();
        let completion = match travels_with_signal && self.core.ops.has_plenty_of_room() {
            true => Completion::Unsignaled,
            false => self.core.issuers.completion(owner),
        };
        // SAFETY: the caller's promise.
        unsafe { self.submit_alone(pe, command, owner, Priority::Urgent, completion) }
    }

    /// As [`Endpoint::submit_as`], for a read of a word. Where [`Endpoint::agent_reads_words`] holds it is a request to the
    /// target's agent: memory that is not registered there any more is then an error of this read alone, while it breaks
    /// a connection under a read of the rail.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn submit_to_agent(&mut self, pe: Pe, command: Command, owner: Owner) -> Result<OpHandle> {
        // SAFETY: the caller's promise.
        unsafe { self.submit_alone(pe, command, owner, Priority::Urgent, Completion::Batched) }
    }

    /// Adds a put that a later quiet completes to the open message to its PE, if there is one of such puts.
    #[inline(always)]
    fn continue_unrecorded(&mut self, pe: Pe, put: (u64, *const u8, u64)) -> Result<bool> {
        let form = Form::UnrecordedMessage;
        let Some(lane) = self.core.lanes.open_message(pe, form) else { return Ok(false) };
        self.core.regions.check(Operation::Put, pe, put.0, put.2)?;
        let continued = self.continue_puts(pe, lane, form, 0, put);
        if continued {
            self.core.issuers.continued();
        }
        Ok(continued)
    }

    /// As [`Endpoint::submit_as`], for an operation that looks for its lane and protocol.
    ///
    /// # Safety
    /// As there.
    unsafe fn submit_alone(
        &mut self,
        pe: Pe,
        mut command: Command,
        owner: Owner,
        priority: Priority,
        completion: Completion,
    ) -> Result<OpHandle> {
        self.core.validate(pe, &command)?;
        let (operation, native) = (command.operation(), self.core.profile.native_amo());
        // An empty transfer is done at once, too, because providers differ about empty writes (shm never completes
        // them).
        let nothing = matches!(command, Command::Put { len: 0, .. } | Command::Get { len: 0, .. });
        // With a provider's atomics even puts to this PE use the rail, because a fence orders them with AMOs there.
        let here = pe == self.core.profile.me()
            && (!native || matches!(command, Command::Get { .. }))
            && !matches!(command, Command::AgentRequest(_));
        if nothing || here {
            // SAFETY: the caller's promise about its buffers; `validate` checked ours.
            unsafe { self.core.apply_here(&command, owner) };
            return Ok(0);
        }
        self.need(pe)?;
        if !self.ready() || !self.core.segmentation.has_room(priority) {
            return Err(Error::Full { operation, pe });
        }
        if native {
            signal_as_amo(&mut command);
            self.check_native(&command)?;
        }
        let mut placed = self.core.lanes.place(pe, &command, completion, priority, &self.core.profile);
        if let Some((lane, protocol)) = &mut placed
            && let Form::UnrecordedMessage | Form::Inject = protocol.form
        {
            if self.launch_unrecorded(pe, *lane, &command, *protocol) {
                return Ok(0);
            }
            // The rail cannot take the write now, so it gets a record and waits.
            *protocol = self.core.lanes.select_recorded(pe, *lane, &command, completion, &self.core.profile);
        }
        let in_message = placed.is_some_and(|(_, protocol)| protocol.form == Form::Message);
        let slot = if in_message { None } else { self.core.keep_source(&mut command)? };
        let mut new = Op::new(operation, pe, command.bytes(), owner, self.core.clock.now(), slot);
        match command {
            Command::Amo { fetch: Fetch::Stored(to), ty, .. } => new.result = Some((to, ty.size())),
            Command::AgentRequest(_) => new.awaits_outcome = true,
            _ => {}
        }
        let op = self.core.ops.start(new, &mut self.core.issuers);
        match placed {
            Some((lane, protocol)) => self.launch(pe, &command, op, lane, protocol),
            None => self.core.lanes.defer(pe, op, command, priority),
        }
        Ok(op)
    }

    /// Makes an operation on the memory of the same PE a part of `op`, which ends when both have ended. A request that
    /// the issuer does not wait for alone needs no record of its own then. `owner` is that of `op`, which was started
    /// since the last poll. The endpoint is [ready](Endpoint::ready).
    ///
    /// Returns `false`, and starts nothing, where the operation cannot be a part of another. Then [`Endpoint::submit`]
    /// starts it by itself.
    ///
    /// # Safety
    /// As for [`Endpoint::submit`].
    ///
    /// # Errors
    /// As for [`Endpoint::submit`]; they concern this operation alone.
    #[inline]
    pub unsafe fn join(&mut self, op: OpHandle, pe: Pe, command: &Command, owner: Owner) -> Result<bool> {
        if let Command::Put { dest, source, len } = *command
            && let Some(lane) = self.core.lanes.open_message(pe, Form::Message)
        {
            self.core.regions.check(Operation::Put, pe, dest, len)?;
            if self.continue_puts(pe, lane, Form::Message, op, (dest, source.ptr(), len)) {
                self.core.issuers.appended(owner);
                return Ok(true);
            }
        }
        self.core.validate(pe, command)?;
        if !self.core.ops.goes_on(op, pe) {
            return Ok(false);
        }
        let placed = self.core.lanes.place(pe, command, Completion::Batched, Priority::Urgent, &self.core.profile);
        let Some((lane, protocol)) = placed.filter(|(_, protocol)| protocol.form == Form::Message) else {
            return Ok(false);
        };
        // Nothing but its acknowledgement may come back.
        match *command {
            Command::Put { len: 1.., .. } | Command::PutSignal { .. } | Command::Amo { fetch: Fetch::No, .. } => {}
            _ => return Ok(false),
        }
        self.core.issuers.appended(owner);
        self.launch_request(pe, lane, op, command, protocol.flags);
        if protocol.flags.gather == Gather::Yes {
            self.core.lanes.note_gathered(pe, lane, protocol.form);
        }
        Ok(true)
    }

    fn check_native(&self, command: &Command) -> Result<()> {
        let (ty, op, fetching) = match *command {
            Command::Amo { ty, op, fetch, .. } => (ty, op, fetch != Fetch::No),
            Command::PutSignal { signal, .. } => (AmoType::U64, signal.op, false),
            Command::Put { .. } | Command::Get { .. } | Command::AgentRequest(_) => return Ok(()),
        };
        if self.core.profile.abilities().how(ty, op, fetching) != How::Never {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{op:?} on {ty:?} as a native atomic"),
            by: self.core.profile.caps(AMO_LANE).provider.clone(),
            remedy: "set SYMRAIL_AMO_PATH=agent on all PEs".into(),
        })
    }
}

/// A signal without data becomes an AMO where providers perform both.
fn signal_as_amo(command: &mut Command) {
    if let Command::PutSignal { len: 0, signal, .. } = *command {
        let WordAmo { offset, ty, op, operand, compare } = WordAmo::of_signal(signal);
        *command = Command::Amo { offset, ty, op, operand, compare, fetch: Fetch::No };
    }
}

impl Core {
    #[inline(always)]
    pub(super) fn validate(&self, pe: Pe, command: &Command) -> Result<()> {
        if !self.lanes.accepts(pe) {
            return Err(self.lanes.refusal(command.operation(), pe));
        }
        match *command {
            Command::Put { dest, len, .. } => self.regions.check(Operation::Put, pe, dest, len),
            Command::Get { source, len, .. } => self.regions.check(Operation::Get, pe, source, len),
            Command::PutSignal { dest, len, signal, .. } => {
                self.regions.check(Operation::PutSignal, pe, dest, len)?;
                self.validate_word(Operation::PutSignal, pe, signal.offset, 8)
            }
            Command::Amo { offset, ty, op, .. } => {
                op.must_be_defined_on(ty)?;
                self.validate_word(Operation::Amo, pe, offset, ty.size())
            }
            Command::AgentRequest(ask) => self.validate_payload(ask.payload.len()),
        }
    }

    #[inline]
    fn validate_word(&self, operation: Operation, pe: Pe, offset: u64, size: usize) -> Result<()> {
        // A word has 4 or 8 bytes.
        if offset & (size as u64 - 1) != 0 {
            return Err(Error::Misaligned { operation, pe, offset, needed: size });
        }
        self.regions.check(operation, pe, offset, size as u64)
    }

    fn validate_payload(&self, bytes: usize) -> Result<()> {
        let limit = self.profile.max_payload();
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("a request with a payload of {bytes} bytes"),
            by: format!("messages, which hold {limit}"),
            remedy: "let the target read the bytes from the window".into(),
        })
    }

    /// Performs an operation on this PE's own memory.
    ///
    /// # Safety
    /// As for `submit`. The ranges were checked.
    pub(super) unsafe fn apply_here(&mut self, command: &Command, owner: Owner) {
        let mut value = 0;
        match *command {
            // SAFETY: the caller's promise.
            Command::Put { dest, source, len } => unsafe { self.put_here(dest, source, len) },
            Command::Get { source, dest, len } => {
                if let Some(from) = self.regions.local(source, len) {
                    // SAFETY: as above.
                    unsafe { dest.copy_from(from, len as usize) };
                }
            }
            Command::PutSignal { dest, source, len, signal } => {
                if let Some(word) = self.regions.local(signal.offset, 8) {
                    // SAFETY: as above; the signal word was checked to be aligned.
                    unsafe {
                        self.put_here(dest, source, len);
                        amo::apply(word, AmoType::U64, signal.op, signal.value, 0);
                    }
                }
            }
            Command::Amo { offset, ty, op, operand, compare, fetch } => {
                if let Some(word) = self.regions.local(offset, ty.size() as u64) {
                    // SAFETY: checked to be inside of a segment and aligned.
                    value = unsafe { amo::apply(word, ty, op, operand, compare) };
                }
                if let Fetch::Stored(to) = fetch {
                    // SAFETY: the caller vouches for the destination.
                    unsafe { store(to, ty.size(), value) };
                }
            }
            Command::AgentRequest(_) => {}
        }
        self.issuers.ended_at_once(owner, value);
    }

    /// Copies to this PE's own memory. Later stores become visible behind the bytes.
    ///
    /// # Safety
    /// The source is valid.
    pub(super) unsafe fn put_here(&self, dest: u64, source: Source, len: u64) {
        if let Some(to) = self.regions.local(dest, len)
            && len > 0
        {
            // SAFETY: both ranges are valid; `copy` allows them to overlap.
            unsafe { to.copy_from(source.ptr(), len as usize) };
        }
        fence(Ordering::SeqCst);
    }

    /// Copies a source that the caller may reuse at once.
    pub(super) fn keep_source(&mut self, command: &mut Command) -> Result<Option<Slot>> {
        let operation = command.operation();
        let (Command::Put { source, len, .. } | Command::PutSignal { source, len, .. }) = command else {
            return Ok(None);
        };
        let Source::Copied(from) = *source else { return Ok(None) };
        let limit = self.profile.max_payload();
        if *len as usize > limit {
            return Err(Error::Unsupported {
                what: format!("{operation} of a copied source of {len} bytes"),
                by: format!("the bounce buffers, which hold {limit}"),
                remedy: "pass a stable source and wait for the operation".into(),
            });
        }
        let Some(slot) = self.bounce.alloc(*len as usize) else {
            return Err(Error::Full { operation, pe: self.profile.me() });
        };
        let to = self.bounce.ptr(slot).as_ptr();
        // SAFETY: the slot has room for `len` bytes; the caller vouches for the source.
        unsafe { to.copy_from_nonoverlapping(from, *len as usize) };
        *source = Source::Stable(to);
        Ok(Some(slot))
    }
}
