//! The arrays that operations under way read and write: kept until a quiet has completed those.

use std::sync::Mutex;

use pyo3::prelude::*;
use symrail_core::lock;

/// Arrays of operations that nobody has waited for yet.
#[derive(Default)]
pub struct UnderWay(Mutex<Vec<Py<PyAny>>>);

/// Those of operations that were started before a wait for all of them began.
pub struct Awaited(Vec<Py<PyAny>>);

impl UnderWay {
    /// Keeps the array of an operation that has been started, and that its caller has kept until now.
    pub fn keep(&self, array: &Bound<'_, PyAny>) {
        let mut arrays = lock(&self.0);
        // Programs that put parts of one array, over and over.
        if !arrays.last().is_some_and(|last| last.is(array)) {
            arrays.push(array.clone().unbind());
        }
    }

    /// Before a wait that completes all that was started: what another thread starts meanwhile is the next one's.
    pub fn awaited(&self) -> Awaited {
        Awaited(std::mem::take(&mut *lock(&self.0)))
    }
}

impl Awaited {
    /// After the wait. One that failed leaves operations under way, and their arrays for ever.
    pub fn end<T>(self, waited: PyResult<T>) -> PyResult<T> {
        if waited.is_err() {
            std::mem::forget(self.0);
        }
        waited
    }
}
