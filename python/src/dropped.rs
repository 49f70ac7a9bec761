//! Objects that own memory on all PEs besides arrays: buffers, plans, communicators.
//!
//! As an array, such an object is dropped by each PE for itself, whenever Python drops it. All PEs free it together at
//! their next collective call for memory ([`crate::blocks`]). PEs make these objects together, in one order, and count
//! them; where a PE has counted others than the rest, dropped objects keep their memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use symrail_core::lock;

use crate::blocks::hash;
use crate::job::Job;

/// Words in which PEs say which objects they have dropped, of the oldest ones.
const WORDS: usize = 4;
/// Words of an agreement: what was counted, its complement, and which objects were dropped.
pub const AGREED: usize = 2 + WORDS;

/// Memory on all PEs.
pub trait OwnedByAll: Send + 'static {
    /// The kind of object, for comparison.
    const KIND: &'static str;

    /// Frees the memory of an object that all PEs have dropped. Collective over all PEs.
    fn free_dropped(self) -> PyResult<()>;
}

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
    pub fn drop_later(&self, job: &Job, number: u64, free: Free) {
        // After the job its memory ends anyway.
        if !job.is_left() {
            lock(&self.0).dropped.insert(number, free);
        }
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

/// An object on all PEs: `None` after it was freed. Dropping it leaves its memory for all PEs to free.
pub struct OnAllPes<T: OwnedByAll> {
    value: Mutex<Option<T>>,
    number: u64,
    /// Dropped after the value.
    pub job: Arc<Job>,
}

impl<T: OwnedByAll> OnAllPes<T> {
    /// An object that all PEs have made.
    pub fn new(job: Arc<Job>, value: T) -> OnAllPes<T> {
        let number = job.objects.enter(T::KIND);
        OnAllPes { value: Mutex::new(Some(value)), number, job }
    }

    /// Makes a call, one at a time; `None` after the object was freed. The caller does not hold Python's lock.
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(call)
    }

    /// Takes the object out once no call uses it, for all PEs to free it together. While a graph is captured, which
    /// cannot hold that, it is dropped instead.
    pub fn take(&self, py: Python<'_>) -> PyResult<Option<T>> {
        let taken = self.value.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        let Some(value) = taken else { return Ok(None) };
        if is_capturing(py)? {
            self.leave_to_all(value);
            return Ok(None);
        }
        self.job.objects.leave(self.number);
        Ok(Some(value))
    }

    fn leave_to_all(&self, value: T) {
        self.job.objects.drop_later(&self.job, self.number, Box::new(move || value.free_dropped()));
    }
}

impl<T: OwnedByAll> Drop for OnAllPes<T> {
    fn drop(&mut self) {
        let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(value) = value {
            self.leave_to_all(value);
        }
    }
}

/// Whether work on the current stream of PyTorch or CuPy is captured in a graph.
pub fn is_capturing(py: Python<'_>) -> PyResult<bool> {
    py.import("symrail._gpu")?.getattr("is_capturing")?.call0()?.extract()
}
