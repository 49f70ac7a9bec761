//! The class `Team`: some PEs of the job, and what they do together.

use std::sync::{Arc, RwLock, RwLockReadGuard};

use pyo3::prelude::*;
use pyo3::types::PyAny;
use symrail::collective::Complex;
use symrail::{Pe, Reduction};

use crate::dtype::Type;
use crate::errors::{Kind, failed, raise};
use crate::held::HeldTeam;
use crate::interrupt::waiting;
use crate::raw;
use crate::stream;
use crate::view::View;
use crate::words;

/// Some PEs of the job, this one among them, numbered from 0 within the team. All of them make a team's collective
/// calls in the same order; two threads of a PE do not use one team at a time.
///
/// Arrays of collectives are contiguous and of the same dtype; destinations are symmetric, and so are sources, but for
/// those of reductions of up to 8 KiB.
#[pyclass(frozen, module = "symrail")]
pub struct Team {
    /// None after `destroy`.
    team: RwLock<Option<Arc<HeldTeam>>>,
}

/// What becomes of a collective's arrays.
struct Arrays {
    dest: View,
    source: View,
}

impl Team {
    pub fn of(team: Arc<HeldTeam>) -> Team {
        Team { team: RwLock::new(Some(team)) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Arc<HeldTeam>>> {
        self.team.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn held(&self) -> PyResult<Arc<HeldTeam>> {
        let team = self.read().clone();
        let team = team.ok_or_else(|| raise(Kind::State, "the team was destroyed"))?;
        team.job.running()?;
        Ok(team)
    }

    /// The arrays of a collective, whose lengths the caller compares.
    fn arrays(team: &HeldTeam, dest: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<Arrays> {
        let (to, from) = (team.job.view(dest, "dst")?, team.job.view(source, "src")?);
        for (view, role) in [(&to, "dst"), (&from, "src")] {
            if !view.contiguous {
                return Err(raise(
                    Kind::Argument,
                    &format!("{role} is not contiguous; collectives take contiguous arrays"),
                ));
            }
            if !view.aligned {
                return Err(raise(Kind::Argument, &format!("the elements of {role} are not aligned to their size")));
            }
        }
        if to.ty != from.ty {
            return Err(raise(
                Kind::Argument,
                &format!("dtypes differ: dst has {}, src {}", to.ty.name(), from.ty.name()),
            ));
        }
        Ok(Arrays { dest: to, source: from })
    }
}

/// Refuses lengths that do not go together.
fn lengths(found: (usize, usize), wanted: (usize, usize)) -> PyResult<()> {
    if found == wanted {
        return Ok(());
    }
    let (to, from) = wanted;
    Err(raise(Kind::Argument, &format!("dst has {} elements and src {}; they need {to} and {from}", found.0, found.1)))
}

/// How elements of a type are combined.
fn reduction(op: &Bound<'_, PyAny>, ty: Type) -> PyResult<Reduction> {
    let op = words::chosen(op, &["sum", "prod", "min", "max", "and", "or", "xor"], "op")?;
    macro_rules! of {
        ($t:ty: $($method:ident),*) => {
            [$(Reduction::$method::<$t>()),*].get(op).copied()
        };
    }
    macro_rules! integer {
        ($t:ty) => { of!($t: sum, product, min, max, and, or, xor) };
    }
    let found = match (ty.kind, ty.bytes) {
        (b'i', 1) => integer!(i8),
        (b'i', 2) => integer!(i16),
        (b'i', 4) => integer!(i32),
        (b'i', 8) => integer!(i64),
        (b'u', 1) => integer!(u8),
        (b'u', 2) => integer!(u16),
        (b'u', 4) => integer!(u32),
        (b'u', 8) => integer!(u64),
        (b'f', 4) => of!(f32: sum, product, min, max),
        (b'f', 8) => of!(f64: sum, product, min, max),
        (b'c', 8) => of!(Complex<f32>: sum, product),
        (b'c', 16) => of!(Complex<f64>: sum, product),
        _ => None,
    };
    found.ok_or_else(|| raise(Kind::Argument, &format!("no such reduction of elements of type {}", ty.name())))
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

    /// Makes a team of `size` of this team's PEs: those numbered `start`, `start + stride`, …. None on PEs that are not
    /// among them. PEs may name different parts in one call, if these have no PE in common. Collective over this team.
    fn split_strided(&self, py: Python<'_>, start: i64, stride: i64, size: i64) -> PyResult<Option<Team>> {
        let team = self.held()?;
        let part = team.group().part(start, stride, size).ok_or_else(|| {
            let pes = team.group().size();
            raise(
                Kind::Argument,
                &format!("{size} PEs from {start} on, {stride} apart, are not among the team's {pes}"),
            )
        })?;
        let made = waiting(py, None, || team.split(part))?;
        Ok(made.map(|made| Team::of(Arc::new(made))))
    }

    /// Gives the team up. Later calls on it raise StateError. Collective over the team.
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        let mut place = self.team.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        match place.take().map(Arc::try_unwrap) {
            None => Ok(()),
            Some(Ok(team)) => waiting(py, None, || team.destroy()),
            Some(Err(used)) => {
                *place = Some(used);
                Err(raise(Kind::State, "the team is that of all PEs, or another thread is in one of its calls"))
            }
        }
    }

    /// Completes what this PE has started, and waits for all PEs of the team to have done so. Collective over the team.
    /// `timeout` is in seconds; after an exception the team cannot meet again.
    /// With `stream`, the stream waits, as for `Runtime.barrier_all`.
    #[pyo3(signature = (*, timeout=None, stream=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let team = self.held()?;
        match stream.map(stream::handle).transpose()? {
            Some(stream) => py.detach(|| team.job.streams()?.meet(team.on_gpu.as_ref(), true, stream)),
            None => waiting(py, timeout, || team.barrier()).and_then(|()| team.job.check()),
        }
    }

    /// Waits for all PEs of the team. Collective over the team. `timeout` is as for `barrier`, and so is
    /// `stream`.
    #[pyo3(signature = (*, timeout=None, stream=None))]
    fn sync(&self, py: Python<'_>, timeout: Option<f64>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let team = self.held()?;
        match stream.map(stream::handle).transpose()? {
            Some(stream) => py.detach(|| team.job.streams()?.meet(team.on_gpu.as_ref(), false, stream)),
            None => waiting(py, timeout, || team.sync()),
        }
    }

    /// Copies `src` of the team's PE `root` to `dst` on all of its PEs. Collective over the team.
    #[pyo3(signature = (dst, src, root=0))]
    fn broadcast(&self, py: Python<'_>, dst: &Bound<'_, PyAny>, src: &Bound<'_, PyAny>, root: i64) -> PyResult<()> {
        let team = self.held()?;
        team.pe(root).map_err(failed)?;
        let of = Team::arrays(&team, dst, src)?;
        lengths((of.dest.len, of.source.len), (of.dest.len, of.dest.len))?;
        waiting(py, None, || raw::broadcast(&team, of.dest.bounds(), of.source.bounds(), root as u32))
    }

    /// Copies `src` of each PE, as long on all, to `dst` on all, one behind the other. Collective over the team.
    fn fcollect(&self, py: Python<'_>, dst: &Bound<'_, PyAny>, src: &Bound<'_, PyAny>) -> PyResult<()> {
        let team = self.held()?;
        let (of, pes) = (Team::arrays(&team, dst, src)?, team.group().size() as usize);
        lengths((of.dest.len, of.source.len), (of.source.len * pes, of.source.len))?;
        waiting(py, None, || raw::fcollect(&team, of.dest.bounds(), of.source.bounds()))
    }

    /// As `fcollect`, where PEs have sources of different lengths; `dst` holds them all. Collective over the team.
    fn collect(&self, py: Python<'_>, dst: &Bound<'_, PyAny>, src: &Bound<'_, PyAny>) -> PyResult<()> {
        let team = self.held()?;
        let of = Team::arrays(&team, dst, src)?;
        let mut all = [(of.source.len) as u64];
        waiting(py, None, || raw::reduce_words(&team, &mut all, Reduction::sum::<u64>()))?;
        if (of.dest.len as u64) < all[0] {
            return Err(raise(
                Kind::Argument,
                &format!("dst has {} elements; all sources together have {}", of.dest.len, all[0]),
            ));
        }
        waiting(py, None, || raw::collect(&team, of.dest.bounds(), of.source.bounds()))
    }

    /// Combines the elements of all PEs' `src` into `dst` on all: "sum", "prod", "min", "max", "and", "or", "xor". The
    /// result has the same bits on all PEs. Collective over the team.
    fn reduce(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let of = Team::arrays(&team, dst, src)?;
        lengths((of.dest.len, of.source.len), (of.dest.len, of.dest.len))?;
        let reduction = reduction(op, of.dest.ty)?;
        waiting(py, None, || raw::reduce(&team, of.dest.bounds(), of.source.bounds(), of.dest.len, reduction))
    }

    /// Combines the blocks of all PEs' `src`, one for each PE of the team, and leaves each PE its own in `dst`. Collective
    /// over the team.
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        op: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let team = self.held()?;
        let (of, pes) = (Team::arrays(&team, dst, src)?, team.group().size() as usize);
        lengths((of.dest.len, of.source.len), (of.dest.len, of.dest.len * pes))?;
        let reduction = reduction(op, of.dest.ty)?;
        waiting(py, None, || raw::reduce_scatter(&team, of.dest.bounds(), of.source.bounds(), of.dest.len, reduction))
    }

    /// Copies block `i` of `src`, one for each PE of the team, to PE `i`, where it becomes block `my_pe()` of `dst`.
    /// Collective over the team.
    fn alltoall(&self, py: Python<'_>, dst: &Bound<'_, PyAny>, src: &Bound<'_, PyAny>) -> PyResult<()> {
        let team = self.held()?;
        let (of, pes) = (Team::arrays(&team, dst, src)?, team.group().size() as usize);
        lengths(
            (of.dest.len, of.source.len),
            (of.source.len.next_multiple_of(pes), of.source.len.next_multiple_of(pes)),
        )?;
        waiting(py, None, || raw::alltoall(&team, of.dest.bounds(), of.source.bounds(), of.source.bytes() / pes))
    }

    fn __repr__(&self) -> String {
        match &*self.read() {
            Some(team) => format!("<symrail.Team: PE {} of {}>", team.group().me(), team.group().size()),
            None => "<symrail.Team, destroyed>".into(),
        }
    }
}
