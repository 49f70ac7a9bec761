//! Products on the GPU that the heap is in or pinned for, in the order of a stream. Tensors are addresses, which
//! `symrail/overlap` has checked.

use pyo3::prelude::*;
use symrail::Team;
use symrail_overlap::cuda::{DataType, GpuKernels, GpuPassed, GpuProducts, GpuRound, Operands, multiplies};
use symrail_overlap::{Error, Layout, Reduced};

use super::{Products, raised};
use crate::errors::{Kind, raise};
use crate::gpu::HeldGpu;

/// Rows: the number of this rank's rows, of all rows, whether all ranks know that, numbers in each, and their address.
type Rows = (usize, usize, bool, usize, u64);
/// A weight: inputs, outputs, whether the inputs of an output are contiguous, its address; the number and the address
/// of the bias, if there is one.
type Factor = (usize, usize, bool, u64, Option<(usize, u64)>);

/// A round on which all ranks have agreed, with its tensors.
#[pyclass(frozen, module = "symrail._symrail")]
pub struct GpuProduct {
    round: GpuRound,
    operands: Operands,
}

#[pymethods]
impl GpuProduct {
    /// Agrees with the other ranks on a round: `everywhere` is None for an all-gather; the types of the rows', the
    /// weight's and the product's numbers by name; addresses of scales of 8-bit numbers. Collective over the team.
    #[new]
    fn new(
        py: Python<'_>,
        products: &Products,
        everywhere: Option<bool>,
        rows: Rows,
        factor: Factor,
        numbers: (String, String, String),
        scales: (u64, u64),
    ) -> PyResult<GpuProduct> {
        let (own, all, known, of_row, at) = rows;
        let (inputs, outputs, by_outputs, weight, bias) = factor;
        let (of_rows, of_weight, of_product) = numbers;
        let numbers = [number(&of_rows)?, number(&of_weight)?, number(&of_product)?];
        let (of_bias, bias) = (bias.map(|(count, _)| count), bias.map_or(0, |(_, at)| at));
        let operands = Operands { rows: at, weight, bias, output: 0, scales: [scales.0, scales.1] };
        let passed = GpuPassed {
            reduced: everywhere.map(|everywhere| if everywhere { Reduced::Everywhere } else { Reduced::ToShards }),
            own,
            all,
            known,
            inputs: [of_row, inputs],
            outputs,
            bias: of_bias,
            numbers,
            layout: if by_outputs { Layout::ByOutputs } else { Layout::ByInputs },
            operands,
        };
        let round = products.on_gpu(py, |products, _, team| products.agree(team, &passed))?;
        Ok(GpuProduct { round, operands })
    }

    /// The rows of all ranks, and those of the result on this rank.
    #[getter]
    fn rows(&self) -> (usize, usize) {
        (self.round.all(), self.round.result())
    }

    /// Puts the round on a stream: the result's address, and that of a copy of all rows, or 0.
    fn post(&self, py: Python<'_>, products: &Products, stream: usize, to: (u64, u64)) -> PyResult<()> {
        let operands = Operands { output: to.0, ..self.operands };
        products.on_gpu(py, |products, held, _| {
            // SAFETY: the caller's tensors, of these sizes, which torch keeps until the stream has come so far.
            unsafe { products.post(&held.stream(stream), &self.round, &operands, to.1) }
        })
    }
}

impl Products {
    /// Makes a call on the GPU; the first call compiles the kernels.
    fn on_gpu<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut GpuProducts, &HeldGpu, &Team) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let held = self.job().streams()?;
        let pieces = self.pieces;
        let made = self.with_parts(py, |parts, team| {
            let on_gpu = match &mut parts.on_gpu {
                Some(on_gpu) => on_gpu,
                none => {
                    let kernels = GpuKernels::new(held.device(), &held.nvrtc()?)?;
                    none.insert(GpuProducts::new(&kernels, &parts.heap, pieces))
                }
            };
            call(on_gpu, held, team)
        })?;
        made.map_err(raised)
    }
}

/// Numbers that a GPU multiplies, by torch's name.
fn number(name: &str) -> PyResult<DataType> {
    let known = name.parse().ok().filter(|&ty| multiplies(ty));
    let wanted = "float32, float16, bfloat16, float8_e4m3fn or float8_e5m2";
    known.ok_or_else(|| raise(Kind::Unsupported, &format!("a product of {name}; wanted is {wanted}")))
}
