//! Puts whose arrival the target counts.
//!
//! A put-signal is two messages where its data is more than one holds: the data, and the signal behind it, which the
//! target acknowledges. Who only counts what has arrived needs less: the fabric hands the target a number with the last
//! bytes of a write, its *immediate*, and the number says in which word to count. One message, and nothing comes back.
//!
//! For rails on which the target's CPU moves the bytes, and where there is one of them: nothing here would be noticed
//! if another had to do it again.

use super::command::{Command, Issuer, OpHandle, Owner, Source};
use super::launch::Transfer;
use super::operations::Op;
use super::{Core, Endpoint, Role};
use crate::amo::AmoOp;
use crate::endpoint::command::Signal;
use crate::error::{Error, Operation, Result};
use crate::pe::Pe;
use crate::wire::Token;

/// Their issuer: no quiet waits for them. Flags are issuer 1.
const COUNTED: Issuer = 2;
/// Host threads, on a host endpoint.
const HOST: Issuer = 0;
/// Words have 8 bytes.
const WORD: u64 = 8;

/// The word that an immediate to the endpoint with this token names, if it has that token.
pub(super) fn word_of(immediate: u64, token: Token) -> Option<u64> {
    token.open_immediate(immediate).map(|number| u64::from(number) * WORD)
}

impl Endpoint {
    /// Whether peers can count arrivals in the word at this symmetric offset: see [`Endpoint::put_counted`].
    #[must_use]
    pub fn counts_in(&self, word: u64) -> bool {
        self.core.counts_in(word).is_some()
    }

    /// Starts to write, and to add 1 to a word of the target when all of it is visible there. That it has arrived is
    /// noticed by whoever waits for the count; that it has left, by [`Endpoint::counted_have_left`]. Fences do not
    /// order it.
    ///
    /// # Safety
    /// As for [`Endpoint::submit`]; [`Source::Stable`] memory stays as it is until it has left.
    ///
    /// # Errors
    /// As for [`Endpoint::submit`]; [`Error::Unsupported`] where [`Endpoint::counts_in`] says no, and for 0 bytes.
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
        if matches!(source, Source::Copied(_)) && self.quick_write(pe, dest, command.local(), len, Some(immediate)) {
            return Ok(());
        }
        let slot = self.core.keep_source(&mut command)?;
        let new = Op::new(Operation::PutSignal, pe, len, owner, self.core.clock.now(), slot);
        let op = self.core.start_counted(new);
        self.launch_data(pe, op, 0, (dest, command.local(), len), Transfer::CountedPut(immediate), false);
        Ok(())
    }

    /// Whether all that was put so has left, so that its sources may be used again.
    ///
    /// # Errors
    /// The first that failed since this was last asked. What fails when nobody asks any more is the next quiet's to
    /// tell.
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

    /// The error of one of those before, if none is under way: their caller did not come to ask.
    fn counted_error_unasked(&mut self) -> Option<Error> {
        if self.issuers.none_of(COUNTED) { self.issuers.take_error(COUNTED) } else { None }
    }

    /// What a quiet of this issuer tells besides its own operations' errors.
    pub(super) fn error_besides(&mut self, issuer: Issuer) -> Option<Error> {
        (issuer == HOST && self.profile.role() == Role::Host).then(|| self.counted_error_unasked()).flatten()
    }

    /// The immediate for a PE that names a word, if there is one.
    fn immediate(&self, pe: Pe, word: u64) -> Option<u64> {
        self.counts_in(word).map(|number| self.profile.token_of(pe).immediate(number))
    }

    /// The number of a word in immediates, if it has one and the only rail takes immediates that have room for the
    /// token's part.
    fn counts_in(&self, word: u64) -> Option<u32> {
        let [caps] = self.profile.all_caps() else { return None };
        // The last piece of a write brings it, and must not arrive before the others.
        let fits = self.profile.role() == Role::Host
            && caps.software
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
            ("proxy endpoints have other work", endpoint(Role::Proxy, 1, false, plain)),
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
