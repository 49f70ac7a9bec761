//! What can go wrong.

use symrail::Pe;
use symrail::kernels::cuda::CudaError;
use symrail_cuda::cublaslt::Number;

use crate::exchange::Product;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a product.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the runtime: a peer that does not answer, parameters that differ, a heap that is full.
    #[error(transparent)]
    Runtime(#[from] symrail::Error),
    /// An array that is not as large as its plan's shape says.
    #[error("PE {pe}: {product}: {what} has {given} elements, where {wanted} are wanted")]
    Length {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The array.
        what: &'static str,
        /// Its elements.
        given: usize,
        /// The shape's.
        wanted: usize,
    },
    /// A number that is too large.
    #[error("PE {pe}: {product}: {what} is {given}; wanted is one up to {most}")]
    Argument {
        /// This PE.
        pe: Pe,
        /// What was to be done.
        product: &'static str,
        /// The number's meaning.
        what: &'static str,
        /// The number.
        given: usize,
        /// The largest one that there is.
        most: usize,
    },
    /// The driver, cuBLASLt, a kernel or a device's state.
    #[error(transparent)]
    Gpu(#[from] symrail::kernels::cuda::Error),
    /// Numbers that a plan on a GPU does not multiply.
    #[error(
        "PE {pe}: {product} of {numbers:?} (rows, weight, product) with {inputs} inputs: both factors have 8-bit numbers or none, the product has none, and there are inputs"
    )]
    Unsupported {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// The types of numbers.
        numbers: [Number; 3],
        /// Numbers of a row.
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
    /// A round on a GPU has waited for a PE longer than it may.
    #[error(
        "PE {pe}: {product}: a kernel waited {seconds} s (SYMRAIL_TIMEOUT_S) for PE {late}, which has died or is late; make another plan"
    )]
    Late {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// Who was waited for.
        late: Pe,
        /// How long.
        seconds: u64,
    },
    /// Another PE has given up a round; what this PE has got of it is not to be believed.
    #[error("PE {pe}: {product}: PE {by} has given up{}; make another plan (in Python: another Group)", because(.lost))]
    GivenUp {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
        /// Who has.
        by: Pe,
        /// The PE that it has lost, if that was why.
        lost: Option<Pe>,
    },
    /// A round was agreed on for a plan that was given up since then, as others needed its room.
    #[error("PE {pe}: the plan of this {product} was given up, since others needed its room; agree on the round again")]
    NoPlan {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
    },
    /// A plan of which nobody knows what has been sent, since a round has failed in its midst.
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

/// Why a PE has given up.
fn because(lost: &Option<Pe>) -> String {
    lost.map_or_else(|| ", and its error says why".into(), |lost| format!(", since it has lost PE {lost}"))
}

impl Error {
    /// The word by which a PE tells others that it has given up for this error: not 0.
    pub(crate) fn alarm(&self, pe: Pe) -> u64 {
        let lost = if let Error::Runtime(error) = self { error.peer() } else { None };
        (u64::from(pe) + 1) | lost.map_or(0, |lost| (u64::from(lost) + 1) << 32)
    }

    /// What such a word says, if it was told.
    pub(crate) fn told(pe: Pe, product: Product, alarm: u64) -> Result<()> {
        let [by, lost] = [alarm as u32, (alarm >> 32) as u32].map(|one_more| one_more.checked_sub(1));
        by.map_or(Ok(()), |by| Err(Error::GivenUp { pe, product: product.name(), by, lost }))
    }

    /// An error unless an array has as many elements as wanted.
    pub(crate) fn unless_long(pe: Pe, product: Product, what: &'static str, given: usize, wanted: usize) -> Result<()> {
        let product = product.name();
        if given == wanted { Ok(()) } else { Err(Error::Length { pe, product, what, given, wanted }) }
    }
}
