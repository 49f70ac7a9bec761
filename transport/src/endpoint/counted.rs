//! Counted puts: the target counts their arrivals.
//!
//! A put-signal whose data does not fit into one message is two messages: the data, and behind it the signal, which the
//! target acknowledges. A counted put needs only one message and no acknowledgement. The fabric delivers a number with
//! the last bytes of a write, its *immediate*, and the number names the word in which to count.
//!
//! A put of several parts is still one message where a work request has room for them.
//!
//! Counted puts work only on rails where the target's CPU moves the bytes, and only for an endpoint with one rail:
//! after a failover the target could not detect a put that arrives twice.

use super::command::{Command, Issuer, OpHandle, Owner, Source};
use super::launch::Transfer;
use super::operations::Op;
use super::protocol::PostFlags;
use super::{Core, Endpoint, Role};
use crate::amo::AmoOp;
use crate::endpoint::command::Signal;
use crate::error::{Error, Operation, Result};
use crate::pe::Pe;
use crate::wire::Token;

/// A part of a counted put: bytes here, and their place at the target.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The symmetric offset.
    pub dest: u64,
    /// The bytes here.
    pub source: *const u8,
    /// Their number.
    pub len: u64,
}

/// The issuer of counted puts, for which no quiet waits. Flags are issuer 1.
const COUNTED: Issuer = 2;
/// The issuer of host threads on a host endpoint.
const HOST: Issuer = 0;
/// Size of a word in bytes.
const WORD: u64 = 8;

/// The word that an immediate names, if the immediate has this token.
pub(super) fn word_of(immediate: u64, token: Token) -> Option<u64> {
    token.open_immediate(immediate).map(|number| u64::from(number) * WORD)
}

impl Endpoint {
    /// Whether peers can count arrivals in the word at this symmetric offset. See [`Endpoint::put_counted`].
    #[must_use]
    pub fn counts_in(&self, word: u64) -> bool {
        self.core.counts_in(word).is_some()
    }

    /// Starts a write that adds 1 to a word of the target when all its bytes are visible there. A waiter at the target
    /// observes the arrival by the count. The caller learns from [`Endpoint::counted_have_left`] when the source may be
    /// used again. Fences do not order counted puts.
    ///
    /// # Safety
    /// As for [`Endpoint::submit`]; [`Source::Stable`] memory stays unchanged until it has left.
    ///
    /// # Errors
    /// As for [`Endpoint::submit`]; [`Error::Unsupported`] where [`Endpoint::counts_in`] returns `false`, and for 0
    /// bytes.
    pub unsafe fn put_counted(&mut self, pe: Pe, dest: u64, source: Source, len: u64, word: u64) -> Result<()> {
        let signal = Signal { offset: word, value: 1, op: AmoOp::Add };
        let mut command = Command::PutSignal { dest, source, len, signal };
        self.core.validate(pe, &command)?;
        let owner = Owner { issuer: COUNTED, tag: None };
        if pe == self.core.profile.me() {
            // SAFETY: the caller's promise; `validate` checked the ranges.
            unsafe { self.core.apply_here(&command, owner) };
            return Ok(());
        }
        self.need(pe)?;
        let Some(immediate) = self.core.immediate(pe, word).filter(|_| len > 0) else { return Err(uncounted(len)) };
        if !self.ready() {
            return Err(Error::Full { operation: Operation::PutSignal, pe });
        }
        let injected = matches!(source, Source::Copied(_)) && len <= self.core.profile.protocols().inject_max(0);
        if injected && self.inject_write(pe, 0, (dest, command.local(), len), Some(immediate)) {
            return Ok(());
        }
        let slot = self.core.keep_source(&mut command)?;
        let new = Op::new(Operation::PutSignal, pe, len, owner, self.core.clock.now(), slot);
        let op = self.core.start_counted(new);
        self.launch_data(
            pe,
            op,
            0,
            (dest, command.local(), len),
            Transfer::CountedWrite(immediate),
            PostFlags::AT_ONCE,
        );
        Ok(())
    }

    /// Starts writes of several parts to one PE, the last of which adds 1 to a word there: as
    /// [`Endpoint::put_counted`], for a caller that takes the operation's end. It ends when all parts have left.
    ///
    /// # Safety
    /// The sources stay valid and unchanged until then.
    ///
    /// # Errors
    /// As for [`Endpoint::put_counted`].
    pub unsafe fn put_parts_counted(&mut self, pe: Pe, parts: &[Part], word: u64, owner: Owner) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len).sum();
        let signal = Signal { offset: word, value: 1, op: AmoOp::Add };
        let command = |part: &Part| {
            let source = Source::Stable(part.source);
            Command::PutSignal { dest: part.dest, source, len: part.len, signal }
        };
        parts.iter().try_for_each(|part| self.core.validate(pe, &command(part)))?;
        let Some((last, before)) = parts.split_last().filter(|(last, _)| last.len > 0) else {
            return Err(uncounted(bytes));
        };
        if pe == self.core.profile.me() {
            for part in before {
                // SAFETY: the caller's promise; `validate` checked the ranges.
                unsafe { self.core.put_here(part.dest, Source::Stable(part.source), part.len) };
            }
            // SAFETY: as above.
            unsafe { self.core.apply_here(&command(last), owner) };
            return Ok(());
        }
        self.need(pe)?;
        let Some(immediate) = self.core.immediate(pe, word) else { return Err(uncounted(bytes)) };
        if !self.ready() {
            return Err(Error::Full { operation: Operation::PutSignal, pe });
        }
        // What was gathered before stays before it.
        self.send_outboxes();
        let op = Op::new(Operation::PutSignal, pe, bytes, owner, self.core.clock.now(), None);
        let op = self.core.ops.start(op, &mut self.core.issuers);
        let flags = PostFlags { coalesce: self.core.profile.caps(0).pieces > 1, ..PostFlags::AT_ONCE };
        // The operation is held during the posts, as in `launch_data`.
        self.core.ops.expect(op, 1);
        for part in before.iter().filter(|part| part.len > 0) {
            let data = (part.dest, part.source.cast_mut(), part.len);
            self.launch_data(pe, op, 0, data, Transfer::TransmittedWrite, flags);
        }
        let data = (last.dest, last.source.cast_mut(), last.len);
        self.launch_data(pe, op, 0, data, Transfer::CountedWrite(immediate), flags);
        self.post_backlog(0);
        self.core.release(op);
        Ok(())
    }

    /// Whether all counted puts have left, so that their sources may be used again.
    ///
    /// # Errors
    /// The first error since the last call. If the caller does not call it again, the next quiet returns the error.
    pub fn counted_have_left(&mut self) -> Result<bool> {
        let issuers = &mut self.core.issuers;
        issuers.take_error(COUNTED).map_or(Ok(issuers.none_of(COUNTED)), Err)
    }
}

impl Core {
    fn start_counted(&mut self, op: Op) -> OpHandle {
        if let Some(error) = self.counted_error_unasked() {
            self.issuers.keep_error(HOST, error);
        }
        self.ops.start(op, &mut self.issuers)
    }

    /// The error of earlier counted puts whose caller did not fetch it; `None` while any is under way.
    fn counted_error_unasked(&mut self) -> Option<Error> {
        if self.issuers.none_of(COUNTED) { self.issuers.take_error(COUNTED) } else { None }
    }

    /// The error that a quiet of this issuer returns in addition to errors of the issuer's own operations.
    pub(super) fn error_besides(&mut self, issuer: Issuer) -> Option<Error> {
        (issuer == HOST && self.profile.role() == Role::Host).then(|| self.counted_error_unasked()).flatten()
    }

    /// The immediate that names a word of a PE, if the word has one.
    fn immediate(&self, pe: Pe, word: u64) -> Option<u64> {
        self.counts_in(word).map(|number| self.profile.token_of(pe).immediate(number))
    }

    /// The number of a word in immediates. `None` if the word has none, or if the endpoint has several rails or one
    /// whose immediates have no room for the token.
    fn counts_in(&self, word: u64) -> Option<u32> {
        let [caps] = self.profile.all_caps() else { return None };
        // The last piece of a write carries the immediate, and must not arrive before the others.
        let fits = caps.software
            && caps.immediate >= size_of::<u64>()
            && caps.order.write_after_write
            && !self.profile.native_amo()
            && word.is_multiple_of(WORD);
        u32::try_from(word / WORD).ok().filter(|_| fits)
    }
}

#[cold]
fn uncounted(len: u64) -> Error {
    Error::Unsupported {
        what: format!("a put of {len} bytes whose arrival is counted"),
        by: "this endpoint".into(),
        remedy: "put with a signal".into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::endpoint::Policy;
    use crate::env::Settings;
    use crate::mock::{Fabric, FabricConfig};
    use crate::rail::Order;

    fn endpoint(role: Role, rails: usize, native: bool, config: FabricConfig) -> Endpoint {
        let fabric = Fabric::new(1, config);
        let rails = (0..rails).map(|_| fabric.open("mock").unwrap()).collect();
        Endpoint::new(role, 0, 2, rails, Policy::new(&Settings::default(), native)).unwrap()
    }

    #[test]
    fn only_what_need_not_be_repeated_or_proved_is_counted() {
        let plain = FabricConfig::default();
        let unordered = FabricConfig { order: Order { write_after_write: false, ..plain.order }, ..plain };
        assert!(endpoint(Role::Host, 1, false, plain).counts_in(8));
        for (why, other) in [
            ("another rail may have to do it again", endpoint(Role::Host, 2, false, plain)),
            ("NICs change words", endpoint(Role::Host, 1, true, FabricConfig { atomics: true, ..plain })),
            (
                "messages cost a NIC's target nothing",
                endpoint(Role::Host, 1, false, FabricConfig { software: false, ..plain }),
            ),
            ("the last piece may come first", endpoint(Role::Host, 1, false, unordered)),
        ] {
            assert!(!other.counts_in(8), "{why}");
        }
    }

    #[test]
    fn what_failed_before_is_no_error_of_what_comes_later() {
        let mut endpoint = endpoint(Role::Host, 1, false, FabricConfig::default());
        let fail = |endpoint: &mut Endpoint| {
            let error = Error::PeerLost { operation: Operation::PutSignal, pe: 1, why: String::new() };
            endpoint.core.issuers.keep_error(COUNTED, error);
        };
        let start = |endpoint: &mut Endpoint| {
            let owner = Owner { issuer: COUNTED, tag: None };
            endpoint.core.start_counted(Op::new(Operation::PutSignal, 1, 8, owner, 0, None))
        };
        fail(&mut endpoint);
        let first = start(&mut endpoint);
        assert!(matches!(endpoint.counted_have_left(), Ok(false)));
        assert!(endpoint.take_error(HOST).is_some(), "it was not reported");
        fail(&mut endpoint);
        let second = start(&mut endpoint);
        assert!(endpoint.counted_have_left().is_err(), "the first of them is still under way");
        assert!(
            matches!(endpoint.counted_have_left(), Ok(false)) && endpoint.take_error(HOST).is_none(),
            "it was reported"
        );
        [first, second].into_iter().for_each(|op| endpoint.core.finish(op));
        fail(&mut endpoint);
        assert!(endpoint.take_error(HOST).is_some(), "nobody has come to ask");
    }

    #[test]
    fn immediates_name_words_and_those_beyond_have_none() {
        let endpoint = endpoint(Role::Host, 1, false, FabricConfig::default());
        let last = u64::from(u32::MAX) * WORD;
        let of = |token: Token| endpoint.core.immediate(0, last).and_then(|immediate| word_of(immediate, token));
        assert_eq!(of(endpoint.core.profile.token_of(0)), Some(last));
        assert_eq!(of(Token::random().unwrap()), None);
        assert!(!endpoint.counts_in(last + WORD) && !endpoint.counts_in(12));
    }
}
