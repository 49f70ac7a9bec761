//! The arrays of operations in flight, which are kept until a quiet has completed these operations.

use std::sync::Mutex;

use pyo3::prelude::*;
use symrail_core::lock;

/// Arrays of operations that no call has waited for yet.
#[derive(Default)]
pub struct UnderWay(Mutex<Vec<Py<PyAny>>>);

/// Arrays of operations that were started before a wait for all of them began.
pub struct Awaited(Vec<Py<PyAny>>);

impl UnderWay {
    /// Keeps the array of an operation that has just been started; until now its caller kept it.
    pub fn keep(&self, array: &Bound<'_, PyAny>) {
        let mut arrays = lock(&self.0);
        // Programs often put parts of one array, over and over.
        if !arrays.last().is_some_and(|last| last.is(array)) {
            arrays.push(array.clone().unbind());
        }
    }

    /// Before a wait that completes all started operations: takes their arrays. Operations that other threads start
    /// meanwhile belong to the next wait.
    pub fn awaited(&self) -> Awaited {
        Awaited(std::mem::take(&mut *lock(&self.0)))
    }
}

impl Awaited {
    /// After the wait. A failed wait leaves operations in flight, so their arrays stay for ever.
    pub fn end<T>(self, waited: PyResult<T>) -> PyResult<T> {
        if waited.is_err() {
            std::mem::forget(self.0);
        }
        waited
    }
}
