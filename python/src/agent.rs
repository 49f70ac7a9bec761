//! The classes behind `symrail.agent`: agents over memory of arrays.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use symrail_agent::devices::cuda::device_of;
use symrail_agent::{Descriptor, Direction, Error, MemoryId};
use symrail_core::{Backoff, lock};

use crate::detached::Detached;
use crate::errors::{Kind, failed, raise};
use crate::foreign::ANY_GPU;
use crate::interrupt;
use crate::view::View;

/// Rounds of a wait before it takes less of a core.
const SPINS: u32 = 64;
const YIELDS: u32 = 1024;
const PAUSE: Duration = Duration::from_micros(100);

/// An agent, and the arrays whose memory it has registered.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct Agent {
    // It is dropped before the arrays.
    agent: Detached<symrail_agent::Agent>,
    arrays: Mutex<HashMap<MemoryId, Py<PyAny>>>,
}

/// A prepared transfer.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct AgentTransfer(Detached<Mutex<symrail_agent::Transfer>>);

fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Lost { .. } => raise(Kind::PeerLost, &text),
        Error::Busy { .. } => raise(Kind::State, &text),
        Error::Failed { .. } => raise(Kind::Operation, &text),
        Error::Transport(error) => failed(error),
        _ => raise(Kind::Argument, &text),
    }
}

fn descriptors(all: &[(u64, u64)]) -> Vec<Descriptor> {
    all.iter().map(|&(address, len)| Descriptor { address, len }).collect()
}

/// Waits until `is_over`, but no longer than so many seconds. Returns whether it is.
fn within(py: Python<'_>, seconds: f64, mut is_over: impl FnMut() -> Result<bool, Error> + Send) -> PyResult<bool> {
    let limit =
        Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO });
    let (begun, mut over) = (Instant::now(), false);
    let mut backoff = Backoff::new(SPINS, YIELDS, PAUSE);
    let ended = interrupt::until(py, || {
        over = is_over()?;
        let ends = over || begun.elapsed() >= limit;
        if !ends {
            backoff.pause();
        }
        Ok(ends)
    })?;
    ended.map_err(raised).map(|()| over)
}

#[pymethods]
impl Agent {
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Agent> {
        let agent = py.detach(|| symrail_agent::Agent::from_env(name)).map_err(raised)?;
        Ok(Agent { agent: Detached::new(agent), arrays: Mutex::default() })
    }

    #[getter]
    fn name(&self) -> &str {
        self.agent.name()
    }

    #[getter]
    fn rails(&self) -> Vec<String> {
        self.agent.rails().0
    }

    /// Registers the memory of a contiguous array, and keeps the array.
    fn register(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<(MemoryId, usize, usize)> {
        let view = View::of(array, "the array")?;
        view.must_be_written("the array")?;
        if !view.contiguous {
            return Err(raise(Kind::Argument, "the array is not contiguous: register the one that it is a part of"));
        }
        let span = view.bounds();
        let (base, bytes) = (span.address(), span.bytes());
        let gpu = view.gpu.map(|gpu| if gpu == ANY_GPU { device_of(base as u64).unwrap_or(gpu) } else { gpu });
        // SAFETY: the array is kept until the memory is deregistered, or the agent was dropped. Python's programs must
        // expect that the memory of a registered array changes.
        let registered = py.detach(|| unsafe {
            match gpu {
                Some(gpu) => self.agent.register_device(base as u64, bytes as u64, gpu),
                None => self.agent.register(std::ptr::with_exposed_provenance_mut(base), bytes),
            }
        });
        let id = registered.map_err(raised)?;
        // A tensor may get other storage; its alias keeps this one.
        let kept = array.call_method0("detach").unwrap_or_else(|_| array.clone());
        lock(&self.arrays).insert(id, kept.unbind());
        Ok((id, base, bytes))
    }

    fn deregister(&self, py: Python<'_>, id: MemoryId) -> PyResult<()> {
        py.detach(|| self.agent.deregister(id)).map_err(raised)?;
        let array = lock(&self.arrays).remove(&id);
        drop(array);
        Ok(())
    }

    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.agent.metadata())
    }

    #[allow(clippy::needless_pass_by_value, reason = "Python hands lists over by value")]
    fn partial_metadata<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<MemoryId>,
        connection: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.agent.partial_metadata(&ids, connection).map_err(raised)?))
    }

    fn load(&self, metadata: &[u8]) -> PyResult<String> {
        self.agent.load(metadata).map_err(raised)
    }

    fn unload(&self, metadata: &[u8]) -> PyResult<()> {
        self.agent.unload(metadata).map_err(raised)
    }

    fn forget(&self, agent: &str) -> PyResult<()> {
        self.agent.forget(agent).map_err(raised)
    }

    fn agents(&self) -> Vec<String> {
        self.agent.agents()
    }

    fn memory_of(&self, agent: &str) -> PyResult<Vec<(u64, u64)>> {
        let all = self.agent.memory_of(agent).map_err(raised)?;
        Ok(all.iter().map(|one| (one.address, one.len)).collect())
    }

    fn connect(&self, py: Python<'_>, agent: &str, timeout: f64) -> PyResult<bool> {
        within(py, timeout, || self.agent.connect(agent))
    }

    #[allow(clippy::needless_pass_by_value, reason = "Python hands lists over by value")]
    fn prepare(
        &self,
        py: Python<'_>,
        writes: bool,
        local: Vec<(u64, u64)>,
        remote: Vec<(u64, u64)>,
        agent: &str,
    ) -> PyResult<AgentTransfer> {
        let direction = if writes { Direction::Write } else { Direction::Read };
        let (local, remote) = (descriptors(&local), descriptors(&remote));
        let transfer = py.detach(|| self.agent.transfer(direction, &local, &remote, agent));
        Ok(AgentTransfer(Detached::new(Mutex::new(transfer.map_err(raised)?))))
    }

    fn notify(&self, agent: &str, message: &[u8]) -> PyResult<()> {
        self.agent.notify(agent, message).map_err(raised)
    }

    fn notification<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<(String, Bound<'py, PyBytes>)>> {
        let mut found = self.agent.notification();
        if found.is_none() && timeout > 0.0 {
            within(py, timeout, || {
                found = self.agent.wait_notification(PAUSE);
                Ok(found.is_some())
            })?;
        }
        Ok(found.map(|found| (found.agent, PyBytes::new(py, &found.message))))
    }
}

#[pymethods]
impl AgentTransfer {
    #[getter]
    fn operations(&self) -> usize {
        lock(&self.0).operations()
    }

    fn post(&self, py: Python<'_>, notification: Option<&[u8]>) -> PyResult<()> {
        py.detach(|| lock(&self.0).post(notification)).map_err(raised)
    }

    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        within(py, timeout, || lock(&self.0).test())
    }

    fn cancel(&self) {
        lock(&self.0).cancel();
    }
}
