//! Arrays in pencils: the calls of `symrail_decomp` on the memory of arrays. Programs call `symrail/decomp.py`, which
//! makes arrays with axes of it.

#![allow(clippy::needless_pass_by_value)] // Python hands arrays over by value

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use symrail::{TeamHeap, with_timeout};
use symrail_decomp::cuda::{GpuKernels, GpuMemory};
use symrail_decomp::operation::Kind;
use symrail_decomp::{
    AnyPlan, Axis, Decomposition, Error, Form, Grid, Halo, Mode, Operation, Transpose, Tuning, Workspace, tune_on,
};

use crate::deferred_free::{CollectiveFree, DeferredFree, defer_refused};
use crate::errors::{Kind as Raised, failed, failed_on_gpu, failed_round, raise, raise_of};
use crate::interrupt;
use crate::job::Job;
use crate::objects::hash;
use crate::runtime::Runtime;
use crate::stream::handle;

/// Bytes of the heap for the words with which plans synchronise.
const WORDS: usize = 1 << 20;

/// An array over all PEs, and the job whose heap it uses.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct Pencils {
    grid: Grid,
    /// The mode of plans.
    mode: Mode,
    parts: DeferredFree<Parts>,
    /// The longest time that a call waits for PEs that live; `None`: no limit.
    limit: Option<Duration>,
    job: Arc<Job>,
}

/// A plan, and the bytes of workspace that it needs, the same on all PEs.
struct Known {
    plan: AnyPlan,
    needed: usize,
}

struct Parts {
    plans: HashMap<Operation, Known>,
    work: Option<Workspace>,
    /// Workspaces that larger ones have replaced, which graphs may still use.
    replaced: Vec<Workspace>,
    array: Decomposition,
    /// There are kernels if arrays are in a GPU's memory.
    kernels: Option<GpuKernels>,
    heap: TeamHeap,
    /// Why PEs cannot compare calls any more.
    lost: Option<Error>,
}

impl CollectiveFree for Parts {
    const KIND: &'static str = "a Grid of symrail.decomp";

    fn free_on_all(self) -> PyResult<()> {
        let Parts { plans, work, replaced, array, kernels, heap, .. } = self;
        if let Some(kernels) = &kernels {
            kernels.device().gpu().synchronize().map_err(|error| raised(error.into()))?;
        }
        drop((plans, work, replaced, array, kernels));
        heap.free().map_err(failed)
    }
}

impl Parts {
    /// Compares a call among all PEs before it begins, within the time limit. If one of them refuses it, none makes it.
    /// Collective.
    fn agree(&mut self, halo: bool, call: u64, passed: symrail_decomp::Result<()>) -> symrail_decomp::Result<()> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let (team, limit) = (self.array.team(), self.array.runtime().timeout());
        let all = [("the kind of call", halo.into()), ("axes, elements, halo or padding", call)];
        let compared = with_timeout(limit, || team.compare_and_gather(name(halo), passed, &all, &[]));
        if let Err(late @ Error::Runtime(symrail::Error::Interrupted { .. })) = &compared {
            // What the others send later would be taken for a part of the next call.
            self.lost = Some(late.clone());
        }
        compared.map(drop)
    }

    /// The plan of an operation, and a workspace for it.
    fn plan(&mut self, wanted: Operation) -> symrail_decomp::Result<(&mut AnyPlan, &mut Workspace)> {
        let Parts { plans, work, replaced, array, kernels, .. } = self;
        let kernels = kernels.as_ref();
        let Known { plan, needed } = match plans.entry(wanted) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let plan = AnyPlan::new(array, kernels, &wanted)?;
                let needed = array.largest(plan.workspace_bytes())?;
                new.insert(Known { plan, needed })
            }
        };
        // All PEs decide alike here. The heap may have been full when the plan was made.
        if work.as_ref().is_some_and(|work| work.bytes() < *needed) {
            // Rounds that were posted may still use the old one.
            kernels.map_or(Ok(()), |kernels| kernels.device().gpu().synchronize())?;
            let small = work.take().map(|small| array.replace(small)).transpose()?;
            replaced.extend(small.flatten());
        }
        let work = match work {
            Some(work) => work,
            none => none.insert(array.workspace(*needed)?),
        };
        Ok((plan, work))
    }
}

/// The name of a call.
fn name(halo: bool) -> &'static str {
    if halo { "halo" } else { "transpose" }
}

/// The handle of a stream, if there is one.
fn handle_of(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    stream.map(handle).transpose()
}

/// Lets PEs know of a refusal, of which this PE has an exception.
fn refused(halo: bool) -> Error {
    Error::Plan { what: name(halo), reason: "its arguments were refused".into() }
}

/// Whether all PEs of the array get this error.
fn is_of_all(error: &Error) -> bool {
    use symrail::Error::{ParametersDiffer, TeamHeapFull};
    matches!(error, Error::Grid { .. } | Error::Runtime(TeamHeapFull { .. } | ParametersDiffer { .. }))
}

/// The exception for an error.
fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Runtime(error) => failed(error),
        Error::Gpu(error) => failed_on_gpu(error),
        Error::Round(error) => failed_round(error),
        Error::RefusedBy { by, .. } => raise_of(Raised::Argument, &text, by),
        _ => raise(Raised::Argument, &text),
    }
}

fn axis(number: usize) -> PyResult<Axis> {
    Axis::ALL.get(number).copied().ok_or_else(|| raise(Raised::Argument, &format!("axis {number}: use 0, 1 or 2")))
}

#[pymethods]
impl Pencils {
    /// Spreads an array over all PEs: extents, process grid (0 0: chosen by measuring), memory orders, bytes of the
    /// heap for workspaces; on the PE's GPU or on the host; the size of blocks that copy engines move, or whether the
    /// mode is measured. Collective.
    #[new]
    #[allow(clippy::too_many_arguments)] // as Python hands them over
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        extents: [usize; 3],
        processes: [usize; 2],
        memory: [[usize; 3]; 3],
        heap_bytes: usize,
        element: usize,
        on_gpu: bool,
        engines: Option<usize>,
        measured: bool,
        timeout: Option<f64>,
    ) -> PyResult<Pencils> {
        let job = Arc::clone(runtime.job());
        job.running()?;
        let limit = interrupt::parse_timeout(timeout)?;
        let no_gpu =
            || raise(Raised::Unsupported, "the symmetric heap is not in a GPU's memory: set SYMRAIL_HEAP_KIND=device");
        let gpu = if on_gpu { Some(job.gpu().ok_or_else(no_gpu)?) } else { None };
        runtime.free_deferred(py, timeout, Parts::KIND)?;
        let kernels = gpu.map(|gpu| {
            let nvrtc = gpu.nvrtc()?;
            GpuKernels::new(gpu.device(), &nvrtc)
        });
        let kernels = kernels.transpose().map_err(raised)?;
        let (rt, refused_in) = (job.runtime(), &*job);
        let grid = Grid { memory, ..Grid::new(extents, processes) };
        let make = move || {
            let mut team = rt.team_world()?;
            let heap = TeamHeap::new(rt, heap_bytes.saturating_add(WORDS))?;
            let (mut grid, mut mode) = (grid, Mode { engines, ..Mode::default() });
            let processes = Some(grid.processes).filter(|&given| given != [0, 0]);
            let spread = || {
                if measured || processes.is_none() {
                    // Plans are made in this mode alone.
                    let only = Some(mode).filter(|_| !measured);
                    let tuning = Tuning { element, processes, mode: only, ..Tuning::default() };
                    let (same_team, tuned) = tune_on(kernels.as_ref(), &heap, team, grid, &tuning)?;
                    (team, grid, mode) = (same_team, tuned.grid, tuned.mode);
                }
                Decomposition::new(&heap, team, grid)
            };
            match spread() {
                Ok(array) => {
                    let (plans, replaced) = (HashMap::new(), Vec::new());
                    Ok((grid, mode, Parts { plans, work: None, replaced, array, kernels, heap, lost: None }))
                }
                Err(error) => {
                    if is_of_all(&error) {
                        heap.free()?;
                    } else {
                        defer_refused(refused_in, Parts::KIND, heap);
                    }
                    Err(error)
                }
            }
        };
        let (grid, mode, parts) = py.detach(move || with_timeout(limit, make)).map_err(raised)?;
        Ok(Pencils { grid, mode, parts: DeferredFree::new(Arc::clone(&job), parts), limit, job })
    }

    /// The process grid.
    #[getter]
    fn processes(&self) -> [usize; 2] {
        self.grid.processes
    }

    /// The smallest blocks that copy engines move, in bytes.
    #[getter]
    fn engines(&self) -> Option<usize> {
        self.mode.engines
    }

    /// A pencil of a PE: the first own elements, those behind the last, and the memory order with the fastest axis
    /// first.
    fn pencil(&self, rank: usize, along: usize) -> PyResult<([usize; 3], [usize; 3], [usize; 3])> {
        let ranks: usize = self.grid.processes.iter().product();
        if rank >= ranks {
            return Err(raise(Raised::NoSuchPe, &format!("rank {rank}: there are {ranks}")));
        }
        let pencil = self.grid.pencil(rank, axis(along)?, Form::default());
        Ok((pencil.from, pencil.to, pencil.order))
    }

    /// Transposes the memory of pencils along one axis to that of pencils along another. Collective.
    fn transpose(
        &self,
        py: Python<'_>,
        axes: (usize, usize),
        arrays: (Bound<'_, PyAny>, Bound<'_, PyAny>),
        element: usize,
        forms: [[usize; 3]; 4],
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (from, to) = (axis(axes.0)?, axis(axes.1)?);
        let buffers = handle_of(stream.as_ref()).and_then(|stream| {
            let memory = |array, role| self.memory(array, role, stream);
            Ok(([memory(&arrays.0, "src")?, memory(&arrays.1, "dst")?], stream))
        });
        let [input_halo, output_halo, input_padding, output_padding] = forms;
        let wanted = Transpose {
            input: Form { halo: input_halo, padding: input_padding },
            output: Form { halo: output_halo, padding: output_padding },
            mode: self.mode,
            ..Transpose::new((from, to), element)
        };
        self.run(py, &[wanted.into()], buffers)
    }

    /// Updates the halo of pencils along an axis in all dimensions. Collective.
    #[allow(clippy::too_many_arguments)] // as Python hands them over
    fn halo(
        &self,
        py: Python<'_>,
        along: usize,
        array: Bound<'_, PyAny>,
        element: usize,
        widths: ([usize; 3], [usize; 3]),
        periods: [bool; 3],
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (axis, (halo, padding), mode) = (axis(along)?, widths, self.mode);
        let buffers =
            handle_of(stream.as_ref()).and_then(|stream| Ok(([self.memory(&array, "array", stream)?; 2], stream)));
        let form = Form { halo, padding };
        let update = |dim| Halo { axis, dim, periodic: periods[dim], form, element, fields: 1, mode };
        self.run(py, &[0, 1, 2].map(|dim| update(dim).into()), buffers)
    }

    /// Tells the other PEs that this one was refused a transpose or a halo, of these axes where they are right: by its
    /// rounds if GPUs have plans for them, since such calls are not compared, and else by a comparison. Returns why
    /// other PEs wait all the same.
    fn tell(
        &self,
        py: Python<'_>,
        halo: bool,
        axes: [Option<usize>; 2],
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Option<String>> {
        let stream = handle_of(stream.as_ref()).ok().flatten().unwrap_or(0);
        let kinds: Vec<Kind> = match halo {
            true => (0..3).map(|dim| Kind { halo, axes: [axes[0], Some(dim)] }).collect(),
            false => vec![Kind { halo, axes }],
        };
        let told = self.with(py, |parts| {
            let mut waiting = None;
            for kind in kinds {
                // SAFETY: the stream is of the GPU's, as every caller's.
                let round = |parts: &mut Parts| unsafe {
                    kind.refuse(parts.plans.iter_mut().map(|(operation, known)| (operation, &mut known.plan)), stream)
                };
                match parts.kernels.is_some().then(|| round(parts)).flatten() {
                    Some(told) => waiting = waiting.or(told.err()),
                    None => match parts.agree(halo, 0, Err(refused(halo))) {
                        Err(Error::Plan { .. }) => break,
                        told => told?,
                    },
                }
            }
            Ok(waiting)
        });
        told?.map_err(raised)
    }

    /// Frees the memory. Later calls raise StateError. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let Some(parts) = self.parts.take(py)? else { return Ok(()) };
        py.detach(move || with_timeout(self.limit, || parts.free_on_all()))
    }
}

impl Pencils {
    /// Contiguous memory that may be written: of a GPU, if there is a stream, else of the host.
    fn memory(&self, array: &Bound<'_, PyAny>, role: &str, stream: Option<usize>) -> PyResult<GpuMemory> {
        let view = self.job.any_view(array, role)?;
        let on_gpu = self.job.gpu().filter(|_| stream.is_some());
        if !view.contiguous || !view.writable || view.gpu.is_some() != on_gpu.is_some() {
            let place = if on_gpu.is_some() { "not in a GPU's memory" } else { "in a GPU's memory" };
            return Err(raise(Raised::Argument, &format!("{role} is not contiguous, or read-only, or {place}")));
        }
        let (span, bytes) = (view.bounds(), view.bytes());
        let at = on_gpu.map_or(span.address() as u64, |gpu| gpu.reached(span));
        Ok(GpuMemory { at, bytes })
    }

    /// Runs the plans of operations, without Python's lock, one at a time.
    fn run(
        &self,
        py: Python<'_>,
        all: &[Operation],
        buffers: PyResult<([GpuMemory; 2], Option<usize>)>,
    ) -> PyResult<()> {
        let none = GpuMemory { at: 0, bytes: 0 };
        // No memory is refused, which tells the peers.
        let (memory, stream) = buffers.as_ref().copied().unwrap_or(([none; 2], None));
        let is_right = buffers.is_ok();
        let run = |parts: &mut Parts, wanted: Operation| {
            let (halo, on_gpu) = (wanted.kind().halo, parts.kernels.is_some());
            // Rounds on GPUs do not wait for a comparison.
            if !on_gpu || !parts.plans.contains_key(&wanted) {
                let passed = if is_right { Ok(()) } else { Err(refused(halo)) };
                // Modes that differ are told apart when the plan is made.
                parts.agree(halo, hash(&format!("{:?}", wanted.in_mode(Mode::default()))), passed)?;
            }
            let (plan, work) = parts.plan(wanted)?;
            // SAFETY: the caller keeps the arrays during its call, see `Span`, and those of a GPU until its stream has
            // come so far.
            let ran = unsafe { plan.run(memory, work, stream.unwrap_or(0)) };
            // The other PEs do not know of an error on a GPU, and go on.
            if on_gpu { Ok(ran) } else { ran.map(Ok) }
        };
        let done = self.with(py, |parts| {
            let mut first = Ok(());
            for &wanted in all {
                match run(parts, wanted) {
                    Ok(ran) => first = first.and(ran),
                    Err(error) => return first.and(Err(error)),
                }
            }
            first
        })?;
        buffers.and_then(|_| done.map_err(raised))
    }

    /// Makes a call, without Python's lock, one at a time.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Parts) -> symrail_decomp::Result<R> + Send,
    ) -> PyResult<symrail_decomp::Result<R>> {
        self.job.running()?;
        let result = py.detach(|| self.parts.with(|parts| with_timeout(self.limit, || call(parts))));
        result?.ok_or_else(|| raise(Raised::State, "the array was given back by free()"))
    }
}
