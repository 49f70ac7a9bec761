//! What plans on GPUs multiply, and what their rounds work on.

use symrail::Pe;
use symrail_cuda::cublaslt::{Number, Product as Multiplication};

use crate::error::{Error, Result};
use crate::exchange::Product;
use crate::shards::{Schedule, Shards};
use crate::weight::Layout;

/// What a plan multiplies: rows of `inputs` numbers by `outputs` rows of as many. All ranks of an all-gather have the
/// same `inputs`, all ranks of a reduction the same `outputs`; numbers and layout are the same on all.
#[derive(Debug, Clone)]
pub struct GpuShape {
    /// The rows of each rank.
    pub shards: Shards,
    /// Numbers of a row of both factors.
    pub inputs: usize,
    /// Numbers of a row of the product.
    pub outputs: usize,
    /// The types of the first factor's numbers, the weight's, and the product's and the bias's.
    pub numbers: [Number; 3],
    /// How the weight lies.
    pub layout: Layout,
    /// How a round is carried out: see [`Schedule::choose_on_gpu`].
    pub schedule: Schedule,
    /// The rows for which cuBLASLt chooses how to sum, which is then done for all pieces: plans with the same number
    /// give the same bits. Without it, what it likes best for each number of rows that is multiplied.
    pub chosen_for: Option<usize>,
}

impl GpuShape {
    /// Refuses numbers that are not multiplied.
    pub(super) fn check(&self, pe: Pe, product: Product) -> Result<()> {
        let [rows, weight, of_product] = self.numbers;
        if of_product.is_short() || rows.is_short() != weight.is_short() || self.inputs == 0 {
            let (product, numbers, inputs) = (product.name(), self.numbers, self.inputs);
            return Err(Error::Unsupported { pe, product, numbers, inputs });
        }
        Ok(())
    }

    /// What a rank multiplies, of which the ranks may have different inputs or outputs.
    pub(super) fn multiplication(&self) -> Multiplication {
        Multiplication {
            rows: self.chosen_for.unwrap_or_else(|| self.schedule.piece_rows(&self.shards)).max(1),
            inputs: self.inputs,
            outputs: self.outputs,
            numbers: self.numbers,
            by_inputs: self.layout == Layout::ByInputs,
            has_bias: false,
            aligned: [0; 3],
            split: self.chosen_for.is_none(),
        }
    }
}

/// What a round works on, by addresses of the GPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operands {
    /// An all-gather: this rank's rows. A reduction: all rows, of this rank's inputs.
    pub rows: u64,
    /// This rank's weight.
    pub weight: u64,
    /// What is added to each row of the result, or 0. An all-gather of 8-bit numbers takes it for 16-bit products only.
    pub bias: u64,
    /// Where the result goes.
    pub output: u64,
    /// For 8-bit numbers: where the 32-bit floats are by which rows and weight are multiplied.
    pub scales: [u64; 2],
}
