//! Backends of measurements: the runtime, its device, bare libfabric, or copies by the CPU.
//!
//! Every test is written once, over this trait, and compiled for each backend, so results differ only by the backend.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::catalog::Work;
use super::error::{Error, Result};
use super::plan::Spread;

/// Offsets in each PE's area. Words that different PEs write have separate pairs of cache lines.
pub mod area {
    /// A number that PE 0 sends to all.
    pub const PLAN: usize = 0;
    /// The counter of AMO tests.
    pub const COUNTER: usize = 128;
    /// The destination of puts and signals in ping-pong tests.
    pub const PING: usize = 256;
    /// The words of barriers, for backends without their own.
    pub const BARRIER: usize = 384;
    /// Results of fetching operations.
    pub const RESULT: usize = 512;
    /// Sources of puts of single words.
    pub const WORDS: usize = 1024;
    /// The number of these words.
    pub const N_WORDS: usize = 128;
    /// The start of the data to send.
    pub const SOURCE: usize = 4096;
}

/// Calls of a test that a kernel makes without the host.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    /// The work of a call.
    pub work: Work,
    /// Where its messages are.
    pub spread: Spread,
    /// The PE that it works with.
    pub peer: u32,
    /// The number of these calls so far.
    pub first: u64,
    /// The number of calls to make.
    pub calls: u64,
}

/// Moves data between the areas of PEs. Offsets are within the areas; they are in the caller's area, unless `pe` names
/// another.
pub trait Backend {
    /// Kernels make the calls: [`Backend::launch`] replaces single operations.
    const LAUNCHES: bool = false;

    /// Makes calls, and returns the time that they took. All PEs that take part in the test call it at the same time.
    /// Backends without kernels perform works [by threads](Work::is_by_threads) in it; here one thread does.
    fn launch(&mut self, batch: &Batch) -> Result<Duration> {
        let (spread, peer) = (batch.spread, batch.peer);
        let begun = Instant::now();
        for _ in 0..batch.calls {
            match batch.work {
                Work::Gets(_) => self.get(peer, spread.dest(0), spread.source(0), spread.size)?,
                Work::FetchAdds(_) => drop(self.fetch_add(peer, area::COUNTER, 1)?),
                _ => return Err(unsupported("kernels")),
            }
        }
        Ok(begun.elapsed())
    }

    /// This PE.
    fn pe(&self) -> u32;

    /// The number of PEs.
    fn n_pes(&self) -> u32;

    /// The first byte of this PE's area.
    fn base(&self) -> *mut u8;

    /// Starts to copy `len` bytes to `dest` at `pe`. The source must stay unchanged until [`Backend::quiet`].
    fn start_put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()>;

    /// Copies `len` bytes to `dest` at `pe`; the source may be changed afterwards.
    fn put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.start_put(pe, dest, source, len)
    }

    /// Copies 8 bytes to `word` at `pe`, where a thread polls the word.
    fn put_word(&mut self, pe: u32, word: usize, value: u64) -> Result<()>;

    /// Starts to copy `len` bytes from `source` at `pe`.
    fn start_get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()>;

    /// Copies `len` bytes from `source` at `pe`.
    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()>;

    /// Waits until all started operations are complete and visible.
    fn quiet(&mut self) -> Result<()>;

    /// Orders later operations behind earlier ones.
    fn fence(&mut self) -> Result<()> {
        Err(unsupported("fences"))
    }

    /// Adds to a word and returns its old value.
    fn fetch_add(&mut self, _pe: u32, _word: usize, _value: u64) -> Result<u64> {
        Err(unsupported("atomics"))
    }

    /// Starts to add to a word.
    fn start_add(&mut self, _pe: u32, _word: usize, _value: u64) -> Result<()> {
        Err(unsupported("atomics"))
    }

    /// Starts to add to a word by a signal.
    fn start_signal(&mut self, _pe: u32, _word: usize, _value: u64) -> Result<()> {
        Err(unsupported("signals"))
    }

    /// Sets a signal word.
    fn signal(&mut self, _pe: u32, _word: usize, _value: u64) -> Result<()> {
        Err(unsupported("signals"))
    }

    /// Copies `len` bytes to `dest` at `pe`, then sets a signal word there.
    fn put_signal(&mut self, _pe: u32, _put: (usize, usize, usize), _word: usize, _value: u64) -> Result<()> {
        Err(unsupported("signals"))
    }

    /// Waits until this PE's word is at least `value`, and makes progress meanwhile.
    fn wait(&mut self, word: usize, value: u64) -> Result<()>;

    /// Completes all started operations and waits for all PEs.
    fn barrier(&mut self) -> Result<()>;

    /// An address in this PE's area.
    #[inline]
    fn at(&self, offset: usize) -> *mut u8 {
        self.base().wrapping_add(offset)
    }

    /// Writes bytes of this PE's area, which no other PE uses meanwhile.
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        // SAFETY: within the area, by the caller's promise.
        unsafe { self.at(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Reads bytes of this PE's area, which no other PE changes meanwhile.
    fn load(&self, offset: usize, bytes: &mut [u8]) {
        // SAFETY: within the area, by the caller's promise.
        unsafe { self.at(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Reads one of this PE's words, which other PEs may write.
    #[inline]
    fn word(&self, word: usize) -> u64 {
        // SAFETY: areas are mapped while their backend lives, words are aligned, and all accesses to them are atomic.
        unsafe { AtomicU64::from_ptr(self.at(word).cast()) }.load(Ordering::Acquire)
    }

    /// Sets one of this PE's words.
    #[inline]
    fn set_word(&mut self, word: usize, value: u64) {
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.at(word).cast()) }.store(value, Ordering::Release);
    }

    /// Gives all PEs PE 0's number. Collective.
    fn agree(&mut self, mine: u64) -> Result<u64> {
        if self.pe() == 0 {
            for pe in 1..self.n_pes() {
                self.put_word(pe, area::PLAN, mine)?;
            }
            self.set_word(area::PLAN, mine);
        }
        self.barrier()?;
        let agreed = self.word(area::PLAN);
        self.barrier()?;
        Ok(agreed)
    }
}

fn unsupported(what: &str) -> Error {
    Error::Arguments(format!("what carries this test's data has no {what}"))
}
