//! Deferred collective free of objects that own memory on all PEs besides arrays: buffers, plans, communicators.
//!
//! As an array, such an object is dropped by each PE for itself, whenever Python drops it. All PEs free it together at
//! their next collective call for memory ([`crate::blocks`], [`crate::objects`]).

use std::sync::Arc;

use pyo3::prelude::*;
use symrail::TeamHeap;

use crate::errors::failed;
use crate::exclusive::Exclusive;
use crate::job::Job;

/// Memory on all PEs, which they free by a collective call.
pub trait CollectiveFree: Send + 'static {
    /// The kind of object, for comparison.
    const KIND: &'static str;

    /// Frees the memory. Collective over all PEs.
    fn free_on_all(self) -> PyResult<()>;
}

/// An object on all PEs, or none after it was freed. Dropping it defers the free until all PEs have dropped it.
pub struct DeferredFree<T: CollectiveFree> {
    value: Exclusive<Option<T>>,
    number: u64,
    /// Dropped after the value.
    pub job: Arc<Job>,
}

impl<T: CollectiveFree> DeferredFree<T> {
    /// An object that all PEs have made.
    pub fn new(job: Arc<Job>, value: T) -> DeferredFree<T> {
        let number = job.objects.enter(T::KIND);
        DeferredFree { value: Exclusive::new(Some(value)), number, job }
    }

    /// Makes a call, one at a time; `None` after the object was freed. The caller does not hold Python's lock.
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> PyResult<Option<R>> {
        self.value.with(|value| value.as_mut().map(call))
    }

    /// Takes the object out once no call uses it, for all PEs to free it together. While a graph is captured, which
    /// cannot hold that, it is dropped instead.
    pub fn take(&self, py: Python<'_>) -> PyResult<Option<T>> {
        let Some(value) = py.detach(|| self.value.with(Option::take))? else { return Ok(None) };
        if is_capturing(py)? {
            self.defer(value);
            return Ok(None);
        }
        self.job.objects.leave(self.number);
        Ok(Some(value))
    }

    fn defer(&self, value: T) {
        self.job.drop_object(self.number, Box::new(move || value.free_on_all()));
    }
}

impl<T: CollectiveFree> Drop for DeferredFree<T> {
    fn drop(&mut self) {
        let value = self.value.get_mut().take();
        if let Some(value) = value {
            self.defer(value);
        }
    }
}

/// An object that was refused on this PE after all PEs had made its heap. Other PEs may have theirs, so the heap is
/// freed when all PEs have dropped the object, as this one does now. Local.
pub fn defer_refused(job: &Job, kind: &'static str, heap: TeamHeap) {
    let number = job.objects.enter(kind);
    job.drop_object(number, Box::new(move || heap.free().map_err(failed)));
}

/// Whether work on the current stream of PyTorch or CuPy is captured in a graph.
pub fn is_capturing(py: Python<'_>) -> PyResult<bool> {
    py.import("symrail._gpu")?.getattr("is_capturing")?.call0()?.extract()
}
