//! The class `Team`: some PEs of the job, and what they do together.

use std::sync::{Arc, RwLock, RwLockReadGuard};

use pyo3::prelude::*;
use pyo3::types::PyAny;
use symrail::Pe;
use symrail::collective::Extent;

use crate::collective::{Arrays, Combining};
use crate::errors::{Kind, failed, raise, raise_of};
use crate::held::HeldTeam;
use crate::interrupt::waiting;
use crate::on_stream::Collective;
use crate::raw;

/// Some PEs of the job, this one among them, numbered from 0 within the team. All of them make a team's collective
/// calls in the same order; two threads of a PE do not use one team at a time.
///
/// Arrays of collectives are contiguous and of the same dtype; destinations are symmetric, and so are sources, but for
/// those of reductions of up to 8 KiB.
///
/// With `stream`, a collective is done in the order of that stream, returns at once, and can be captured in graphs;
/// both arrays are symmetric. A team's calls on streams then come in one order, on one stream or on streams that wait
/// for one another. Without it, arrays in GPUs' memory go by the default stream, which the call waits for.
#[pyclass(frozen, module = "symrail")]
pub struct Team {
    /// None after `destroy`.
    team: RwLock<Option<Arc<HeldTeam>>>,
}

impl Team {
    pub fn of(team: Arc<HeldTeam>) -> Team {
        Team { team: RwLock::new(Some(team)) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Arc<HeldTeam>>> {
        self.team.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Puts a team in the place of this one, which is returned.
    fn put(&self, team: Option<Arc<HeldTeam>>) -> Option<Arc<HeldTeam>> {
        std::mem::replace(&mut *self.team.write().unwrap_or_else(std::sync::PoisonError::into_inner), team)
    }

    /// The team, unless it was destroyed.
    pub fn held(&self) -> PyResult<Arc<HeldTeam>> {
        let team = self.read().clone();
        let team = team.ok_or_else(|| raise(Kind::State, "the team was destroyed"))?;
        team.job.running()?;
        Ok(team)
    }
}

#[pymethods]
impl Team {
    /// The number of this PE in the team. Local.
    fn my_pe(&self) -> PyResult<Pe> {
        Ok(self.held()?.group().me())
    }

    /// The number of PEs of the team. Local.
    fn n_pes(&self) -> PyResult<u32> {
        Ok(self.held()?.group().size())
    }

    /// The number in the job of the team's PE `pe`. Local.
    fn translate(&self, pe: i64) -> PyResult<Pe> {
        self.held()?.pe(pe).map_err(failed)
    }

    /// The team for kernels on this PE's GPU, valid until `destroy`: `symrail_team_t` as an integer, 0 for all PEs. Local.
    ///
    /// Raises UnsupportedError with a heap that no GPU reaches.
    #[getter]
    fn handle(&self) -> PyResult<u64> {
        let team = self.held()?;
        team.job.streams()?;
        Ok(team.on_gpu.as_ref().map_or(0, crate::gpu::DeviceTeam::handle))
    }

    /// Connects to the team's PEs, as `symrail.connect_all` does to all. Local.
    fn connect(&self, py: Python<'_>) -> PyResult<()> {
        let team = self.held()?;
        waiting(py, None, || team.connect())
    }

    /// Makes a team of `size` of this team's PEs: those numbered `start`, `start + stride`, …. None on PEs that are not
    /// among them. PEs may name different parts in one call, if these have no PE in common. Collective over this team.
    /// `timeout` is as for `barrier`.
    #[pyo3(signature = (start, stride, size, *, timeout=None))]
    fn split_strided(
        &self,
        py: Python<'_>,
        start: i64,
        stride: i64,
        size: i64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Team>> {
        let team = self.held()?;
        let part = team.group().part(start, stride, size).ok_or_else(|| {
            let pes = team.group().size();
            raise(
                Kind::Argument,
                &format!("{size} PEs from {start} on, {stride} apart, are not among the team's {pes}"),
            )
        })?;
        let made = waiting(py, timeout, || team.split(part))?;
        Ok(made.map(|made| Team::of(Arc::new(made))))
    }

    /// Gives the team up. Later calls on it raise StateError. Collective over the team. `timeout` is as for `barrier`.
    ///
    /// Raises StateError on all PEs if one of them still uses the team, which then stays: `pe`.
    #[pyo3(signature = (*, timeout=None))]
    fn destroy(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        if let Some(team) = &*self.read() {
            team.job.running()?;
            if team.is_world {
                return Err(raise(Kind::State, "the team of all PEs stays until finalize"));
            }
        }
        // The waits below give Python's lock up, so that the place is not locked meanwhile.
        let Some(team) = self.put(None) else { return Ok(()) };
        let own = Arc::try_unwrap(team);
        let used = waiting(py, timeout, || own.as_ref().unwrap_or_else(|used| used).gather(&[own.is_err().into()]))?;
        let user = used.iter().position(|&used| used != 0);
        match (own, user) {
            (Ok(team), None) => waiting(py, timeout, || team.destroy()),
            (own, user) => {
                let team = own.map_or_else(|used| used, Arc::new);
                let pe = team.group().pe(user.unwrap_or_default() as Pe);
                self.put(Some(team));
                let why =
                    "still has a Communicator, Group or PointToPoint of the team, or a thread in one of its calls";
                Err(raise_of(Kind::State, &format!("PE {pe} {why}: free them before"), pe))
            }
        }
    }

    /// Completes what this PE has started, and waits for all PEs of the team to have done so. Collective over the team.
    /// `timeout` is in seconds; after an exception the team is not used again.
    /// With `stream`, the stream waits, as for `Runtime.barrier_all`.
    #[pyo3(signature = (*, timeout=None, stream=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let team = self.held()?;
        let barrier = || {
            let awaited = team.job.under_way.awaited();
            awaited.end(waiting(py, timeout, || team.barrier())).and_then(|()| team.job.check())
        };
        team.job.barrier(py, team.on_gpu.as_ref(), true, stream, barrier)
    }

    /// Waits for all PEs of the team. Collective over the team. `timeout` is as for `barrier`, and so is
    /// `stream`.
    #[pyo3(signature = (*, timeout=None, stream=None))]
    fn sync(&self, py: Python<'_>, timeout: Option<f64>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let team = self.held()?;
        team.job.barrier(py, team.on_gpu.as_ref(), false, stream, || waiting(py, timeout, || team.sync()))
    }

    /// Whether all PEs of the team pass True. Collective over the team. `timeout` is as for `barrier`.
    #[pyo3(signature = (agrees, *, timeout=None))]
    fn all_agree(&self, py: Python<'_>, agrees: bool, timeout: Option<f64>) -> PyResult<bool> {
        let team = self.held()?;
        let mut word = [u64::from(agrees)];
        waiting(py, timeout, || raw::and_of_all(&team, &mut word))?;
        Ok(word[0] == 1)
    }

    /// The numbers of all PEs of the team, in their order; all pass as many. Collective over the team.
    /// `timeout` is as for `barrier`.
    #[pyo3(signature = (numbers, *, timeout=None))]
    #[allow(clippy::needless_pass_by_value)] // Python hands lists over by value
    fn gather_numbers(&self, py: Python<'_>, numbers: Vec<u64>, timeout: Option<f64>) -> PyResult<Vec<u64>> {
        let team = self.held()?;
        waiting(py, timeout, || team.gather(&numbers))
    }

    /// Copies `src` of the team's PE `root` to `dst` on all of its PEs. Collective over the team.
    #[pyo3(signature = (dst, src, root=0, *, stream=None))]
    fn broadcast(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        root: i64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let team = self.held()?;
        team.pe(root).map_err(failed)?;
        let (of, root) = (Arrays::of(&team, dst, src, stream)?, root as u32);
        of.need(of.dest.len, of.dest.len)?;
        of.run(py, &team, Collective::Broadcast(root), |to, from| raw::broadcast(&team, to, from, of.extent(), root))
    }

    /// Copies `src` of each PE, as long on all, to `dst` on all, one behind the other. Collective over the team.
    #[pyo3(signature = (dst, src, *, stream=None))]
    fn fcollect(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let (of, pes) = (Arrays::of(&team, dst, src, stream)?, team.group().size() as usize);
        of.need(of.source.len * pes, of.source.len)?;
        of.run(py, &team, Collective::Fcollect, |to, from| raw::fcollect(&team, to, from, of.extent()))
    }

    /// As `fcollect`, where PEs have sources of different lengths; `dst` holds them all. On a stream, `quiet` raises it
    /// if `dst` does not. Collective over the team.
    #[pyo3(signature = (dst, src, *, stream=None))]
    fn collect(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let of = Arrays::of(&team, dst, src, stream)?;
        if of.on_host() {
            let lengths = waiting(py, None, || team.gather(&[of.source.len as u64, of.dest.len as u64]))?;
            let (sources, destinations) = (lengths.iter().step_by(2), lengths.iter().skip(1).step_by(2));
            let all = sources.sum::<u64>();
            if let Some((index, length)) = (0..).zip(destinations).find(|&(_, &length)| length < all) {
                let pe = team.group().pe(index);
                let why = format!("dst of PE {pe} has {length} elements; all sources together have {all}");
                return Err(raise_of(Kind::Argument, &why, pe));
            }
        }
        of.run(py, &team, Collective::Collect, |to, from| raw::collect(&team, to, from, of.extent()))
    }

    /// Combines the elements of all PEs' `src` into `dst` on all: "sum", "prod", "min", "max", "and", "or", "xor", "avg".
    /// The result has the same bits on all PEs; "min" and "max" of a NaN are NaN. Collective over the team.
    #[pyo3(signature = (dst, src, op, *, stream=None))]
    fn reduce(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let of = Arrays::of(&team, dst, src, stream)?;
        of.need(of.dest.len, of.dest.len)?;
        let (how, count) = (Combining::of(op, of.dest.ty)?, of.dest.len);
        let (on_host, on_stream) = (how.on_host, how.on_stream(&of)?);
        of.run(py, &team, on_stream.map(Collective::Reduce), |to, from| raw::reduce(&team, to, from, count, on_host))
    }

    /// Combines the blocks of all PEs' `src`, one for each PE of the team, and leaves each PE its own in `dst`.
    /// Collective over the team.
    #[pyo3(signature = (dst, src, op, *, stream=None))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let (of, pes) = (Arrays::of(&team, dst, src, stream)?, team.group().size() as usize);
        of.need(of.dest.len, of.dest.len * pes)?;
        let (how, count) = (Combining::of(op, of.dest.ty)?, of.dest.len);
        let (on_host, on_stream) = (how.on_host, how.on_stream(&of)?);
        of.run(py, &team, on_stream.map(Collective::ReduceScatter), |to, from| {
            raw::reduce_scatter(&team, to, from, count, on_host)
        })
    }

    /// Copies block `i` of `src`, one for each PE of the team, to PE `i`, where it becomes block `my_pe()` of `dst`.
    /// Collective over the team.
    #[pyo3(signature = (dst, src, *, stream=None))]
    fn alltoall(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let (of, pes) = (Arrays::of(&team, dst, src, stream)?, team.group().size() as usize);
        let whole = of.source.len.next_multiple_of(pes);
        of.need(whole, whole)?;
        let block = of.source.bytes() / pes;
        let extent = Extent { bytes: block, ty: of.dest.ty.element() };
        of.run(py, &team, Collective::Alltoall(block), |to, from| raw::alltoall(&team, to, from, extent))
    }

    fn __repr__(&self) -> String {
        match &*self.read() {
            Some(team) => format!("<symrail.Team: PE {} of {}>", team.group().me(), team.group().size()),
            None => "<symrail.Team, destroyed>".into(),
        }
    }
}
