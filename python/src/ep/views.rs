//! Tensors that view buffers' memory, which is not freed while they exist.

use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use symrail_core::lock;

use crate::job::Job;
use crate::memory::{Kept, Memory};

/// What the tensors keep that view the memory of one object.
#[derive(Default)]
pub struct Views(Mutex<Vec<Weak<Kept>>>);

impl Views {
    /// Memory of the object `owner`, as long as it exists or is viewed.
    pub fn view(&self, job: &Arc<Job>, owner: Py<PyAny>, (at, bytes): (u64, u64)) -> Memory {
        let kept = Kept::of(Arc::clone(job), owner);
        let mut views = lock(&self.0);
        views.retain(|view| view.strong_count() > 0);
        views.push(Arc::downgrade(&kept));
        Memory::new(kept, at as usize, bytes as usize)
    }

    /// The number of views. While there are some on any rank, the memory is not freed.
    pub fn count(&self) -> usize {
        lock(&self.0).iter().filter(|view| view.strong_count() > 0).count()
    }
}
