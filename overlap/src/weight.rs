//! The second factor, which each rank has its own part of, and products with it.

use std::ops::Range;

use symrail::Pe;

use crate::error::{Error, Result};
use crate::product::Product;

/// A matrix of `inputs` x `outputs` numbers, and the bias that is added to each row of a product with it.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// The numbers of the matrix.
    pub values: &'a [f32],
    /// The order of the numbers.
    pub layout: Layout,
    /// The number of rows.
    pub inputs: usize,
    /// The number of columns.
    pub outputs: usize,
    /// The bias: a number for each column.
    pub bias: Option<&'a [f32]>,
}

/// The order of the numbers of a [`Weight`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// All outputs of an input are contiguous: a row-major matrix.
    #[default]
    ByInputs,
    /// All inputs of an output are contiguous: as in PyTorch's linear layers.
    ByOutputs,
}

impl<'a> Weight<'a> {
    /// A matrix without a bias.
    #[must_use]
    pub fn new(values: &'a [f32], layout: Layout, inputs: usize, outputs: usize) -> Weight<'a> {
        Weight { values, layout, inputs, outputs, bias: None }
    }

    /// Adds a bias.
    #[must_use]
    pub fn with_bias(self, bias: &'a [f32]) -> Weight<'a> {
        Weight { bias: Some(bias), ..self }
    }

    /// Checks that the matrix multiplies rows of `inputs` numbers, and that its arrays have the lengths of its shape.
    pub(crate) fn check(&self, pe: Pe, product: Product, inputs: usize) -> Result<()> {
        let bias = self.bias.map_or(self.outputs, <[f32]>::len);
        Error::unless_long(pe, product, "a column of the weight", self.inputs, inputs)?;
        Error::unless_long(pe, product, "the weight", self.values.len(), self.inputs.saturating_mul(self.outputs))?;
        Error::unless_long(pe, product, "the bias", bias, self.outputs)
    }

    /// Multiplies `rows` rows of `inputs` numbers by the matrix.
    ///
    /// # Safety
    /// `from` is valid for reads of these rows, and `to` for writes of as many rows of `outputs` numbers. They do not
    /// overlap. `values` has `inputs` x `outputs` numbers.
    pub(crate) unsafe fn multiply(&self, rows: usize, from: *const f32, to: *mut f32) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let (down, right) = match self.layout {
            Layout::ByInputs => (outputs as isize, 1),
            Layout::ByOutputs => (1, inputs as isize),
        };
        let values = self.values.as_ptr();
        // SAFETY: the caller's promise; the strides stay within `inputs` x `outputs` numbers.
        unsafe {
            matrixmultiply::sgemm(
                rows,
                inputs,
                outputs,
                1.0,
                from,
                inputs as isize,
                1,
                values,
                down,
                right,
                0.0,
                to,
                outputs as isize,
                1,
            );
        }
    }

    /// Adds the bias, if there is one, to some rows of a matrix of `outputs` columns.
    pub(crate) fn add_bias(&self, to: &mut [f32], rows: Range<usize>) {
        let Some(bias) = self.bias else { return };
        for row in to[rows.start * self.outputs..rows.end * self.outputs].chunks_exact_mut(self.outputs.max(1)) {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }
}
