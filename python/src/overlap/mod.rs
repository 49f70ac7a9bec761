//! Products of tensor-parallel layers: the calls of `symrail_overlap` on the numbers of arrays. Programs call
//! `symrail/overlap`, which makes arrays with axes of the results.
//!
//! | file | concept |
//! |---|---|
//! | here | host memory; errors |
//! | `on_gpu` | GPU memory, by addresses |
//! | `point_to_point` | copies between two ranks, in the order of streams |

#![allow(clippy::needless_pass_by_value)] // Python hands arrays over by value

pub mod on_gpu;
pub mod point_to_point;

use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use symrail::{TeamHeap, rounds, with_timeout};
use symrail_overlap::cuda::GpuProducts;
use symrail_overlap::{Error, Layout, Reduced, Weight};

use crate::deferred_free::{CollectiveFree, DeferredFree};
use crate::errors::{Kind, failed, failed_on_gpu, failed_round, raise, raise_of};
use crate::held::HeldTeam;
use crate::interrupt;
use crate::job::Job;
use crate::runtime::Runtime;
use crate::team::Team;

/// The plans of a team, and the symmetric memory that they are in.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct Products {
    parts: DeferredFree<Parts>,
    /// The pieces of a shard; `None`: plans choose.
    pieces: Option<usize>,
    /// The longest time that a call waits for ranks that live; `None`: no limit.
    limit: Option<Duration>,
    team: Arc<HeldTeam>,
}

struct Parts {
    /// Made by the first product on a GPU.
    on_gpu: Option<GpuProducts>,
    products: symrail_overlap::Products,
    /// The memory of the plans.
    heap: TeamHeap,
}

impl CollectiveFree for Parts {
    const KIND: &'static str = "a Group of symrail.overlap";

    fn free_on_all(self) -> PyResult<()> {
        let Parts { on_gpu, products, heap } = self;
        on_gpu.as_ref().map_or(Ok(()), GpuProducts::finish).map_err(raised)?;
        drop((on_gpu, products));
        heap.free().map_err(failed)
    }
}

/// Numbers of an array.
type Numbers<'py> = PyReadonlyArray1<'py, f32>;
/// A weight: its numbers, its numbers of inputs and outputs, whether the inputs of an output are contiguous, and a
/// bias.
type Factor<'py> = (Numbers<'py>, (usize, usize), bool, Option<Numbers<'py>>);
/// Rows of a result.
type Made<'py> = Bound<'py, PyArray2<f32>>;

#[pymethods]
impl Products {
    /// Takes bytes of each PE's heap for products of a team, whose shards are cut into so many pieces. Collective over
    /// all PEs, each with its team.
    #[new]
    fn new(
        py: Python<'_>,
        runtime: &Runtime,
        team: &Team,
        heap_bytes: usize,
        pieces: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Products> {
        let (team, job) = (team.held()?, runtime.job());
        job.running()?;
        let limit = interrupt::parse_timeout(timeout)?;
        runtime.free_deferred(py, timeout, Parts::KIND)?;
        let heap = interrupt::waiting(py, timeout, || TeamHeap::new(job.runtime(), heap_bytes))?;
        let products = symrail_overlap::Products::new(&heap, pieces);
        let parts = DeferredFree::new(Arc::clone(job), Parts { on_gpu: None, products, heap });
        Ok(Products { parts, pieces, limit, team })
    }

    /// The rows of all ranks times this rank's weight, and these rows on request.
    fn all_gather_matmul<'py>(
        &self,
        py: Python<'py>,
        rows: (Numbers<'py>, usize),
        factor: Factor<'py>,
        wanted: bool,
    ) -> PyResult<(Made<'py>, Option<Made<'py>>)> {
        let (own, rows, weight) = (numbers(&rows.0)?, rows.1, weight(&factor)?);
        let made = self.run(py, |products, team| products.all_gather_matmul(team, own, rows, &weight, wanted))?;
        let product = matrix(py, made.product, made.rows, weight.outputs)?;
        let gathered = made.gathered.map(|all| matrix(py, all, made.rows, weight.inputs));
        Ok((product, gathered.transpose()?))
    }

    /// The sum of all ranks' rows times their weights: all rows, or this rank's.
    fn matmul_reduce<'py>(
        &self,
        py: Python<'py>,
        rows: (Numbers<'py>, usize, usize),
        factor: Factor<'py>,
        everywhere: bool,
    ) -> PyResult<Made<'py>> {
        let (weight, (rows, all, own)) = (weight(&factor)?, (numbers(&rows.0)?, rows.1, rows.2));
        let reduced = if everywhere { Reduced::Everywhere } else { Reduced::ToShards };
        let sums = self.run(py, |products, team| products.matmul_reduce(team, rows, all, own, &weight, reduced))?;
        matrix(py, sums, if everywhere { all } else { own }, weight.outputs)
    }

    /// Tells the other ranks that this one was refused a product on host memory, whose sums go everywhere or to shards;
    /// None: that of the rows of all ranks.
    fn tell(&self, py: Python<'_>, everywhere: Option<bool>) -> PyResult<()> {
        let reduced = everywhere.map(|everywhere| if everywhere { Reduced::Everywhere } else { Reduced::ToShards });
        self.run(py, |products, team| products.refuse(team, reduced))
    }

    /// Raises the errors of rounds on a GPU that are over.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = self.with_parts(py, |parts, _| parts.on_gpu.as_mut().map_or(Ok(()), GpuProducts::check))?;
        checked.map_err(raised)
    }

    /// Gives the memory back. Later calls raise StateError. Collective over all PEs.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let Some(Parts { on_gpu, mut products, heap }) = self.parts.take(py)? else { return Ok(()) };
        self.team.job.running()?;
        let free = || {
            let freed = on_gpu.map_or(Ok(()), |mut on_gpu| on_gpu.free(&self.team));
            let freed = freed.and(products.free(&self.team));
            drop(products);
            heap.free()?;
            freed
        };
        py.detach(|| with_timeout(self.limit, free)).map_err(raised)
    }
}

impl Products {
    /// Makes a call on host memory.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut symrail_overlap::Products, &HeldTeam) -> symrail_overlap::Result<R> + Send,
    ) -> PyResult<R> {
        self.with_parts(py, |parts, team| call(&mut parts.products, team))?.map_err(raised)
    }

    /// Makes a call, without Python's lock, one at a time.
    fn with_parts<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Parts, &HeldTeam) -> R + Send) -> PyResult<R> {
        self.team.job.running()?;
        let call = |parts: &mut Parts| with_timeout(self.limit, || call(parts, &self.team));
        let result = py.detach(|| self.parts.with(call));
        result?.ok_or_else(|| raise(Kind::State, "this group was given back by free()"))
    }

    fn job(&self) -> &Job {
        &self.team.job
    }
}

/// The exception for an error.
fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Runtime(error) => failed(error),
        Error::Round(rounds::Error::Aborted { by, lost: None, .. }) => raise_of(Kind::State, &text, by),
        Error::Round(error) => failed_round(error),
        Error::NoPlan { .. } => raise(Kind::State, &text),
        Error::Unsupported { .. } => raise(Kind::Unsupported, &text),
        Error::Gpu(error) => failed_on_gpu(error),
        _ => raise(Kind::Argument, &text),
    }
}

fn matrix(py: Python<'_>, numbers: Vec<f32>, rows: usize, columns: usize) -> PyResult<Made<'_>> {
    PyArray1::from_vec(py, numbers).reshape([rows, columns])
}

fn numbers<'a>(array: &'a Numbers<'_>) -> PyResult<&'a [f32]> {
    array.as_slice().map_err(|error| raise(Kind::Argument, &error.to_string()))
}

fn weight<'a>((values, (inputs, outputs), by_outputs, bias): &'a Factor<'_>) -> PyResult<Weight<'a>> {
    let layout = if *by_outputs { Layout::ByOutputs } else { Layout::ByInputs };
    let bias = bias.as_ref().map(numbers).transpose()?;
    Ok(Weight { bias, ..Weight::new(numbers(values)?, layout, *inputs, *outputs) })
}
