//! The errors of this crate.

use symrail::kernels::cuda::CudaError;
use symrail::{Pe, rounds};
use symrail_core::DataType;

use crate::product::Product;

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a product.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the runtime: a peer that does not answer, parameters that differ, a heap that is full.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// An error of a round: a PE that is late or has given up, or a plan that an earlier round has left unusable.
    #[error(transparent)]
    Round(#[from] rounds::Error),
    /// The length of an array does not match the shape of its plan.
    #[error("PE {pe}: {product}: {what} has {given} elements, where {wanted} are wanted")]
    Length {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The array's name.
        what: &'static str,
        /// The number of its elements.
        given: usize,
        /// The number of elements that the shape needs.
        wanted: usize,
    },
    /// A number that is too large.
    #[error("PE {pe}: {product}: {what} is {given}; wanted is one up to {most}")]
    Argument {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The meaning of the number.
        what: &'static str,
        /// The number that was passed.
        given: usize,
        /// The largest valid number.
        most: usize,
    },
    /// Arguments that the caller refused before the call: see [`Products::refuse`](crate::Products::refuse).
    #[error("PE {pe}: {product}: its arguments were refused")]
    Refused {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
    },
    /// An error of the driver, of cuBLASLt, of a kernel or of a device's state.
    #[error(transparent)]
    Gpu(#[from] symrail::kernels::cuda::Error),
    /// Number types that a plan on a GPU does not support.
    #[error(
        "PE {pe}: {product} of {numbers:?} (rows, weight, product) with {inputs} inputs: numbers are floats of 32, 16 or 8 bits, both factors have 8-bit numbers or none, the product has none, and there are inputs"
    )]
    Unsupported {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The types of the numbers.
        numbers: [DataType; 3],
        /// The length of a row.
        inputs: usize,
    },
    /// The ranks agreed on a round for a plan that was freed since then to make room for another plan.
    #[error("PE {pe}: the plan of this {product} was given up, since others needed its room; agree on the round again")]
    NoPlan {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
    },
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::Gpu(error.into())
    }
}

impl Error {
    /// The PE that this PE has lost, if that is the error.
    pub(crate) fn lost(&self) -> Option<Pe> {
        if let Error::Runtime(error) = self { error.peer() } else { None }
    }

    /// Returns an error unless an array has `wanted` elements.
    pub(crate) fn unless_long(pe: Pe, product: Product, what: &'static str, given: usize, wanted: usize) -> Result<()> {
        let product = product.name();
        if given == wanted { Ok(()) } else { Err(Error::Length { pe, product, what, given, wanted }) }
    }
}
