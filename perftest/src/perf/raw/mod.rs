//! The same tests without the runtime: on bare libfabric, and by plain copies between shared mappings.
//!
//! | file | concept |
//! |---|---|
//! | `open` | libfabric's objects of one endpoint, and the peer's address |
//! | `fabric` | posting and polling, as a careful program would write it by hand |
//! | `copies` | two processes map each other's memory |
//! | `wait` | waiting as the runtime does |
//!
//! With the bare endpoint both sides poll as the runtime's threads do, every put asks for `FI_DELIVERY_COMPLETE`, and
//! there is one rail. The provider and its address are those that the runtime would choose.

mod copies;
mod fabric;
mod open;
mod wait;

use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

pub use copies::Copies;
pub use fabric::Fabric;

use super::error::{Error, Result};

/// Memory that is touched in advance, so that no test pays for page faults.
struct Memory {
    base: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// Of this process alone.
    fn private(bytes: usize) -> Result<Memory> {
        let (len, length) = Self::length(bytes)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) };
        Ok(Memory { base: base.map_err(failed("mapping memory"))?.cast(), len })
    }

    /// Of a file that has this length.
    fn of_file(file: impl std::os::fd::AsFd, bytes: usize) -> Result<Memory> {
        let (len, length) = Self::length(bytes)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: as above; others change the file's bytes, and all accesses are through raw pointers.
        let base = unsafe { mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags, file, 0) };
        Ok(Memory { base: base.map_err(failed("mapping shared memory"))?.cast(), len })
    }

    fn length(bytes: usize) -> Result<(usize, std::num::NonZeroUsize)> {
        let none = || Error::Arguments("an area of 0 bytes".into());
        let length = std::num::NonZeroUsize::new(bytes).ok_or_else(none)?;
        Ok((bytes, length))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value mapped it with this length; all users are gone (owners declare it last).
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// The system's error for an operation.
fn failed(what: &'static str) -> impl Fn(nix::Error) -> Error {
    move |reason| Error::System { what: what.into(), reason: reason.to_string() }
}
