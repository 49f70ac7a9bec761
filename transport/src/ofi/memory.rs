//! Registration of memory: keys and addressing.

use std::ffi::c_void;
use std::ptr;

use libfabric_sys as ffi;

use super::domain::{Domain, Object};
use crate::error::{Error, Fault, Result};
use crate::rail::{LocalKey, Registration};
use crate::token::random;

/// Access to the owner's regions, by peers and by this PE.
pub(super) const SHARED: u64 =
    ffi::FI_REMOTE_READ | ffi::FI_REMOTE_WRITE | ffi::FI_READ | ffi::FI_WRITE | ffi::FI_SEND | ffi::FI_RECV;

/// Access to memory that only this PE uses.
pub(super) const PRIVATE: u64 = ffi::FI_READ | ffi::FI_WRITE | ffi::FI_SEND | ffi::FI_RECV;

/// Memory to be registered.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub address: *mut u8,
    /// Its bytes.
    pub length: usize,
    /// The CUDA number of the GPU whose memory it is; `None` for host memory.
    pub gpu: Option<i32>,
    /// [`SHARED`] or [`PRIVATE`].
    pub access: u64,
}

/// The provider's registration mode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mode {
    /// Whether local buffers need a descriptor: all of them, or those in GPU memory.
    pub local: bool,
    /// Whether peers address by virtual address instead of by offset.
    virtual_addresses: bool,
    /// Whether registrations are bound to the endpoint.
    endpoint: bool,
    /// The bits of a key that the rail chooses.
    key: u64,
}

/// The number of keys to try. With few bits, a key is likely to be in use.
const KEYS_TO_TRY: usize = 16;

impl Mode {
    pub fn of(info: &ffi::Info) -> Self {
        // SAFETY: a live info.
        let (bits, key_size) = unsafe {
            let domain = &*(*info.as_ptr()).domain_attr;
            (domain.mr_mode as u64, domain.mr_key_size)
        };
        Mode {
            local: bits & (ffi::FI_MR_LOCAL | ffi::FI_MR_HMEM) != 0,
            virtual_addresses: bits & ffi::FI_MR_VIRT_ADDR != 0,
            endpoint: bits & ffi::FI_MR_ENDPOINT != 0,
            key: u64::MAX >> (64 - 8 * key_size.clamp(1, 8)),
        }
    }
}

/// The regions that the rail's owner has registered.
#[derive(Default)]
pub(super) struct Regions {
    regions: Vec<(u32, Object<ffi::fid_mr>)>,
    /// The suggested key of the next region.
    pub next_key: Option<u64>,
}

impl Regions {
    /// See [`Rail::register`](crate::rail::Rail::register), [`Rail::register_local`](crate::rail::Rail::register_local)
    /// and, with a GPU's number, [`Rail::register_device`](crate::rail::Rail::register_device).
    ///
    /// # Safety
    /// The memory stays mapped as long as the region.
    pub unsafe fn register(
        &mut self,
        domain: &Domain,
        endpoint: &Object<ffi::fid_ep>,
        mode: Mode,
        memory: Memory,
        id: u32,
    ) -> Result<Registration> {
        if self.regions.iter().any(|(known, _)| *known == id) {
            return Err(Error::Fabric {
                call: "fi_mr_reg",
                rail: domain.rail.clone(),
                fault: Fault {
                    code: ffi::FI_EALREADY,
                    text: format!("region id {id} is registered already"),
                    retryable: false,
                },
            });
        }
        let key = self.next_key.take().map_or_else(random, Ok)?;
        // SAFETY: the caller's promise.
        let region = unsafe { register_as(domain, endpoint, mode, memory, key) }?;
        // SAFETY: an open region.
        let (descriptor, key) = unsafe { (ffi::fi_mr_desc(region.as_ptr()), ffi::fi_mr_key(region.as_ptr())) };
        self.regions.push((id, region));
        let local = LocalKey(descriptor as u64);
        Ok(Registration {
            local: if memory.gpu.is_some() { local.of_device() } else { local },
            remote_key: key,
            remote_base: if mode.virtual_addresses { memory.address as u64 } else { 0 },
        })
    }

    /// Removes a region; unknown ids are ignored.
    pub fn deregister(&mut self, id: u32) {
        self.regions.retain(|(known, _)| *known != id);
    }
}

/// Registers the rail's own memory.
///
/// # Safety
/// The memory stays mapped as long as the region.
pub(super) unsafe fn register(
    domain: &Domain,
    endpoint: &Object<ffi::fid_ep>,
    mode: Mode,
    (address, length): (*mut u8, usize),
) -> Result<Object<ffi::fid_mr>> {
    let memory = Memory { address, length, gpu: None, access: PRIVATE };
    // SAFETY: the caller's promise.
    unsafe { register_as(domain, endpoint, mode, memory, random()?) }
}

/// Registers memory. Where the rail chooses keys, it uses this key, or another random one if this is in use.
///
/// # Safety
/// As for [`register`].
unsafe fn register_as(
    domain: &Domain,
    endpoint: &Object<ffi::fid_ep>,
    mode: Mode,
    Memory { address, length, gpu, access }: Memory,
    first_key: u64,
) -> Result<Object<ffi::fid_mr>> {
    let mut region = ptr::null_mut();
    let (base, raw) = (address.cast::<c_void>(), domain.domain.as_ptr());
    let mut try_one = |key| match gpu {
        None => {
            // SAFETY: an open domain, memory that stays, and our own place for the result.
            let code =
                unsafe { ffi::fi_mr_reg(raw, base, length, access, 0, key, 0, &raw mut region, ptr::null_mut()) };
            ("fi_mr_reg", code)
        }
        Some(gpu) => {
            let range = libc::iovec { iov_base: base, iov_len: length };
            // SAFETY: all-zero is a valid attribute struct (its pointers are null).
            let mut attr: ffi::fi_mr_attr = unsafe { std::mem::zeroed() };
            (attr.mr_iov, attr.iov_count, attr.access, attr.requested_key) = (&raw const range, 1, access, key);
            (attr.iface, attr.device.cuda) = (ffi::FI_HMEM_CUDA, gpu);
            // SAFETY: as above; the attributes live through the call.
            ("fi_mr_regattr", unsafe { ffi::fi_mr_regattr(raw, &raw const attr, 0, &raw mut region) })
        }
    };
    let mut tried = try_one(first_key & mode.key);
    for _ in 1..KEYS_TO_TRY {
        if tried.1 != -ffi::FI_ENOKEY {
            break;
        }
        tried = try_one(random()? & mode.key);
    }
    let (call, code) = tried;
    domain.check(call, code).map_err(|error| with_length(error, length))?;
    let region = domain.object(call, region)?;
    if mode.endpoint {
        // SAFETY: open objects of one domain.
        domain.check("fi_mr_bind", unsafe { ffi::fi_mr_bind(region.as_ptr(), endpoint.fid(), 0) })?;
        // SAFETY: an open region, bound as its mode asks.
        domain.check("fi_mr_enable", unsafe { ffi::fi_mr_enable(region.as_ptr()) })?;
    }
    Ok(region)
}

fn with_length(mut error: Error, length: usize) -> Error {
    if let Error::Fabric { fault, .. } = &mut error {
        fault.text +=
            &format!("; {length} bytes were to be registered (is the locked-memory limit too low? ulimit -l)");
    }
    error
}
