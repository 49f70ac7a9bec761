//! Memory of devices that is registered with rails: memory that the CPU does not touch.
//!
//! [`Rail::register_device`](crate::rail::Rail::register_device) registers it. The rail then knows it by a
//! [`LocalKey`](crate::rail::LocalKey) that is marked as a device's.

use std::os::fd::BorrowedFd;

use crate::error::Error;
use crate::rail::RailCaps;

/// Device memory to be registered with a rail.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMemory<'a> {
    /// The address of its first byte in the device's address space.
    pub base: *mut u8,
    /// Its length in bytes.
    pub len: usize,
    /// The handle by which a NIC can find it.
    pub export: Export<'a>,
}

/// How device memory is exported to NICs.
#[derive(Debug, Clone, Copy)]
pub enum Export<'a> {
    /// The memory of a GPU.
    Gpu {
        /// CUDA's number of the GPU.
        ordinal: i32,
        /// A dmabuf of the whole memory, which may be closed after the registration. Without one, the vendor's
        /// peer-memory module may let the kernel resolve the address.
        dmabuf: Option<BorrowedFd<'a>>,
    },
    /// Memory that stands in for a device's: another address of the same bytes, which the CPU can access.
    Mapping(*mut u8),
}

/// The error of a rail that does not reach device memory.
pub(crate) fn unreached(caps: &RailCaps, bytes: usize) -> Error {
    Error::Unsupported {
        what: format!("{bytes} bytes of a device's memory, reached by the NIC itself,"),
        by: format!("rail {} ({})", caps.name, caps.provider),
        remedy: "let it be staged (SYMRAIL_GPUDIRECT=off)".into(),
    }
}
