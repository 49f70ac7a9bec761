//! What can go wrong.

use symrail::Pe;

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
    /// A plan of which nobody knows what has been sent, since a round has failed in its midst.
    #[error("PE {pe}: this plan of {product} cannot be used any more, since a round has failed; make another one")]
    Broken {
        /// This PE.
        pe: Pe,
        /// The product.
        product: &'static str,
    },
}

impl Error {
    /// An error unless an array has as many elements as wanted.
    pub(crate) fn unless_long(pe: Pe, product: Product, what: &'static str, given: usize, wanted: usize) -> Result<()> {
        let product = product.name();
        if given == wanted { Ok(()) } else { Err(Error::Length { pe, product, what, given, wanted }) }
    }
}
