//! The objects of a job that own memory on all PEs besides arrays, by the numbers in which PEs have made them.
//!
//! PEs make these objects together, in one order, and count them; where a PE has counted others than the rest, dropped
//! objects keep their memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pyo3::PyResult;
use symrail_core::lock;

/// Words in which PEs say which objects they have dropped, of the oldest ones.
const WORDS: usize = 4;
/// Words of an agreement: what was counted, its complement, and which objects were dropped.
pub const AGREED: usize = 2 + WORDS;

/// Frees what a dropped object has left. Collective over all PEs.
pub type Free = Box<dyn FnOnce() -> PyResult<()> + Send>;

/// The objects of a job.
#[derive(Default)]
pub struct Objects(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of objects so far.
    made: u64,
    /// The kinds of those that are not freed.
    live: BTreeMap<u64, &'static str>,
    /// Those that this PE has dropped.
    dropped: BTreeMap<u64, Free>,
}

impl Objects {
    /// Counts an object that all PEs have made; returns its number.
    pub fn enter(&self, kind: &'static str) -> u64 {
        let mut state = lock(&self.0);
        let number = state.made;
        state.made += 1;
        state.live.insert(number, kind);
        number
    }

    /// An object that all PEs free together now.
    pub fn leave(&self, number: u64) {
        lock(&self.0).live.remove(&number);
    }

    /// An object that this PE has dropped: `free` frees its memory when all PEs have. Local.
    pub fn drop_later(&self, number: u64, free: Free) {
        lock(&self.0).dropped.insert(number, free);
    }

    /// The objects that the words are about, and the words, of which PEs form the conjunction.
    pub fn words(&self) -> (Vec<u64>, [u64; AGREED]) {
        let state = lock(&self.0);
        let listed: String = state.live.iter().map(|(number, kind)| format!("{number} {kind}, ")).collect();
        let key = hash(&format!("{listed}{}", state.made));
        let numbers: Vec<u64> = state.live.keys().copied().take(64 * WORDS).collect();
        let mut words = [0; AGREED];
        (words[0], words[1]) = (key, !key);
        for (at, number) in numbers.iter().enumerate() {
            words[2 + at / 64] |= u64::from(state.dropped.contains_key(number)) << (at % 64);
        }
        (numbers, words)
    }

    /// Frees the objects that all PEs have dropped, as they have agreed. Collective.
    pub fn free_dropped(&self, numbers: &[u64], agreed: &[u64]) -> PyResult<()> {
        if agreed[0] != !agreed[1] {
            return Ok(());
        }
        for (at, number) in numbers.iter().enumerate() {
            if agreed[2 + at / 64] >> (at % 64) & 1 == 0 {
                continue;
            }
            let free = {
                let mut state = lock(&self.0);
                state.live.remove(number);
                state.dropped.remove(number)
            };
            free.map_or(Ok(()), |free| free())?;
        }
        Ok(())
    }

    /// Drops what this PE has dropped, without the others, since their memory ends with the job.
    pub fn forget(&self) {
        let dropped = std::mem::take(&mut lock(&self.0).dropped);
        drop(dropped);
    }
}

/// FNV-1a, which has the same result on all PEs.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
