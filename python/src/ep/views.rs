//! Tensors that view buffers' memory, which is not freed while they exist.

use std::sync::{Arc, Mutex, Weak};

use pyo3::prelude::*;
use symrail_core::lock;

use crate::errors::{Kind, raise};
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

    /// Raises StateError if there are views.
    pub fn must_be_none(&self) -> PyResult<()> {
        let count = lock(&self.0).iter().filter(|view| view.strong_count() > 0).count();
        if count == 0 {
            return Ok(());
        }
        let why = format!(
            "{count} views of these buffers exist (get_next_combine_buffer, get_local_buffer_tensor): drop such tensors \
             before destroy(), and before a dispatch of larger rows or of another shape"
        );
        Err(raise(Kind::State, &why))
    }
}
