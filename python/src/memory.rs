//! Symmetric memory as a Python object, to which its arrays refer.

use std::sync::Arc;

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::job::Job;

/// Keeps memory of the heap mapped as long as it lives, whatever becomes of the job. Any thread may drop it, with
/// Python's lock or without.
pub struct Kept {
    job: Arc<Job>,
    /// The number of this PE's block. When the last array of the block is gone, this PE lets the block go, which is
    /// local; PEs free it together at the next `array` or `reclaim`.
    block: Option<u64>,
    /// Keeps memory that has another owner from being freed: for a peer's memory this PE's array in the same block.
    _owner: Option<Py<PyAny>>,
}

impl Kept {
    pub fn block(job: Arc<Job>, block: u64) -> Arc<Kept> {
        Arc::new(Kept { job, block: Some(block), _owner: None })
    }

    pub fn of(job: Arc<Job>, owner: Py<PyAny>) -> Arc<Kept> {
        Arc::new(Kept { job, block: None, _owner: Some(owner) })
    }

    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            self.job.blocks.drop_block(block);
        }
    }
}

/// Bytes of symmetric memory that the CPU can access, this PE's or a mapped peer's; or bytes of a GPU. NumPy makes
/// arrays of the former without copies (`__array_interface__`); programs call `symrail.array` instead.
#[pyclass(frozen, module = "symrail")]
pub struct Memory {
    kept: Arc<Kept>,
    address: usize,
    bytes: usize,
}

impl Memory {
    pub fn new(kept: Arc<Kept>, address: usize, bytes: usize) -> Memory {
        Memory { kept, address, bytes }
    }

    pub fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }
}

#[pymethods]
impl Memory {
    /// Its first byte's address in this process.
    #[getter]
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its length in bytes.
    #[getter]
    pub fn nbytes(&self) -> usize {
        self.bytes
    }

    /// The GPU whose memory it is; None for the host's.
    #[getter]
    pub fn gpu(&self) -> Option<i32> {
        self.kept.job.gpu_of(self.address)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.gpu().is_some() {
            return Err(PyAttributeError::new_err("the memory of a GPU has no __array_interface__"));
        }
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
