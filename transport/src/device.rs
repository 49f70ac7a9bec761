//! Memory of devices, as rails get to know it: memory that the CPU does not touch.
//!
//! [`Rail::register_device`](crate::rail::Rail::register_device) takes it. What a rail knows it by afterwards is a
//! [`LocalKey`](crate::rail::LocalKey) like any other's, which says that it is a device's.

use std::os::fd::BorrowedFd;

use crate::error::Error;
use crate::rail::RailCaps;

/// Memory that the CPU does not touch, as rails may get to know it.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMemory<'a> {
    /// Its first byte, as its device names it.
    pub base: *mut u8,
    /// Its length in bytes.
    pub len: usize,
    /// By what else a NIC may find it.
    pub export: Export<'a>,
}

/// How memory of a device is handed to NICs.
#[derive(Debug, Clone, Copy)]
pub enum Export<'a> {
    /// It is in a GPU.
    Gpu {
        /// CUDA's number of the GPU.
        ordinal: i32,
        /// All of it as a dmabuf, which may be closed when it has been registered. Without one its address may mean
        /// something to the kernel, by the vendor's peer-memory module.
        dmabuf: Option<BorrowedFd<'a>>,
    },
    /// By another address of the same bytes, which the CPU does reach: memory that stands in for a device's.
    Mapping(*mut u8),
}

/// What a rail says that does not reach devices' memory.
pub(crate) fn unreached(caps: &RailCaps, bytes: usize) -> Error {
    Error::Unsupported {
        what: format!("{bytes} bytes of a device's memory, reached by the NIC itself,"),
        by: format!("rail {} ({})", caps.name, caps.provider),
        remedy: "let it be staged (SYMRAIL_GPUDIRECT=off)".into(),
    }
}
