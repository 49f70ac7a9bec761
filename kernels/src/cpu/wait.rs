//! Waiting for words of this PE's heap.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use symrail_core::{Cmp, Operation};

use super::element::AmoWord;
use super::error::DeviceError;
use super::symmetric::Symmetric;
use super::thread::Thread;
use super::waiter::Waiter;

impl Thread<'_> {
    /// Waits until the comparison of a word of this PE's heap with `value` holds, and returns the word. Data that was
    /// delivered before the word changed is visible then.
    ///
    /// # Errors
    /// It did not hold in time, or the word is not in the heap.
    pub fn wait_until<T: AmoWord>(&self, word: Symmetric<T>, cmp: Cmp, value: T) -> Result<T, DeviceError> {
        let address = self.one_word(word)?;
        let mut waiter = Waiter::new(self.view);
        loop {
            let now = load::<T>(address);
            if cmp.holds(now, value) {
                return Ok(now);
            }
            if !waiter.pause() {
                let place = format!("symmetric offset {:#x} of PE {}", word.offset(), self.my_pe());
                return Err(waiter.timed_out(format!("waiting for {cmp:?} {value:?} at {place}, which holds {now:?},")));
            }
        }
    }

    /// Whether the comparison of a word of this PE's heap with `value` holds now. If not, lends the thread to the
    /// engine once.
    ///
    /// # Errors
    /// The word is not in the heap.
    pub fn test<T: AmoWord>(&self, word: Symmetric<T>, cmp: Cmp, value: T) -> Result<bool, DeviceError> {
        let address = self.one_word(word)?;
        let holds = || cmp.holds(load::<T>(address), value);
        Ok(holds() || (self.parts().progress)() && holds())
    }

    /// [`wait_until`](Self::wait_until) for a signal word.
    ///
    /// # Errors
    /// As there.
    pub fn signal_wait_until(&self, signal: Symmetric<u64>, cmp: Cmp, value: u64) -> Result<u64, DeviceError> {
        self.wait_until(signal, cmp, value)
    }

    /// The value of a signal word of this PE.
    ///
    /// # Errors
    /// The word is not in the heap.
    pub fn signal_fetch(&self, signal: Symmetric<u64>) -> Result<u64, DeviceError> {
        Ok(load::<u64>(self.one_word(signal)?))
    }

    fn one_word<T: AmoWord>(&self, word: Symmetric<T>) -> Result<*mut u8, DeviceError> {
        self.heap(Operation::Amo, word.at(0)?)
    }
}

/// Reads a word that others change, ordered before everything that follows.
fn load<T: AmoWord>(address: *mut u8) -> T {
    T::of_bits(match T::WIDTH.bytes() {
        // SAFETY: a word of the heap, which is mapped, as the view's creator promises, and aligned as the name was
        // checked to be. Everyone accesses it by atomic or device accesses.
        4 => u64::from(unsafe { AtomicU32::from_ptr(address.cast()) }.load(Ordering::Acquire)),
        // SAFETY: as above; atomic words have 4 or 8 bytes.
        _ => unsafe { AtomicU64::from_ptr(address.cast()) }.load(Ordering::Acquire),
    })
}
