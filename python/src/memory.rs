//! Symmetric memory as a Python object: what NumPy arrays in it refer to.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::job::Job;

/// Bytes of symmetric memory, this PE's or a mapped peer's. NumPy makes arrays of it without copies
/// (`__array_interface__`); `symrail.array` is what programs call.
///
/// Its memory stays mapped as long as the object lives, whatever becomes of the job. When the last array of a block of
/// this PE is gone, the block is let go, which is local; PEs give it back together at the next `array` or `reclaim`.
#[pyclass(frozen, module = "symrail")]
pub struct Memory {
    job: Arc<Job>,
    /// The number of this PE's block.
    block: Option<u64>,
    address: usize,
    bytes: usize,
    /// What keeps a peer's block from being given back: this PE's array in the same.
    #[expect(dead_code, reason = "it is kept, not used")]
    keeps: Option<Py<PyAny>>,
}

impl Memory {
    pub fn of_block(job: Arc<Job>, block: u64, address: usize, bytes: usize) -> Memory {
        Memory { job, block: Some(block), address, bytes, keeps: None }
    }

    pub fn of_peer(job: Arc<Job>, address: usize, bytes: usize, keeps: Py<PyAny>) -> Memory {
        Memory { job, block: None, address, bytes, keeps: Some(keeps) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            self.job.blocks.drop_block(block);
        }
    }
}

#[pymethods]
impl Memory {
    /// Its first byte's address in this process.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.bytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.address, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        format!("<symrail.Memory of {} bytes at {:#x}>", self.bytes, self.address)
    }
}
