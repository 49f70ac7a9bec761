//! Arrays in pencils: the calls of `symrail_decomp` on the memory of arrays. `symrail/decomp.py` makes arrays with axes
//! of it, and is what programs call.

#![allow(clippy::needless_pass_by_value)] // Python hands arrays over by value

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use symrail_decomp::{
    Axis, Buffer, Decomposition, Error, Form, Grid, Halo, Plan, TeamHeap, Transpose, Tuning, Workspace, tune,
};

use crate::errors::{Kind, failed, raise, raise_of};
use crate::held;
use crate::job::Job;
use crate::runtime::Runtime;
use crate::view::View;

/// Bytes of the heap for what plans agree by.
const WORDS: usize = 1 << 20;

/// What a plan is for: whether it is a halo's, axes or axis and dimension, the period, bytes of an element, forms.
type Key = (bool, [usize; 2], bool, usize, [[usize; 3]; 4]);

/// An array over all PEs, and the job whose heap it uses, which is dropped after it. None after `free`.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct Pencils {
    grid: Grid,
    parts: Mutex<Option<Parts>>,
    job: Arc<Job>,
}

struct Parts {
    plans: HashMap<Key, Plan<'static>>,
    work: Option<Workspace>,
    array: Decomposition<'static>,
    /// Given back when all above is gone.
    heap: *mut TeamHeap<'static>,
}

// SAFETY: the heap is used under the mutex, or by the parts that are.
unsafe impl Send for Parts {}

impl Parts {
    /// The plan for this, and a workspace for it.
    fn plan(
        &mut self,
        key: Key,
        make: impl FnOnce(&Decomposition<'static>) -> symrail_decomp::Result<Plan<'static>>,
    ) -> symrail_decomp::Result<(&mut Plan<'static>, &mut Workspace)> {
        let Parts { plans, work, array, .. } = self;
        let plan = match plans.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let plan = new.insert(make(array)?);
                // As many bytes as any PE needs, which all have then: so all come to the same answer here.
                let needed = array.largest(plan.workspace_bytes())?;
                if work.as_ref().is_none_or(|work| work.bytes() < needed) {
                    work.take().map_or(Ok(()), |small| array.give_back(small))?;
                }
                plan
            }
        };
        if work.is_none() {
            *work = Some(array.workspace(plan.workspace_bytes())?);
        }
        match work {
            Some(work) => Ok((plan, work)),
            None => Err(Error::Plan { what: "workspace", reason: "there is none".into() }),
        }
    }
}

/// The exception for an error.
fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Runtime(error) => failed(error),
        Error::RefusedBy { by, .. } => raise_of(Kind::Argument, &text, by),
        Error::DeviceHeap { pe } => raise_of(Kind::Unsupported, &text, pe),
        Error::HeapFull { .. } => raise(Kind::HeapExhausted, &text),
        _ => raise(Kind::Argument, &text),
    }
}

fn axis(number: usize) -> PyResult<Axis> {
    Axis::ALL.get(number).copied().ok_or_else(|| raise(Kind::Argument, &format!("axis {number}: use 0, 1 or 2")))
}

#[pymethods]
impl Pencils {
    /// Spreads an array over all PEs: extents, process grid (by measuring if it is 0 0), memory orders, bytes of the
    /// heap for workspaces. Collective.
    #[new]
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        extents: [usize; 3],
        processes: [usize; 2],
        memory: [[usize; 3]; 3],
        heap_bytes: usize,
        element: usize,
    ) -> PyResult<Pencils> {
        let job = Arc::clone(runtime.job());
        job.running()?;
        // SAFETY: `Pencils` drops what is made before the job that it keeps.
        let rt = unsafe { held::runtime_of(&job) };
        let grid = Grid { memory, ..Grid::new(extents, processes) };
        let made = py.detach(move || {
            let mut team = rt.team_world()?;
            let heap = Box::into_raw(Box::new(TeamHeap::new(rt, heap_bytes.saturating_add(WORDS))?));
            // SAFETY: it lives until `free`, or for ever.
            let borrowed = unsafe { &*heap };
            let mut grid = grid;
            if grid.processes == [0, 0] {
                let (same_team, tuned) = tune(borrowed, team, grid, &Tuning { element, ..Tuning::default() })?;
                (team, grid) = (same_team, tuned.grid);
            }
            let array = Decomposition::new(borrowed, team, grid)?;
            Ok((grid, Parts { plans: HashMap::new(), work: None, array, heap }))
        });
        let (grid, parts) = made.map_err(raised)?;
        Ok(Pencils { grid, parts: Mutex::new(Some(parts)), job })
    }

    /// The process grid.
    #[getter]
    fn processes(&self) -> [usize; 2] {
        self.grid.processes
    }

    /// A pencil of a PE: first own elements, those behind the last, order of memory with the fastest axis first.
    fn pencil(&self, rank: usize, along: usize) -> PyResult<([usize; 3], [usize; 3], [usize; 3])> {
        let ranks: usize = self.grid.processes.iter().product();
        if rank >= ranks {
            return Err(raise(Kind::NoSuchPe, &format!("rank {rank}: there are {ranks}")));
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
    ) -> PyResult<()> {
        let (from, to) = (axis(axes.0)?, axis(axes.1)?);
        let buffers = [memory(&arrays.0, "src")?, memory(&arrays.1, "dst")?];
        let key = (false, [from.index(), to.index()], false, element, forms);
        let [input_halo, output_halo, input_padding, output_padding] = forms;
        let wanted = Transpose {
            input: Form { halo: input_halo, padding: input_padding },
            output: Form { halo: output_halo, padding: output_padding },
            ..Transpose::new((from, to), element)
        };
        self.run(py, key, move |array| array.transpose(&wanted), buffers)
    }

    /// Updates the halo of pencils along an axis in one dimension. Collective.
    fn halo(
        &self,
        py: Python<'_>,
        axis_and_dim: (usize, usize),
        array: Bound<'_, PyAny>,
        element: usize,
        widths: ([usize; 3], [usize; 3]),
        periodic: bool,
    ) -> PyResult<()> {
        let ((along, dim), (halo, padding)) = (axis_and_dim, widths);
        let along = axis(along)?;
        let (address, bytes) = memory(&array, "array")?;
        let key = (true, [along.index(), dim], periodic, element, [halo, padding, [0; 3], [0; 3]]);
        let form = Form { halo, padding };
        let wanted =
            Halo { axis: along, dim, periodic, form, element, fields: 1, mode: symrail_decomp::Mode::default() };
        self.run(py, key, move |array| array.halo(&wanted), [(address, bytes); 2])
    }

    /// Gives the memory back. Later calls raise StateError. Collective.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Parts { plans, work, array, heap }) = taken else { return Ok(()) };
        drop((plans, work, array));
        // SAFETY: nothing that uses it is left, and it was made so.
        let heap = unsafe { Box::from_raw(heap) };
        py.detach(move || heap.free()).map_err(raised)
    }
}

/// The address and the bytes of contiguous memory that may be written.
fn memory(array: &Bound<'_, PyAny>, role: &str) -> PyResult<(usize, usize)> {
    let view = View::of(array, role)?;
    if !view.contiguous || !view.writable || view.gpu.is_some() {
        return Err(raise(Kind::Argument, &format!("{role} is not contiguous, or read-only, or in a GPU's memory")));
    }
    Ok((view.bounds().address(), view.bytes()))
}

impl Pencils {
    /// Runs the plan with this key, without Python's lock, and one at a time.
    fn run(
        &self,
        py: Python<'_>,
        key: Key,
        make: impl FnOnce(&Decomposition<'static>) -> symrail_decomp::Result<Plan<'static>> + Send,
        buffers: [(usize, usize); 2],
    ) -> PyResult<()> {
        self.job.running()?;
        let result = py.detach(|| {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            let parts = parts.as_mut()?;
            let run = parts.plan(key, make).and_then(|(plan, work)| {
                // SAFETY: the caller keeps the arrays during its call, see `Span`.
                let [input, output] =
                    buffers.map(|(at, bytes)| unsafe { Buffer::raw(std::ptr::with_exposed_provenance_mut(at), bytes) });
                plan.run(input, output, work)
            });
            Some(run)
        });
        result.ok_or_else(|| raise(Kind::State, "the array was given back by free()"))?.map_err(raised)
    }
}
