//! Copies between two ranks in the order of streams, on the GPU that the heap is in or pinned for.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use symrail::kernels::cuda::Transfer;
use symrail::{TeamHeap, with_timeout};
use symrail_overlap::Error;
use symrail_overlap::cuda::{GpuKernels, GpuPointToPoint, Stream};

use super::raised;
use crate::deferred_free::{CollectiveFree, DeferredFree, defer_refused};
use crate::errors::{Kind, failed, raise};
use crate::held::HeldTeam;
use crate::interrupt;
use crate::runtime::Runtime;
use crate::stream;
use crate::team::Team;
use crate::view::View;

/// Sequences of copies between the ranks of a team.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct PointToPoint {
    parts: DeferredFree<Parts>,
    /// The longest time that a call waits for ranks that live; `None`: no limit.
    limit: Option<Duration>,
    team: Arc<HeldTeam>,
}

struct Parts {
    copies: GpuPointToPoint,
    heap: TeamHeap,
}

#[pymethods]
impl PointToPoint {
    /// Collective over all PEs, each with a team that it is in.
    #[new]
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        team: &Team,
        tags: usize,
        timeout: Option<f64>,
    ) -> PyResult<PointToPoint> {
        let (team, job) = (team.held()?, runtime.job());
        job.running()?;
        let (gpu, limit) = (job.streams()?, interrupt::parse_timeout(timeout)?);
        runtime.free_deferred(py, timeout, Parts::KIND)?;
        let rt = job.runtime();
        let bytes = GpuPointToPoint::bytes(rt.n_pes() as usize, tags);
        let make = || {
            let heap = TeamHeap::new(rt, bytes)?;
            let copies = || {
                let kernels = GpuKernels::new(gpu.device(), &gpu.nvrtc()?)?;
                GpuPointToPoint::new(&kernels, &heap, &team, tags)
            };
            match copies() {
                Ok(copies) => Ok(Parts { copies, heap }),
                Err(error) => {
                    defer_refused(job, Parts::KIND, heap);
                    Err(error)
                }
            }
        };
        let parts = py.detach(|| with_timeout(limit, make)).map_err(raised)?;
        Ok(PointToPoint { parts: DeferredFree::new(Arc::clone(job), parts), limit, team })
    }

    /// Copies `src` to the symmetric `dst` of a rank, once that rank receives.
    fn send(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        rank: usize,
        tag: usize,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.copy(py, self.sides(dst, src, rank, true)?, (rank, tag), stream, GpuPointToPoint::send)
    }

    /// Lets a rank send, and waits for it.
    fn receive(&self, py: Python<'_>, rank: usize, tag: usize, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.await_other(py, (rank, tag), stream, GpuPointToPoint::receive)
    }

    /// Lets a rank fetch, and waits for it.
    fn offer(&self, py: Python<'_>, rank: usize, tag: usize, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.await_other(py, (rank, tag), stream, GpuPointToPoint::offer)
    }

    /// Copies the symmetric `src` of a rank to `dst`, once that rank offers.
    fn fetch(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        rank: usize,
        tag: usize,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.copy(py, self.sides(src, dst, rank, false)?, (rank, tag), stream, GpuPointToPoint::fetch)
    }

    /// Raises the errors of copies that are over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, GpuPointToPoint::check)
    }

    /// Gives the memory back. Collective over all PEs.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let Some(parts) = self.parts.take(py)? else { return Ok(()) };
        self.team.job.running()?;
        py.detach(|| with_timeout(self.limit, || parts.free(&self.team))).map_err(raised)
    }
}

impl CollectiveFree for Parts {
    const KIND: &'static str = "a PointToPoint of symrail.overlap";

    fn free_on_all(self) -> PyResult<()> {
        let Parts { copies, heap } = self;
        copies.finish().map_err(raised)?;
        drop(copies);
        heap.free().map_err(failed)
    }
}

impl Parts {
    fn free(self, team: &symrail::Team) -> Result<(), Error> {
        let Parts { copies, heap } = self;
        let freed = copies.free(team);
        heap.free()?;
        freed
    }
}

impl PointToPoint {
    /// The GPU's addresses of a rank's symmetric array and of an array here, and their bytes.
    fn sides(&self, there: &Bound<'_, PyAny>, here: &Bound<'_, PyAny>, rank: usize, puts: bool) -> PyResult<Transfer> {
        let roles = if puts { ["dst", "src"] } else { ["src", "dst"] };
        let (there, here) = (View::of(there, roles[0])?, View::of(here, roles[1])?);
        if there.bytes() != here.bytes() || !there.contiguous || !here.contiguous {
            let text = format!(
                "{} has {} bytes and {} has {}; wanted are as many, each array's one behind the other",
                roles[0],
                there.bytes(),
                roles[1],
                here.bytes()
            );
            return Err(raise(Kind::Argument, &text));
        }
        if !puts {
            here.must_be_written(roles[1])?;
        }
        let (gpu, group) = (self.team.job.streams()?, self.team.group());
        if rank >= group.size() as usize {
            return Err(raise(Kind::Argument, &format!("the team has no rank {rank}, but {}", group.size())));
        }
        let apart = gpu.local(&here, group.pe(rank as u32), roles[1])?;
        let at = (here.bounds().address() as u64).wrapping_add(apart);
        let symmetric = gpu.symmetric_address(there.bounds(), roles[0])?;
        let (dest, source) = if puts { (symmetric, at) } else { (at, symmetric) };
        Ok(Transfer { dest, source, bytes: there.bytes() as u64 })
    }

    /// Copies what [`sides`](Self::sides) has checked.
    fn copy(
        &self,
        py: Python<'_>,
        what: Transfer,
        (rank, tag): (usize, usize),
        stream: &Bound<'_, PyAny>,
        how: unsafe fn(&mut GpuPointToPoint, &Stream, usize, usize, Transfer) -> Result<(), Error>,
    ) -> PyResult<()> {
        // SAFETY: memory of these sizes, as was checked, which the program keeps until then.
        self.call(py, stream, |copies, stream| unsafe { how(copies, stream, rank, tag, what) })
    }

    fn await_other(
        &self,
        py: Python<'_>,
        (rank, tag): (usize, usize),
        stream: &Bound<'_, PyAny>,
        how: unsafe fn(&mut GpuPointToPoint, &Stream, usize, usize) -> Result<(), Error>,
    ) -> PyResult<()> {
        // SAFETY: `free` waits for what streams do; what is copied is the other rank's to choose.
        self.call(py, stream, |copies, stream| unsafe { how(copies, stream, rank, tag) })
    }

    fn call(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        call: impl FnOnce(&mut GpuPointToPoint, &Stream) -> Result<(), Error> + Send,
    ) -> PyResult<()> {
        let stream = stream::handle(stream)?;
        let gpu = self.team.job.streams()?;
        self.with(py, |copies| call(copies, &gpu.stream(stream)))
    }

    fn with(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut GpuPointToPoint) -> Result<(), Error> + Send,
    ) -> PyResult<()> {
        self.team.job.running()?;
        let result = py.detach(|| self.parts.with(|parts| call(&mut parts.copies)));
        result?.ok_or_else(|| raise(Kind::State, "these copies were given back by free()"))?.map_err(raised)
    }
}
