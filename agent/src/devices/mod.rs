//! Memory that the CPU does not touch: that of GPUs ([`cuda`]), and what stands in for it in tests.

use symrail_heap::copy_engine::{Between, CopyEngine};
use symrail_heap::export::Exported;

pub mod cuda;
mod staging;

/// A range in the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The number of the device, as CUDA counts in this process.
    pub device: i32,
    /// The address of the first byte.
    pub base: u64,
    /// The length in bytes.
    pub len: u64,
}

/// What an agent does with the memory of devices. No function but [`Devices::remove`] waits for a copy. Errors are
/// reasons.
pub trait Devices: Send + Sync {
    /// The engine that copies between all of it and a staging buffer.
    ///
    /// # Errors
    /// There is no memory for the staging buffer.
    fn copy_engine(&self) -> Result<Box<dyn CopyEngine>, String>;

    /// Prepares for memory.
    ///
    /// # Errors
    /// There is no such device, or the memory is not its.
    fn add(&self, memory: DeviceMemory) -> Result<(), String>;

    /// The form in which rails can register memory.
    ///
    /// # Errors
    /// They do not reach it.
    fn export(&self, memory: DeviceMemory) -> Result<Exported, String>;

    /// Forgets memory that was prepared, and what it was shared by, after the copies between it and the staging buffer
    /// that have been started.
    fn remove(&self, memory: DeviceMemory, shared: Option<&[u8]>);

    /// What another agent on this host needs for [`Devices::map`].
    ///
    /// # Errors
    /// The memory cannot be mapped by others.
    fn share(&self, memory: DeviceMemory) -> Result<Vec<u8>, String>;

    /// Makes `len` bytes of another agent, or of this one, accessible to copies of `device`.
    ///
    /// # Errors
    /// The device does not reach it, or it has another length.
    fn map(&self, device: i32, shared: &[u8], len: u64) -> Result<Box<dyn Mapped>, String>;

    /// Starts copies by `device`, one end of each in its memory, and the other in memory that it has mapped.
    ///
    /// # Safety
    /// The memory stays until the copies have ended, and the mappings, too.
    ///
    /// # Errors
    /// No copy could be started. If only some could not, that is the outcome.
    unsafe fn copy(&self, device: i32, copies: &mut dyn Iterator<Item = Between>) -> Result<Box<dyn Copying>, String>;
}

/// Memory that is mapped as long as this value lives.
pub trait Mapped: Send + Sync {
    /// The address of its first byte for copies of the device.
    fn base(&self) -> u64;
}

/// Copies that were started.
pub trait Copying: Send {
    /// How they have ended; `None` while one is under way.
    fn outcome(&mut self) -> Option<Result<(), String>>;
}
