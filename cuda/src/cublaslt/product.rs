//! A product, and its attributes for cuBLASLt.
//!
//! cuBLASLt reads matrices by columns. The product `y = x · wᵀ + bias`, all by rows, is requested as the product of `w`
//! (transposed) and `x`, both by columns. The columns of the result are rows of `y`.

use std::ffi::c_int;

use symrail_core::DataType;

use crate::error::{CudaError, Result};

/// The type of scales, as `cudaDataType_t`: 32-bit floats.
pub(super) const SCALES: i32 = 0;

/// `cudaDataType_t`, or an error for types that products do not have.
fn code(ty: DataType) -> Result<i32> {
    Ok(match ty {
        DataType::Float32 => SCALES,
        DataType::Float16 => 2,
        DataType::Bfloat16 => 14,
        DataType::Float8E4m3 => 28,
        DataType::Float8E5m2 => 29,
        ty => return Err(CudaError::NotMultiplied { ty }),
    })
}

/// Whether products have numbers of this type.
#[must_use]
pub fn multiplies(ty: DataType) -> bool {
    code(ty).is_ok()
}

/// The shape of a product: `rows` of `inputs` numbers, times `outputs` rows of as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of the first factor and of the product.
    pub rows: usize,
    /// Numbers in a row of both factors.
    pub inputs: usize,
    /// Numbers in a row of the product.
    pub outputs: usize,
    /// The types of the first factor's numbers, of the weight's, and of the product's. The bias has the product's type.
    pub numbers: [DataType; 3],
    /// Whether the weight's outputs are contiguous for each input, instead of inputs for each output.
    pub by_inputs: bool,
    /// Whether a number for each output is added to each row.
    pub has_bias: bool,
    /// The alignment of the addresses of rows, weight and product, in bytes.
    pub aligned: [u32; 3],
    /// Whether several multiprocessors may sum parts of a number, which is faster for few rows. Then the result depends
    /// on the number of rows.
    pub split: bool,
}

/// `cublasLtMatmulDescAttributes_t`, and those of preferences.
mod attribute {
    pub const TRANSPOSE_A: i32 = 3;
    pub const TRANSPOSE_B: i32 = 4;
    pub const EPILOGUE: i32 = 7;
    pub const BIAS: i32 = 8;
    pub const SCALE_A: i32 = 17;
    pub const SCALE_B: i32 = 18;
    pub const BIAS_TYPE: i32 = 26;
    pub const WORKSPACE: i32 = 1;
    pub const REDUCTIONS: i32 = 3;
    pub const ALIGNED: [i32; 4] = [5, 6, 7, 8];
}
/// `CUBLAS_COMPUTE_32F`, which sums in 32-bit floats; `CUBLAS_OP_T`; `CUBLASLT_EPILOGUE_BIAS`.
pub(super) const COMPUTE: c_int = 68;
const TURNED: u32 = 1;
const ADD_BIAS: u32 = 4;

/// A matrix by columns: type, rows, columns, distance of columns.
pub(super) type Layout = (i32, u64, u64, i64);

/// The attributes of a product for cuBLASLt: a 4- or 8-byte value for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) product: Vec<(i32, Vec<u8>)>,
    /// The layouts of the weight, the rows, and the product.
    pub(super) layouts: [Layout; 3],
    pub(super) preference: Vec<(i32, Vec<u8>)>,
}

impl Product {
    /// Whether the factors have 8-bit numbers. Then they have scales, and the product has another type.
    pub(super) fn has_scales(&self) -> bool {
        self.numbers[1].size() == 1
    }

    /// The attributes, for parts at these places.
    pub(super) fn attributes(&self, places: &Places, workspace: usize) -> Result<Attributes> {
        let [rows, weight, product] = self.numbers.map(code);
        let (rows, weight, product) = (rows?, weight?, product?);
        let [m, n, k] = [self.outputs, self.rows, self.inputs].map(|size| size as u64);
        let mut attributes = vec![
            (attribute::TRANSPOSE_A, (if self.by_inputs { 0 } else { TURNED }).to_ne_bytes().to_vec()),
            (attribute::TRANSPOSE_B, 0u32.to_ne_bytes().to_vec()),
        ];
        if self.has_bias {
            attributes.push((attribute::EPILOGUE, ADD_BIAS.to_ne_bytes().to_vec()));
            attributes.push((attribute::BIAS, places.bias.to_ne_bytes().to_vec()));
            attributes.push((attribute::BIAS_TYPE, product.to_ne_bytes().to_vec()));
        }
        if self.has_scales() {
            attributes.push((attribute::SCALE_A, places.scales[1].to_ne_bytes().to_vec()));
            attributes.push((attribute::SCALE_B, places.scales[0].to_ne_bytes().to_vec()));
        }
        let (weight_rows, weight_columns) = if self.by_inputs { (m, k) } else { (k, m) };
        let lead = weight_rows.cast_signed();
        let layouts = [
            (weight, weight_rows, weight_columns, lead),
            (rows, k, n, k.cast_signed()),
            (product, m, n, m.cast_signed()),
        ];
        let [of_rows, of_weight, of_product] = self.aligned;
        let aligned = attribute::ALIGNED.into_iter().zip([of_weight, of_rows, of_product, of_product]);
        let mut preference = vec![(attribute::WORKSPACE, (workspace as u64).to_ne_bytes().to_vec())];
        if !self.split {
            // Partial sums are excluded, so that a number's rounding does not depend on the number of rows.
            preference.push((attribute::REDUCTIONS, 0u32.to_ne_bytes().to_vec()));
        }
        preference.extend(aligned.map(|(key, bytes)| (key, bytes.to_ne_bytes().to_vec())));
        Ok(Attributes { product: attributes, layouts, preference })
    }
}

/// The addresses of a product's parts on the GPU; 0 for parts that it does not have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Places {
    /// The first factor.
    pub rows: u64,
    /// The second factor.
    pub weight: u64,
    /// The product.
    pub product: u64,
    /// A matrix like the product, to which the product is added.
    pub onto: u64,
    /// The bias.
    pub bias: u64,
    /// The scales of rows and weight, for short numbers: 32-bit floats at multiples of 16 bytes.
    pub scales: [u64; 2],
}
