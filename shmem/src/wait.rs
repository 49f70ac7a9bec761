//! Waiting until a word of this PE's memory has changed.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::runtime::Runtime;
use crate::team::Group;
use crate::waiting::{Among, Long};
use crate::wire::{Via, Wire};

pub use symrail_core::Cmp;

/// An integer that can be waited for: 8 to 64 bits.
pub trait WaitWord: Copy + PartialOrd {
    /// The value with these low bits.
    fn from_low(bits: u64) -> Self;
}

macro_rules! wait_word {
    ($($t:ty),*) => {$(impl WaitWord for $t {
        #[inline]
        #[allow(clippy::cast_possible_wrap, clippy::cast_lossless)]
        fn from_low(bits: u64) -> Self { bits as $t }
    })*};
}
wait_word!(i8, u8, i16, u16, i32, u32, i64, u64, isize, usize);

/// Checks of a thread that has no wire to poll before it sleeps between them, and for how long it does then.
const YIELDS: u64 = 20_000;
const NAP: Duration = Duration::from_micros(50);

/// Checks of the word before the first poll when all peers are mapped: what they store arrives without any.
const GLANCES: u32 = 200;

impl Runtime {
    /// Reads a word of this PE's memory once.
    ///
    /// # Safety
    /// `word` is valid for reads and aligned.
    ///
    /// # Errors
    /// Those of a get from this PE's own memory, where the CPU cannot touch that.
    #[inline]
    pub unsafe fn peek<T: WaitWord>(&self, word: *const T) -> Result<T> {
        if self.is_staged(word.cast()) {
            return self.read_staged(word);
        }
        // SAFETY: the caller's promise.
        Ok(T::from_low(unsafe { Runtime::load(word.cast(), size_of::<T>()) }))
    }

    /// As [`Runtime::peek`] for who cannot return an error: then the next quiet does, and so does the wait.
    ///
    /// # Safety
    /// As for [`Runtime::peek`].
    #[inline]
    pub(crate) unsafe fn glance<T: WaitWord>(&self, word: *const T) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { self.peek(word) }.map_err(|error| self.note(error)).ok()
    }

    /// Waits until the word at `word` compares to `value` as asked. What the peer had put before it changed the word is visible then.
    ///
    /// # Safety
    /// `word` is valid for reads and aligned.
    ///
    /// # Errors
    /// [`Error::PeerLost`](crate::Error::PeerLost) when a peer has died or left, which is known within seconds where the bootstrap tells of it; or
    /// when, after `TIMEOUT_S` of waiting, one does not even answer by its proxy. A peer that only takes its time is waited for without
    /// limit; that it is, is a warning, once.
    pub unsafe fn wait_until<T: WaitWord>(&self, word: *const T, cmp: Cmp, value: T) -> Result<T> {
        self.wait_for("wait_until", Among::Any(self.everybody()), || {
            // SAFETY: the caller's promise.
            let now = unsafe { self.glance(word) }?;
            cmp.holds(now, value).then_some(now)
        })
    }

    /// Whether the word compares so now. Makes progress if not.
    ///
    /// # Safety
    /// As for [`Runtime::wait_until`].
    pub unsafe fn test<T: WaitWord>(&self, word: *const T, cmp: Cmp, value: T) -> bool {
        // SAFETY: the caller's promise.
        let holds = unsafe { self.glance(word) }.is_some_and(|now| cmp.holds(now, value));
        if !holds {
            self.progress();
        }
        holds
    }

    /// Makes progress once, for loops that test. Whether there was any.
    pub fn progress(&self) -> bool {
        self.operations().via_if_any().is_some_and(|via| via.wait_for_memory().drive())
    }

    /// Waits until `done` gives something. `among` is everybody without whom that may never be: who tells this PE may itself wait
    /// for another, and goes on living when that is dead.
    pub(crate) fn wait_for<R>(
        &self,
        what: &'static str,
        among: Among,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        self.here()?;
        let glances = if self.all_mapped { GLANCES } else { 1 };
        for _ in 0..glances {
            if let Some(found) = done() {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        let wire = self.wire.as_ref().ok();
        let mut wait = wire.map(|wire| Via::new(wire, &self.flow).wait_for_memory());
        let (begun, mut polls, looks) = (Instant::now(), 0u64, wire.map_or(1, Wire::looks_per_poll));
        let mut long = None::<Long<'_>>;
        loop {
            if let Some(found) = (0..looks).find_map(|_| done()) {
                return Ok(found);
            }
            match &mut wait {
                Some(wait) => {
                    wait.drive();
                }
                None if polls < YIELDS => std::thread::yield_now(),
                None => std::thread::sleep(NAP),
            }
            polls += 1;
            self.take_noted()?;
            if polls.is_multiple_of(64) && Long::is(begun) {
                long.get_or_insert_with(|| Long::new(self, what, among, begun)).look()?;
            }
        }
    }

    /// All PEs of the job.
    pub(crate) fn everybody(&self) -> Group {
        Group::world(self.me, self.n_pes)
    }
}
