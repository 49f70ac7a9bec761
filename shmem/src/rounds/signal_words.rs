//! Words of symmetric memory that hold numbers of rounds, and only grow.

use symrail_transport::Pe;

use crate::error::Result;
use crate::rma::{SignalOp, SignalUpdate};
use crate::runtime::Runtime;
use crate::wait::Cmp;

/// Words of symmetric memory, through which PEs signal to each other.
pub struct SignalWords {
    base: *mut u64,
    count: usize,
    runtime: Runtime,
}

// SAFETY: the address is that of symmetric memory, which any thread may use by the runtime's operations.
unsafe impl Send for SignalWords {}
// SAFETY: as above.
unsafe impl Sync for SignalWords {}

impl SignalWords {
    /// # Safety
    /// At `base` there are `count` words of symmetric memory, which stay allocated while this is used. Only signals and
    /// reads access them.
    #[must_use]
    pub unsafe fn new(runtime: &Runtime, base: *mut u64, count: usize) -> SignalWords {
        SignalWords { base, count, runtime: runtime.clone() }
    }

    /// The address of a word, which is the same symmetric address on all PEs. The last one's if there is no such word.
    #[must_use]
    pub fn address(&self, index: usize) -> *mut u64 {
        debug_assert!(index < self.count.max(1), "word {index} of {}", self.count);
        self.base.wrapping_add(index.min(self.count.saturating_sub(1)))
    }

    /// The runtime whose memory they are in.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Reads a word of this PE.
    ///
    /// # Errors
    /// As for [`Runtime::peek`].
    pub fn read(&self, index: usize) -> Result<u64> {
        // SAFETY: one of the words, which are aligned.
        unsafe { self.runtime.peek(self.address(index).cast_const()) }
    }

    /// Whether a word of this PE has reached a value.
    ///
    /// # Errors
    /// As for [`SignalWords::read`].
    pub fn has_reached(&self, index: usize, value: u64) -> Result<bool> {
        Ok(self.read(index)? >= value)
    }

    /// Waits until a word of this PE has reached a value, inside of the call `what`.
    ///
    /// # Errors
    /// As for [`Runtime::wait_in`].
    pub fn wait(&self, what: &'static str, index: usize, value: u64) -> Result<()> {
        // SAFETY: one of the words, which are aligned.
        unsafe { self.runtime.wait_in(what, self.address(index).cast_const(), Cmp::Ge, value) }.map(drop)
    }

    /// As [`SignalWords::wait`], or until the word `abort` is not 0: returns its value then, and else 0.
    ///
    /// # Errors
    /// As for [`Runtime::wait_in_any`].
    pub fn wait_or_abort(&self, what: &'static str, index: usize, value: u64, abort: usize) -> Result<u64> {
        let words = [(index, Cmp::Ge, value), (abort, Cmp::Ne, 0)];
        let words = words.map(|(index, cmp, value)| (self.address(index).cast_const(), cmp, value));
        // SAFETY: two of the words, which are aligned.
        match unsafe { self.runtime.wait_in_any(what, &words) }? {
            0 => Ok(0),
            _ => self.read(abort),
        }
    }

    /// Changes a word of a PE. Returns at once; [`Runtime::quiet`] waits for its completion.
    ///
    /// # Errors
    /// As for [`Runtime::put_signal_nbi`].
    pub fn signal(&self, index: usize, value: u64, op: SignalOp, pe: Pe) -> Result<()> {
        let word = self.address(index);
        let signal = SignalUpdate { word, value, op };
        // SAFETY: no bytes are put.
        unsafe { self.runtime.put_signal_nbi(word.cast(), word.cast(), 0, signal, pe) }
    }
}
