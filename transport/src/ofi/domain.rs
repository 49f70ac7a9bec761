//! Opening and closing of libfabric's objects.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as ffi;
use libfabric_sys::{Info, Libfabric};

use super::fault::fault;
use crate::error::{Error, Result};

/// `FI_HMEM_P2P_REQUIRED` (`rdma/fi_endpoint.h`).
static HMEM_P2P_REQUIRED: i32 = 1;

/// An open libfabric object, closed when dropped. `T` is one of the `fid_*` structs, all of which start with a `fid`.
pub(super) struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    /// The object's struct for calls. It is valid as long as `self`.
    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The object as a generic `fid`, for binding and control.
    pub fn fid(&self) -> *mut ffi::fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: opened by libfabric and closed once. Objects that use it were closed before, because owners declare
        // the fields that hold objects in the order in which they must close.
        let code = unsafe { ffi::fi_close(self.fid()) };
        if code != 0 {
            tracing::debug!(code, object = std::any::type_name::<T>(), "fi_close failed");
        }
    }
}

/// The fabric and the domain of one rail, and the rail's name for errors.
pub(super) struct Domain {
    pub domain: Object<ffi::fid_domain>,
    pub fabric: Object<ffi::fid_fabric>,
    pub info: Info,
    pub library: Arc<Libfabric>,
    /// The rail's name.
    pub rail: String,
}

impl Domain {
    pub fn open(library: &Arc<Libfabric>, info: Info, rail: &str) -> Result<Self> {
        let check = |call, code: i32| checked(library, rail, call, code);
        let raw = info.as_ptr();
        let mut fabric = ptr::null_mut();
        // SAFETY: the info is live and complete; the place for the result is ours.
        check("fi_fabric", unsafe { library.fabric((*raw).fabric_attr, &raw mut fabric, ptr::null_mut()) })?;
        let fabric = object(library, rail, "fi_fabric", fabric)?;
        let mut domain = ptr::null_mut();
        // SAFETY: as above, and the fabric is open.
        check("fi_domain", unsafe { ffi::fi_domain(fabric.as_ptr(), raw, &raw mut domain, ptr::null_mut()) })?;
        let domain = object(library, rail, "fi_domain", domain)?;
        Ok(Domain { domain, fabric, info, library: library.clone(), rail: rail.to_owned() })
    }

    /// Opens a completion queue for `entries` completions, and its wait descriptor if one is wanted and the provider
    /// has one.
    pub fn open_queue(&self, entries: usize, sleeps: bool) -> Result<(Object<ffi::fid_cq>, Option<RawFd>)> {
        let open = |wait_obj| {
            // SAFETY: all-zero is a valid attribute struct (its pointers are null).
            let mut attr: ffi::fi_cq_attr = unsafe { std::mem::zeroed() };
            attr.size = entries;
            attr.format = ffi::FI_CQ_FORMAT_DATA;
            attr.wait_obj = wait_obj;
            let mut queue = ptr::null_mut();
            // SAFETY: an open domain, and attributes and result of our own.
            let code = unsafe { ffi::fi_cq_open(self.domain.as_ptr(), &raw mut attr, &raw mut queue, ptr::null_mut()) };
            self.check("fi_cq_open", code).and_then(|()| self.object("fi_cq_open", queue))
        };
        if sleeps && let Ok(queue) = open(ffi::FI_WAIT_FD) {
            let mut descriptor: RawFd = -1;
            // SAFETY: FI_GETWAIT of a queue with FI_WAIT_FD writes one descriptor.
            let code =
                unsafe { ffi::fi_control(queue.fid(), ffi::FI_GETWAIT as i32, (&raw mut descriptor).cast::<c_void>()) };
            if code == 0 && descriptor >= 0 {
                return Ok((queue, Some(descriptor)));
            }
        }
        open(ffi::FI_WAIT_NONE).map(|queue| (queue, None))
    }

    /// Opens the table of peers' addresses.
    pub fn open_addresses(&self) -> Result<Object<ffi::fid_av>> {
        // SAFETY: as for the completion queue.
        let mut attr: ffi::fi_av_attr = unsafe { std::mem::zeroed() };
        // SAFETY: a live info.
        attr.type_ = match unsafe { (*(*self.info.as_ptr()).domain_attr).av_type } {
            ffi::FI_AV_UNSPEC => ffi::FI_AV_TABLE,
            given => given,
        };
        let mut table = ptr::null_mut();
        // SAFETY: an open domain, and attributes and result of our own.
        let code = unsafe { ffi::fi_av_open(self.domain.as_ptr(), &raw mut attr, &raw mut table, ptr::null_mut()) };
        self.check("fi_av_open", code)?;
        self.object("fi_av_open", table)
    }

    /// Opens an endpoint over `queue` and `addresses`, and enables it. Returns also whether it accesses GPU memory
    /// without the CPU's help.
    pub fn open_endpoint(
        &self,
        queue: &Object<ffi::fid_cq>,
        addresses: &Object<ffi::fid_av>,
    ) -> Result<(Object<ffi::fid_ep>, bool)> {
        let mut endpoint = ptr::null_mut();
        // SAFETY: an open domain and the info that it was opened with.
        let code =
            unsafe { ffi::fi_endpoint(self.domain.as_ptr(), self.info.as_ptr(), &raw mut endpoint, ptr::null_mut()) };
        self.check("fi_endpoint", code)?;
        let endpoint = self.object("fi_endpoint", endpoint)?;
        // SAFETY: open objects of one domain; the endpoint closes before both.
        let bind = |fid, flags| self.check("fi_ep_bind", unsafe { ffi::fi_ep_bind(endpoint.as_ptr(), fid, flags) });
        bind(addresses.fid(), 0)?;
        // The queue is bound once for each direction. A posted operation completes only on request, an arrival always.
        bind(queue.fid(), ffi::FI_TRANSMIT | ffi::FI_SELECTIVE_COMPLETION)?;
        bind(queue.fid(), ffi::FI_RECV)?;
        let device = self.is_peer_to_peer(&endpoint);
        // SAFETY: an open endpoint with all that it needs bound.
        self.check("fi_enable", unsafe { ffi::fi_enable(endpoint.as_ptr()) })?;
        Ok((endpoint, device))
    }

    /// Whether an endpoint that was granted access to GPU memory guarantees that only the NIC touches it. Providers may
    /// also let the CPU copy, by CUDA calls that wait for kernels which never end.
    fn is_peer_to_peer(&self, endpoint: &Object<ffi::fid_ep>) -> bool {
        // SAFETY: a live info.
        if unsafe { (*self.info.as_ptr()).caps } & ffi::FI_HMEM == 0 {
            return false;
        }
        let (level, option) = (ffi::FI_OPT_ENDPOINT as i32, ffi::FI_OPT_FI_HMEM_P2P as i32);
        // SAFETY: an open endpoint, and an int as the option says.
        let code = unsafe {
            let value = (&raw const HMEM_P2P_REQUIRED).cast();
            ffi::fi_setopt(endpoint.as_ptr(), level, option, value, size_of_val(&HMEM_P2P_REQUIRED))
        };
        let granted = self.check("fi_setopt(FI_OPT_FI_HMEM_P2P)", code);
        granted.inspect_err(|error| tracing::info!(%error, "GPUs' memory is staged")).is_ok()
    }

    /// Converts a libfabric result to an error that names the call and the rail.
    pub fn check(&self, call: &'static str, code: i32) -> Result<()> {
        checked(&self.library, &self.rail, call, code)
    }

    /// Takes ownership of an object that a successful `call` opened.
    pub fn object<T>(&self, call: &'static str, raw: *mut T) -> Result<Object<T>> {
        object(&self.library, &self.rail, call, raw)
    }
}

fn checked(library: &Libfabric, rail: &str, call: &'static str, code: i32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut fault = fault(library, code as isize);
    fault.text += advice(call, code.saturating_neg());
    Err(Error::Fabric { call, rail: rail.to_owned(), fault })
}

/// The remedy for an error number of a call, if there is one.
fn advice(call: &str, errno: i32) -> &'static str {
    match (call, errno) {
        (_, libc::EMFILE) => "; allow this process more descriptors (ulimit -n)",
        ("fi_enable", libc::EROFS | libc::ENOSPC) => "; is /dev/shm writable and large enough?",
        // With verbs;ofi_rxm the cause is mostly a queue that the device cannot hold. Its size comes from an
        // environment variable that no attribute overrides.
        ("fi_enable" | "fi_cq_open", libc::EINVAL | libc::ENOMEM) => {
            "; with a verbs provider FI_UNIVERSE_SIZE=8 in the environment makes its queues smaller"
        }
        _ => "",
    }
}

fn object<T>(library: &Libfabric, rail: &str, call: &'static str, raw: *mut T) -> Result<Object<T>> {
    NonNull::new(raw).map(Object).ok_or_else(|| Error::Fabric {
        call,
        rail: rail.to_owned(),
        fault: fault(library, -(ffi::FI_EOTHER as isize)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_error() {
        assert!(advice("fi_endpoint", libc::EMFILE).contains("ulimit -n"));
        assert!(advice("fi_enable", libc::ENOMEM).contains("FI_UNIVERSE_SIZE"));
        assert!(advice("fi_enable", libc::EROFS).contains("/dev/shm"));
        assert_eq!(advice("fi_endpoint", libc::EROFS), "");
    }
}
