//! The structures and numbers of `nccl.h`.

use std::ffi::{c_int, c_void};

use symrail_collectives::DataType;

use crate::guard::Failure;

/// The version whose interface this is, 2.28.9, as `ncclGetVersion` gives it.
pub const VERSION: c_int = 2_28_09;

/// `ncclUniqueId`: the id of a job of ours, and zeros.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// `ncclComm_t`: a number that stands for a communicator.
pub type Handle = *mut c_void;

/// `cudaStream_t`.
pub type CudaStream = *mut c_void;

/// The color of ranks that take no part in a split.
pub const NO_COLOR: c_int = -1;

/// The element's type of a number of `ncclDataType_t`.
pub fn data_type(number: c_int) -> Result<DataType, Failure> {
    Ok(match number {
        0 => DataType::I8,
        1 => DataType::U8,
        2 => DataType::I32,
        3 => DataType::U32,
        4 => DataType::I64,
        5 => DataType::U64,
        6 => DataType::F16,
        7 => DataType::F32,
        8 => DataType::F64,
        9 => DataType::BF16,
        10 => DataType::E4M3,
        11 => DataType::E5M2,
        other => return Err(Failure::argument(format!("there is no data type {other}"))),
    })
}
