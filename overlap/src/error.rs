//! The errors of this crate.

use symrail::Pe;
use symrail::kernels::cuda::CudaError;
use symrail_cuda::cublaslt::Number;

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
    /// An error of the driver, of cuBLASLt, of a kernel or of a device's state.
    #[error(transparent)]
    Gpu(#[from] symrail::kernels::cuda::Error),
    /// Number types that a plan on a GPU does not support.
    #[error(
        "PE {pe}: {product} of {numbers:?} (rows, weight, product) with {inputs} inputs: both factors have 8-bit numbers or none, the product has none, and there are inputs"
    )]
    Unsupported {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The types of the numbers.
        numbers: [Number; 3],
        /// The length of a row.
        inputs: usize,
    },
    /// Another PE of the team could not make its part of a plan.
    #[error("PE {pe}: another PE of the team could not make its part of {product}; its error says why")]
    OtherRefused {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
    },
    /// A round on a GPU has waited for a PE longer than the time limit.
    #[error(
        "PE {pe}: {product}: a kernel waited {seconds} s (SYMRAIL_TIMEOUT_S) for PE {late}, which has died or is late; make another plan"
    )]
    Late {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The PE that the round waited for.
        late: Pe,
        /// The time limit.
        seconds: u64,
    },
    /// Another PE has given up a round. The data that this PE got in it are not valid.
    #[error("PE {pe}: {product}: PE {by} has given up{}; make another plan (in Python: another Group)", because(.lost))]
    GivenUp {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The PE that gave up.
        by: Pe,
        /// The PE that it lost, if that was the reason.
        lost: Option<Pe>,
    },
    /// The ranks agreed on a round for a plan that was freed since then to make room for another plan.
    #[error("PE {pe}: the plan of this {product} was given up, since others needed its room; agree on the round again")]
    NoPlan {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
    },
    /// A plan whose state is unknown, since a round failed before its end.
    #[error(
        "PE {pe}: this plan of {product} cannot be used any more, since a round has failed; make another one (in Python: another Group)"
    )]
    Broken {
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

/// The part of a message that says why a PE gave up.
fn because(lost: &Option<Pe>) -> String {
    lost.map_or_else(|| ", and its error says why".into(), |lost| format!(", since it has lost PE {lost}"))
}

impl Error {
    /// The value of the alarm word with which a PE reports to others that it gave up for this error. It is never 0.
    pub(crate) fn alarm(&self, pe: Pe) -> u64 {
        let lost = if let Error::Runtime(error) = self { error.peer() } else { None };
        (u64::from(pe) + 1) | lost.map_or(0, |lost| (u64::from(lost) + 1) << 32)
    }

    /// The error for a value of the alarm word, if the word was set.
    pub(crate) fn if_given_up(pe: Pe, product: Product, alarm: u64) -> Result<()> {
        let [by, lost] = [alarm as u32, (alarm >> 32) as u32].map(|one_more| one_more.checked_sub(1));
        by.map_or(Ok(()), |by| Err(Error::GivenUp { pe, product: product.name(), by, lost }))
    }

    /// Returns an error unless an array has `wanted` elements.
    pub(crate) fn unless_long(pe: Pe, product: Product, what: &'static str, given: usize, wanted: usize) -> Result<()> {
        let product = product.name();
        if given == wanted { Ok(()) } else { Err(Error::Length { pe, product, what, given, wanted }) }
    }
}
