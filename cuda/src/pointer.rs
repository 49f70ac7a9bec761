//! Addresses of GPUs.

use std::ops::Add;

use cudarc::driver::sys::CUdeviceptr;

/// An address in a GPU's address space, or null. Host addresses have another type, so the two are never confused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DevicePtr(CUdeviceptr);

impl DevicePtr {
    /// No address.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The address with this numeric value, as in the driver and in kernels.
    #[must_use]
    pub const fn new(number: u64) -> DevicePtr {
        DevicePtr(number)
    }

    /// Its numeric value.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether it is null.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// The address so many bytes behind it.
impl Add<u64> for DevicePtr {
    type Output = DevicePtr;

    fn add(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add(bytes))
    }
}
