//! Reductions of elements, by their type.
//!
//! | file | concept |
//! |---|---|
//! | here | which types have which operations |
//! | `reduce` | the reduction of several arrays to one |

mod reduce;

use crate::error::{Error, Result};
pub use symrail_core::DataType;

pub use reduce::{Accumulate, ReduceOp};
pub(crate) use reduce::{divide, reduce};

/// The types that kernels of GPUs reduce: all but the last five.
pub const TYPES_ON_GPUS: &[DataType] = DataType::ALL.split_at(DataType::ALL.len() - 5).0;

/// Whether its elements are integers or booleans, whose bits have operations.
fn has_bits(ty: DataType) -> bool {
    ty.is_integer() || ty == DataType::Bool
}

impl ReduceOp {
    /// Those that kernels of GPUs have.
    pub const ON_GPUS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

    /// Whether elements of this type have the operation.
    ///
    /// # Errors
    /// They do not: the error names those that they have.
    pub fn suits(self, ty: DataType) -> Result<()> {
        let has = |op: &ReduceOp| match op {
            ReduceOp::Sum | ReduceOp::Prod => true,
            ReduceOp::Min | ReduceOp::Max => !matches!(ty, DataType::Complex64 | DataType::Complex128),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => has_bits(ty),
        };
        if has(&self) {
            return Ok(());
        }
        let there: Vec<String> = ReduceOp::ALL.iter().filter(|op| has(op)).map(ToString::to_string).collect();
        Err(Error::Call(format!("elements of {ty} have no {self}; there are {}", there.join(", "))))
    }

    /// Whether kernels of GPUs reduce elements of this type with the operation.
    ///
    /// # Errors
    /// They do not: the error names what they have.
    pub fn suits_gpus(self, ty: DataType) -> Result<()> {
        fn names(all: &[impl ToString]) -> String {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
        if !TYPES_ON_GPUS.contains(&ty) {
            let types = names(TYPES_ON_GPUS);
            return Err(Error::Call(format!("elements of {ty} are reduced on the host alone; GPUs reduce {types}")));
        }
        if !ReduceOp::ON_GPUS.contains(&self) {
            let ops = names(&ReduceOp::ON_GPUS);
            return Err(Error::Call(format!("{self} is an operation of the host alone; GPUs have {ops} and avg")));
        }
        Ok(())
    }
}
