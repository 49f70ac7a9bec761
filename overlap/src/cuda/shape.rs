//! The shapes of products on GPUs, and the operands of a round.

use symrail::Pe;
use symrail_core::DataType;
use symrail_cuda::cublaslt::{Product as Multiplication, multiplies};

use crate::error::{Error, Result};
use crate::product::Product;
use crate::shards::{Schedule, Shards};
use crate::weight::Layout;

/// The shape of a product: rows of `inputs` numbers by `outputs` rows of as many numbers. All ranks of an all-gather
/// have the same `inputs`, all ranks of a reduction the same `outputs`. Numbers and layout are the same on all ranks.
#[derive(Debug, Clone)]
pub struct GpuShape {
    /// The rows of each rank.
    pub shards: Shards,
    /// Numbers of a row of both factors.
    pub inputs: usize,
    /// Numbers of a row of the product.
    pub outputs: usize,
    /// The types of the first factor's numbers, the weight's, and the product's and the bias's.
    pub numbers: [DataType; 3],
    /// The order of the weight's numbers.
    pub layout: Layout,
    /// How a round is carried out: see [`Schedule::choose_on_gpu`].
    pub schedule: Schedule,
    /// The number of rows for which cuBLASLt chooses the algorithm of all pieces. Plans with the same number give the
    /// same bits. Without it, cuBLASLt chooses what it prefers for the number of rows of each product.
    pub chosen_for: Option<usize>,
}

impl GpuShape {
    /// Returns an error for numbers that cuBLASLt does not multiply.
    pub(super) fn check(&self, pe: Pe, product: Product) -> Result<()> {
        let [rows, weight, of_product] = self.numbers.map(|ty| ty.size() == 1);
        if !self.numbers.into_iter().all(multiplies) || of_product || rows != weight || self.inputs == 0 {
            let (product, numbers, inputs) = (product.name(), self.numbers, self.inputs);
            return Err(Error::Unsupported { pe, product, numbers, inputs });
        }
        Ok(())
    }

    /// The product of this rank. The ranks may have different inputs or outputs.
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

/// The operands of a round, as addresses of the GPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operands {
    /// For an all-gather this rank's rows; for a reduction all rows, with this rank's inputs.
    pub rows: u64,
    /// This rank's weight.
    pub weight: u64,
    /// The bias that is added to each row of the result, or 0. An all-gather of 8-bit numbers accepts a bias for 16-bit
    /// products only.
    pub bias: u64,
    /// The result.
    pub output: u64,
    /// For 8-bit numbers: the addresses of the 32-bit floats that scale the rows and the weight.
    pub scales: [u64; 2],
}
