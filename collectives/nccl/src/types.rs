//! The structures and numbers of `nccl.h`.

use std::ffi::c_int;

use symrail::bootstrap::uid;
use symrail_collectives::DataType;

use crate::guard::Failure;

/// The version of this interface, 2.28.9, as `ncclGetVersion` returns it.
pub const VERSION: c_int = 2_28_09;

/// `ncclUniqueId`: a mark, the id of a Symrail job, and zeros.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    /// The first bytes of this library's ids, which no other library's ids have.
    const MARK: [u8; 8] = *b"symrail\0";

    /// Whether this library made the id.
    pub fn is_ours(&self) -> bool {
        self.0.starts_with(&Self::MARK)
    }

    /// The id of its Symrail job.
    pub fn job(&self) -> Result<uid::UniqueId, Failure> {
        let (mark, job) = self.0.split_at(Self::MARK.len());
        if mark != Self::MARK {
            let remedy = "take it from ncclGetUniqueId of this library, on all ranks";
            return Err(Failure::argument(format!("that is not an id of a communicator: {remedy}")));
        }
        Ok(uid::UniqueId::from_bytes(&job[..uid::UniqueId::LEN])?)
    }

    /// The id for a Symrail job.
    pub fn of(job: &uid::UniqueId) -> UniqueId {
        let mut id = UniqueId([0; 128]);
        id.0[..Self::MARK.len()].copy_from_slice(&Self::MARK);
        id.0[Self::MARK.len()..][..uid::UniqueId::LEN].copy_from_slice(&job.to_bytes());
        id
    }
}

/// `ncclTeam_t`: ranks of a communicator, for kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Team {
    pub size: c_int,
    pub rank: c_int,
    pub stride: c_int,
}

impl Team {
    /// A team without ranks.
    pub const NONE: Team = Team { size: 0, rank: 0, stride: 0 };
}

/// `ncclComm_t` and `ncclWindow_t`: a number that identifies an object, passed as an address is.
pub type Handle = usize;

/// `cudaStream_t`: an address that only the driver follows.
pub type CudaStream = usize;

/// The color of ranks that take no part in a split.
pub const NO_COLOR: c_int = -1;

/// The type of elements for a number of `ncclDataType_t`.
pub fn data_type(number: c_int) -> Result<DataType, Failure> {
    use DataType::*;
    #[rustfmt::skip]
    const NUMBERED: [DataType; 12] = [
        Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, Float8E4m3, Float8E5m2,
    ];
    let found = usize::try_from(number).ok().and_then(|number| NUMBERED.get(number).copied());
    found.ok_or_else(|| Failure::argument(format!("there is no data type {number}")))
}
