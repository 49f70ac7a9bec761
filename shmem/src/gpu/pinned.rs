//! A heap in host memory that GPUs access: this PE's heap and mapped peers' heaps, registered with the driver.

use std::ptr::NonNull;
use std::sync::Arc;

use symrail_heap::cuda::{DevicePtr, Gpu, Registration};

use crate::error::Result;

/// Heaps of this host, registered with a GPU for the lifetime of this value.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    addresses: Vec<DevicePtr>,
    _registrations: Vec<Registration>,
}

impl Pinned {
    /// Registers the first `bytes` of every heap that is mapped here; `bases` has 0 for heaps that are not.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Gpu>, bases: &[usize], bytes: usize) -> Result<Pinned> {
        let mut registrations = Vec::new();
        let mut addresses = Vec::with_capacity(bases.len());
        for &base in bases {
            let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(base)) else {
                addresses.push(DevicePtr::NULL);
                continue;
            };
            // SAFETY: heaps are mapped, with so many committed bytes on every PE, as long as the runtime, which owns
            // this value or is borrowed by its owner; all accesses are through raw pointers and atomics.
            let registration = unsafe { Registration::new(gpu, start, bytes) }?;
            addresses.push(registration.device());
            registrations.push(registration);
        }
        Ok(Pinned { gpu: Arc::clone(gpu), addresses, _registrations: registrations })
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The GPU's address of each PE's heap; 0 if it cannot access the heap.
    pub fn addresses(&self) -> &[DevicePtr] {
        &self.addresses
    }
}
