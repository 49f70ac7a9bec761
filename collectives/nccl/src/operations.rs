//! Sums of inputs that each rank first multiplies by a factor, and the numbers of reductions.

use std::ffi::{c_int, c_void};

use symrail_collectives::{DataType, Factor, ReduceOp, Reduction};
use symrail_core::{CPointer, lock};

use crate::communicator::Communicator;
use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::registry;
use crate::types::{Handle, data_type};

/// The first number that `ncclRedOpCreatePreMulSum` returns: lower numbers are NCCL's own.
const FIRST: c_int = 5;
/// `ncclScalarResidence_t`.
const ON_DEVICE: c_int = 0;
const ON_HOST: c_int = 1;

/// The reduction for a number of `ncclRedOp_t`.
pub fn reduction(communicator: &Communicator, op: c_int, ty: DataType) -> Result<Reduction, Failure> {
    Ok(match op {
        0 => ReduceOp::Sum.into(),
        1 => ReduceOp::Prod.into(),
        2 => ReduceOp::Max.into(),
        3 => ReduceOp::Min.into(),
        4 => Reduction::Average,
        _ => {
            let known = lock(&communicator.scaled_sums);
            let scaled = op.checked_sub(FIRST).and_then(|i| known.get(usize::try_from(i).ok()?).copied()?);
            let (factor, of) = scaled.ok_or_else(|| Failure::argument(format!("there is no reduction {op}")))?;
            if of != ty {
                return Err(Failure::argument(format!("reduction {op} is for {of}, and the call for {ty}")));
            }
            Reduction::ScaledSum(factor)
        }
    })
}

nccl! {
    fn ncclRedOpCreatePreMulSum(
        op: CPointer<c_int>,
        scalar: *mut c_void,
        ty: c_int,
        residence: c_int,
        comm: Handle,
    ) of comm {
        let op = given("op", op)?;
        let communicator = registry::find(comm)?;
        let ty = data_type(ty)?;
        if scalar.is_null() {
            return Err(Failure::argument("scalar is a null pointer"));
        }
        let factor = match residence {
            ON_DEVICE => Factor::At(scalar.addr() as u64),
            ON_HOST => {
                let mut bytes = [0u8; 8];
                // SAFETY: C's caller vouches for its pointers: the address holds an element of the type.
                unsafe { std::ptr::copy_nonoverlapping(scalar.cast::<u8>(), bytes.as_mut_ptr(), ty.size()) };
                Factor::Value(u64::from_le_bytes(bytes))
            }
            other => return Err(Failure::argument(format!("there is no residence {other} of a scalar"))),
        };
        let mut known = lock(&communicator.scaled_sums);
        let free = known.iter().position(Option::is_none).unwrap_or_else(|| {
            known.push(None);
            known.len() - 1
        });
        known[free] = Some((factor, ty));
        op.set(FIRST + free as c_int);
        Ok(())
    }
}

nccl! {
    fn ncclRedOpDestroy(op: c_int, comm: Handle) of comm {
        let communicator = registry::find(comm)?;
        let mut known = lock(&communicator.scaled_sums);
        let place = op.checked_sub(FIRST).and_then(|i| known.get_mut(usize::try_from(i).ok()?));
        let made = place.and_then(Option::take);
        made.map(drop).ok_or_else(|| Failure::argument(format!("reduction {op} was not made by this communicator")))
    }
}
