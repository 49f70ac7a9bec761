//! Registered memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys as sys;

use super::domain::{Domain, failed, refused};
use crate::device::{DeviceMemory, Export};
use crate::error::{Error, Result};
use crate::rail::{LocalKey, Registration};

/// The access rights of a registration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    /// Whether peers may read and write it.
    pub remote: bool,
    /// Whether peers that may write it may also use the NIC's atomics on it.
    pub atomics: bool,
    /// Whether PCIe may reorder the NIC's writes to it.
    pub relaxed: bool,
}

impl Access {
    fn flags(self) -> sys::ibv_access_flags {
        let mut flags = sys::IBV_ACCESS_LOCAL_WRITE;
        if self.remote {
            flags |= sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
        }
        if self.remote && self.atomics {
            flags |= sys::IBV_ACCESS_REMOTE_ATOMIC;
        }
        if self.relaxed {
            flags |= sys::IBV_ACCESS_RELAXED_ORDERING;
        }
        flags
    }
}

/// One registration. Dropping it deregisters the memory.
pub(super) struct Memory {
    domain: Arc<Domain>,
    mr: NonNull<sys::ibv_mr>,
}

// SAFETY: as for `Domain`: the pointer is only an argument to libibverbs, which may be called from any thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Registers host memory, or device memory whose pages the kernel finds by address.
    ///
    /// # Safety
    /// The memory stays mapped until the value is dropped.
    pub unsafe fn register(domain: &Arc<Domain>, ptr: *mut u8, len: usize, access: Access) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::register_as(domain, ptr, ptr as u64, len, access) }
    }

    /// As [`Memory::register`], but work requests address the memory from `address` on, here and at peers.
    ///
    /// # Safety
    /// As for [`Memory::register`].
    unsafe fn register_as(
        domain: &Arc<Domain>,
        ptr: *mut u8,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        let flags = access.flags();
        // SAFETY: the caller vouches for the memory; the domain is live.
        let mr = unsafe {
            match domain.verbs().reg_mr_iova2 {
                // The older call refuses an optional flag that the device does not know.
                Some(register) if access.relaxed || address != ptr as u64 => {
                    register(domain.pd, ptr.cast(), len, address, flags)
                }
                None if address != ptr as u64 => {
                    return Err(too_old(domain, "registering memory under another address"));
                }
                _ => (domain.verbs().ibv_reg_mr)(
                    domain.pd,
                    ptr.cast(),
                    len,
                    (flags & !sys::IBV_ACCESS_RELAXED_ORDERING).cast_signed(),
                ),
            }
        };
        Self::own(domain, mr, "ibv_reg_mr", len)
    }

    /// Registers memory of a device under the device's own addresses. Where the kernel or the NIC refuses a dmabuf, it
    /// may still accept the address.
    ///
    /// # Safety
    /// As for [`Memory::register`].
    pub unsafe fn register_device(domain: &Arc<Domain>, memory: DeviceMemory<'_>, access: Access) -> Result<Self> {
        let DeviceMemory { base, len, export } = memory;
        // SAFETY (both registrations): the caller's promise.
        match export {
            Export::Gpu { dmabuf: Some(fd), .. } => {
                Self::register_dmabuf(domain, fd, len, base as u64, access).or_else(|refused| {
                    tracing::debug!(rail = %domain.rail, %refused, "no dmabuf; trying the address");
                    // SAFETY: see above.
                    unsafe { Self::register(domain, base, len, access) }.map_err(|_| refused)
                })
            }
            // SAFETY: see above.
            Export::Gpu { dmabuf: None, .. } => unsafe { Self::register(domain, base, len, access) },
            // SAFETY: see above.
            Export::Mapping(at) => unsafe { Self::register_as(domain, at, base as u64, len, access) },
        }
    }

    /// Registers device memory that was exported as a dmabuf (`cuMemGetHandleForAddressRange`).
    fn register_dmabuf(
        domain: &Arc<Domain>,
        fd: BorrowedFd<'_>,
        len: usize,
        address: u64,
        access: Access,
    ) -> Result<Self> {
        let Some(register) = domain.verbs().reg_dmabuf_mr else {
            return Err(too_old(domain, "registering device memory by dmabuf"));
        };
        // SAFETY: the kernel checks the descriptor and holds the memory behind it; the domain is live.
        let mr = unsafe { register(domain.pd, 0, len, address, fd.as_raw_fd(), access.flags().cast_signed()) };
        Self::own(domain, mr, "ibv_reg_dmabuf_mr", len)
    }

    fn own(domain: &Arc<Domain>, mr: *mut sys::ibv_mr, call: &'static str, len: usize) -> Result<Self> {
        let Some(mr) = NonNull::new(mr) else {
            let remedy = |code| match code {
                libc::ENOMEM => format!("{len} bytes; raise the limit of locked memory (ulimit -l)"),
                libc::EFAULT => format!("{len} bytes; they are not mapped, or device memory that needs a dmabuf"),
                _ => format!("{len} bytes"),
            };
            return Err(match failed(call, &domain.rail) {
                Error::Fabric { fault, .. } => refused(call, &domain.rail, fault.code, &remedy(fault.code)),
                error => error,
            });
        };
        Ok(Memory { domain: domain.clone(), mr })
    }

    /// Its local key.
    pub fn lkey(&self) -> u32 {
        // SAFETY: registered and not yet deregistered.
        unsafe { self.mr.as_ref().lkey }
    }

    /// The keys and the address for peers. `base` is the region's address for peers.
    pub fn registration(&self, base: u64) -> Registration {
        // SAFETY: registered and not yet deregistered.
        let (local, remote) = unsafe { (self.mr.as_ref().lkey, self.mr.as_ref().rkey) };
        Registration { local: LocalKey(local.into()), remote_key: remote.into(), remote_base: base }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: registered by the callers of `own`, and deregistered only here.
        unsafe { (self.domain.verbs().ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

fn too_old(domain: &Domain, what: &str) -> Error {
    Error::Unsupported {
        what: what.into(),
        by: format!("this libibverbs ({})", domain.verbs().path().to_string_lossy()),
        remedy: "install rdma-core 34 or newer, or set SYMRAIL_GPUDIRECT=off".into(),
    }
}

/// Zeroed, page-aligned memory of the rail's own, registered for local use and for data that the NIC writes to it.
pub(super) struct OwnMemory {
    memory: Option<Memory>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to the value alone.
unsafe impl Send for OwnMemory {}

impl OwnMemory {
    pub fn new(domain: &Arc<Domain>, len: usize) -> Result<Self> {
        let no_memory = || refused("allocation", &domain.rail, libc::ENOMEM, &format!("{len} bytes"));
        let layout = Layout::from_size_align(len.max(1), 4096).map_err(|_| no_memory())?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        let mut own = OwnMemory { memory: None, start, layout };
        let access = Access { remote: false, atomics: false, relaxed: false };
        // SAFETY: the allocation lives until `drop`, which deregisters it first.
        own.memory = Some(unsafe { Memory::register(domain, start.as_ptr(), len, access) }?);
        Ok(own)
    }

    /// The address of its first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its local key.
    pub fn lkey(&self) -> u32 {
        self.memory.as_ref().map_or(0, Memory::lkey)
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        self.memory = None;
        // SAFETY: allocated in `new` with this layout, and the NIC no longer knows it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
