//! Addresses of GPUs.

use std::ops::Add;

use cudarc::driver::sys::CUdeviceptr;

/// An address in a GPU's address space, or none. The host's addresses are others: none becomes the other by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(CUdeviceptr);

impl DevicePtr {
    /// No address.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The address with this number, as the driver and kernels have it.
    #[must_use]
    pub const fn new(number: u64) -> DevicePtr {
        DevicePtr(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether it is none.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// So many bytes behind it.
impl Add<u64> for DevicePtr {
    type Output = DevicePtr;

    fn add(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add(bytes))
    }
}
