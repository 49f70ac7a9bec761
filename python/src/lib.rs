//! The compiled part of the Python package `symrail`: the runtime for NumPy arrays, without an algorithm of its own.
//!
//! | file | concept |
//! |---|---|
//! | `job` | one PE of a job for Python; the end of the process |
//! | `required` | requirements of the program on all PEs' paths |
//! | `blocks` | symmetric memory that each PE drops for itself and all free together |
//! | `deferred_free`, `detached`, `objects` | other objects with memory on all PEs, dropped and freed in the same way; their numbers |
//! | `exclusive` | a value that one call uses at a time |
//! | `memory` | symmetric memory as a Python object |
//! | `view` | the memory of an array, and the contiguous pieces of two of them (unsafe) |
//! | `foreign`, `layout`, `dtype` | other libraries' arrays; the layout of elements; their types |
//! | `device_array`, `dlpack` | arrays in GPU memory, and passing them to other libraries (unsafe) |
//! | `gpu`, `stream` | operations in the order of a GPU's streams (unsafe); the stream that an argument names |
//! | `on_stream` | teams' collectives in the order of a stream (unsafe) |
//! | `raw` | the runtime's calls that take addresses (unsafe) |
//! | `held` | teams, kept together with the job that they borrow (unsafe) |
//! | `sides`, `rma`, `words` | both arrays of a copy, and its path; atomics, signals and waits for elements |
//! | `runtime` | the class `Runtime` |
//! | `under_way` | the arrays of operations in flight |
//! | `team`, `collective` | the class `Team`; arguments and paths of collectives |
//! | `torch` | the functions for PyTorch's symmetric memory, as a table for C (unsafe) |
//! | `torch_tensors` | PyTorch's tensors by its functions for C (unsafe) |
//! | `ep` | the classes behind `symrail.ep` |
//! | `decomp` | the class behind `symrail.decomp` (unsafe) |
//! | `agent` | the classes behind `symrail.agent` (unsafe) |
//! | `collectives` | the class behind `symrail.collectives` (unsafe) |
//! | `overlap` | the classes behind `symrail.overlap` (unsafe) |
//! | `interrupt` | Ctrl-C and time-outs |
//! | `errors` | the exception for each error |
//!
//! Every call that may wait releases Python's lock (`interrupt::waiting`), and the proxy thread never takes it.

mod agent;
mod blocks;
mod collective;
mod collectives;
mod decomp;
mod deferred_free;
mod detached;
mod device_array;
mod dlpack;
mod dtype;
mod ep;
mod errors;
mod exclusive;
mod foreign;
mod gpu;
mod held;
mod interrupt;
mod job;
mod layout;
mod memory;
mod objects;
mod on_stream;
mod overlap;
mod raw;
mod required;
mod rma;
mod runtime;
mod sides;
mod stream;
mod team;
mod torch;
mod torch_tensors;
mod under_way;
mod view;
mod words;

use pyo3::prelude::*;

/// The compiled part of `symrail`; its names are part of that package, not of this module.
#[pymodule]
mod _symrail {
    use std::ffi::OsString;
    use std::net::IpAddr;

    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::device_array::DeviceArray;
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::runtime::Runtime;
    #[pymodule_export]
    use crate::team::Team;
    #[pymodule_export]
    use crate::torch_tensors::is_on_gpu;

    use crate::errors::{Kind, failed, json, raise};
    use crate::job;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::ep::add(module)?;
        module.add_class::<crate::agent::Agent>()?;
        module.add_class::<crate::agent::AgentTransfer>()?;
        module.add_class::<crate::decomp::Pencils>()?;
        module.add_class::<crate::collectives::Collectives>()?;
        module.add_class::<crate::overlap::Products>()?;
        module.add_class::<crate::overlap::on_gpu::GpuProduct>()?;
        module.add_class::<crate::overlap::point_to_point::PointToPoint>()?;
        job::watch_exit()
    }

    /// Creates the unique id of a job, and serves its rendezvous on one interface of this machine. Local.
    #[pyfunction]
    #[pyo3(signature = (interface=None))]
    fn create_uid(py: Python<'_>, interface: Option<&str>) -> PyResult<Vec<u8>> {
        let parsed = interface.map(str::parse::<IpAddr>).transpose();
        let refused = |_| raise(Kind::Argument, &format!("{} is no IP address", interface.unwrap_or_default()));
        let address = parsed.map_err(refused)?;
        let id = py.detach(|| symrail::bootstrap::uid::create(address));
        Ok(id.map_err(failed)?.to_bytes().to_vec())
    }

    /// Whether RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe this process's place in a job. Local.
    #[pyfunction]
    fn is_of_ranks() -> PyResult<bool> {
        let settings = symrail::Settings::from_env().map_err(failed)?;
        if settings.bootstrap != symrail_transport::env::BootstrapKind::Auto {
            return Ok(false);
        }
        let origin = symrail::bootstrap::find_origin().map_err(failed)?;
        Ok(origin == Some(symrail::bootstrap::Origin::Ranks))
    }

    /// The driver's handle of a stream of any library. Local.
    #[pyfunction]
    fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
        crate::stream::handle(stream)
    }

    /// The libraries that are loaded at run time, as JSON. Local.
    #[pyfunction]
    fn libraries(py: Python<'_>) -> PyResult<String> {
        let settings = symrail::Settings::from_env().map_err(failed)?;
        let libraries = py.detach(|| symrail_perftest::libraries::find_out(&settings));
        json(&libraries)
    }

    /// The program `symrail`: performs its arguments and returns the exit code. `program` is the command that starts
    /// it.
    #[pyfunction]
    #[allow(clippy::needless_pass_by_value, reason = "Python hands lists over by value")]
    fn main(py: Python<'_>, program: Vec<OsString>, mut arguments: Vec<OsString>) -> u8 {
        arguments.insert(0, "symrail".into());
        py.detach(|| symrail_perftest::main(&program, arguments))
    }
}
