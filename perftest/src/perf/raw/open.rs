//! Opens one endpoint by hand.

use std::ffi::{CString, c_void};
use std::net::IpAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as ffi;
use libfabric_sys::{Info, Libfabric};
use symrail::Settings;
use symrail_transport::backend::{self, HostPes, Nics};
use symrail_transport::ofi::Nic;

use crate::perf::error::{Error, Result};

/// An object of libfabric, closed when dropped.
pub(super) struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    #[inline]
    pub fn get(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Every object starts with this.
    pub fn fid(&self) -> *mut ffi::fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: opened once, and closed once, after its users: fields are declared in that order.
        let _ = unsafe { ffi::fi_close(self.fid()) };
    }
}

/// An enabled endpoint and the objects below it, in the order of closing.
pub(super) struct Endpoint {
    pub endpoint: Object<ffi::fid_ep>,
    pub addresses: Object<ffi::fid_av>,
    pub sent: Object<ffi::fid_cq>,
    pub received: Object<ffi::fid_cq>,
    pub domain: Object<ffi::fid_domain>,
    _fabric: Object<ffi::fid_fabric>,
    pub info: Info,
    pub library: Arc<Libfabric>,
    pub provider: String,
}

/// The NIC that the runtime would use first, for PEs on these hosts.
pub(super) fn nic(settings: &Settings, host: &HostPes) -> Result<Nic> {
    match backend::choose(settings, host)?.nics {
        Nics::Libfabric(_, nics) => {
            nics.into_iter().next().ok_or_else(|| Error::Arguments("libfabric has no rail here".into()))
        }
        Nics::Ibverbs(..) => Err(Error::Arguments(
            "raw tests are on bare libfabric, and the transport here is ibverbs; set SYMRAIL_TRANSPORT=libfabric"
                .into(),
        )),
    }
}

impl Endpoint {
    /// Opens an endpoint on `nic`.
    pub fn open(settings: &Settings, nic: &Nic, atomics: bool) -> Result<Endpoint> {
        let load = Libfabric::load(settings.libfabric_so.as_deref());
        let library = load.map_err(|reason| fabric_error("fi_getinfo", &nic.provider, reason.to_string()))?;
        let info = ask(&library, nic, atomics)?;
        let opened = |call, code: i32| {
            if code == 0 { Ok(()) } else { Err(fabric_error(call, &nic.provider, library.strerror(code))) }
        };
        let (raw, null) = (info.as_ptr(), ptr::null_mut::<c_void>());
        let mut fabric = ptr::null_mut();
        // SAFETY: a live info with all its attributes; the result's address is ours.
        opened("fi_fabric", unsafe { library.fabric((*raw).fabric_attr, &raw mut fabric, null) })?;
        let fabric = object("fi_fabric", fabric)?;
        let mut domain = ptr::null_mut();
        // SAFETY: as above, and the fabric is open.
        opened("fi_domain", unsafe { ffi::fi_domain(fabric.get(), raw, &raw mut domain, null) })?;
        let domain = object("fi_domain", domain)?;
        let queue = || {
            // SAFETY: all-zero is a valid attribute struct.
            let mut attr: ffi::fi_cq_attr = unsafe { std::mem::zeroed() };
            attr.size = 4096;
            attr.format = ffi::FI_CQ_FORMAT_DATA;
            attr.wait_obj = ffi::FI_WAIT_NONE;
            let mut queue = ptr::null_mut();
            // SAFETY: an open domain, and attributes and result of our own.
            opened("fi_cq_open", unsafe { ffi::fi_cq_open(domain.get(), &raw mut attr, &raw mut queue, null) })?;
            object("fi_cq_open", queue)
        };
        let (sent, received) = (queue()?, queue()?);
        // SAFETY: all-zero is a valid attribute struct.
        let mut attr: ffi::fi_av_attr = unsafe { std::mem::zeroed() };
        attr.type_ = ffi::FI_AV_TABLE;
        let mut addresses = ptr::null_mut();
        // SAFETY: an open domain, and attributes and result of our own.
        opened("fi_av_open", unsafe { ffi::fi_av_open(domain.get(), &raw mut attr, &raw mut addresses, null) })?;
        let addresses = object("fi_av_open", addresses)?;
        let mut endpoint = ptr::null_mut();
        // SAFETY: an open domain and the info that it was opened with.
        opened("fi_endpoint", unsafe { ffi::fi_endpoint(domain.get(), raw, &raw mut endpoint, null) })?;
        let endpoint = object("fi_endpoint", endpoint)?;
        // SAFETY: open objects of one domain.
        unsafe {
            let flags = ffi::FI_TRANSMIT | ffi::FI_SELECTIVE_COMPLETION;
            opened("fi_ep_bind", ffi::fi_ep_bind(endpoint.get(), sent.fid(), flags))?;
            opened("fi_ep_bind", ffi::fi_ep_bind(endpoint.get(), received.fid(), ffi::FI_RECV))?;
            opened("fi_ep_bind", ffi::fi_ep_bind(endpoint.get(), addresses.fid(), 0))?;
            opened("fi_enable", ffi::fi_enable(endpoint.get()))?;
        }
        let provider = nic.provider.clone();
        Ok(Endpoint { endpoint, addresses, sent, received, domain, _fabric: fabric, info, library, provider })
    }

    /// Registers memory for all kinds of access.
    ///
    /// # Safety
    /// The memory stays mapped as long as the region.
    pub unsafe fn register(&self, base: *mut u8, len: usize) -> Result<Object<ffi::fid_mr>> {
        let access = ffi::FI_REMOTE_READ | ffi::FI_REMOTE_WRITE | ffi::FI_READ | ffi::FI_WRITE;
        let mut region = ptr::null_mut();
        // SAFETY: an open domain, memory that stays mapped, and our own address for the result.
        let code = unsafe {
            let base = base.cast();
            ffi::fi_mr_reg(self.domain.get(), base, len, access, 0, 1, 0, &raw mut region, ptr::null_mut())
        };
        self.check("fi_mr_reg", code)?;
        let region = object("fi_mr_reg", region)?;
        if self.mr_mode() & ffi::FI_MR_ENDPOINT != 0 {
            // SAFETY: open objects of one domain.
            unsafe {
                self.check("fi_mr_bind", ffi::fi_mr_bind(region.get(), self.endpoint.fid(), 0))?;
                self.check("fi_mr_enable", ffi::fi_mr_enable(region.get()))?;
            }
        }
        Ok(region)
    }

    /// How the provider wants memory registered and addressed.
    pub fn mr_mode(&self) -> u64 {
        // SAFETY: a live info.
        unsafe { (*(*self.info.as_ptr()).domain_attr).mr_mode as u64 }
    }

    /// This endpoint's address in the provider's form.
    pub fn address(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 512];
        let mut len = bytes.len();
        // SAFETY: an enabled endpoint, and a buffer of the stated length.
        let code = unsafe { ffi::fi_getname(self.endpoint.get(), bytes.as_mut_ptr().cast(), &raw mut len) };
        self.check("fi_getname", code)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Adds a peer's address.
    pub fn connect(&self, address: &[u8]) -> Result<ffi::fi_addr_t> {
        // Padded beyond any address format, whatever the peer sent.
        let mut padded = address.to_vec();
        padded.resize(512, 0);
        let mut peer = ffi::FI_ADDR_UNSPEC;
        let (table, null) = (self.addresses.get(), ptr::null_mut());
        // SAFETY: an open table, one address, and space for one result.
        let count = unsafe { ffi::fi_av_insert(table, padded.as_ptr().cast(), 1, &raw mut peer, 0, null) };
        self.check("fi_av_insert", if count == 1 { 0 } else { -ffi::FI_EINVAL })?;
        Ok(peer)
    }

    pub fn check(&self, call: &'static str, code: i32) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.failure(call, code)) }
    }

    #[cold]
    pub fn failure(&self, call: &'static str, code: i32) -> Error {
        fabric_error(call, &self.provider, self.library.strerror(code))
    }

    /// The endpoint's progress model, in libfabric's terms.
    pub fn progress(&self) -> &'static str {
        // SAFETY: a live info.
        match unsafe { (*(*self.info.as_ptr()).domain_attr).data_progress } {
            ffi::FI_PROGRESS_AUTO => "auto",
            _ => "manual",
        }
    }
}

fn fabric_error(call: &'static str, provider: &str, reason: String) -> Error {
    Error::Fabric { call, provider: provider.into(), reason }
}

fn object<T>(call: &'static str, raw: *mut T) -> Result<Object<T>> {
    NonNull::new(raw).map(Object).ok_or_else(|| fabric_error(call, "the provider", "it opened nothing".into()))
}

/// Requests an endpoint like the runtime's from the provider.
fn ask(library: &Arc<Libfabric>, nic: &Nic, atomics: bool) -> Result<Info> {
    let none = |reason: &str| fabric_error("fi_getinfo", &nic.provider, reason.into());
    let mut hints = library.allocinfo().ok_or_else(|| none("no memory"))?;
    let text = |text: &str| CString::new(text).map_err(|_| none("a name holds a zero byte"));
    hints.set_provider(&text(&nic.provider)?);
    let in_memory = symrail_transport::ofi::provider::is_in_memory(&nic.provider);
    // SAFETY: the hints belong to this function and have all attribute structs.
    unsafe {
        let raw = &mut *hints.as_ptr();
        raw.caps = ffi::FI_RMA | ffi::FI_MSG | if atomics { ffi::FI_ATOMIC } else { 0 };
        raw.mode = ffi::FI_CONTEXT | ffi::FI_CONTEXT2;
        (*raw.ep_attr).type_ = ffi::FI_EP_RDM;
        if in_memory {
            // Without this order every small write takes the slow path through another process's memory.
            let order = ffi::FI_ORDER_RMA_WAW | if atomics { ffi::FI_ORDER_ATOMIC_WAW } else { 0 };
            (*raw.tx_attr).msg_order = order;
            (*raw.rx_attr).msg_order = order;
        }
        let domain = &mut *raw.domain_attr;
        domain.mode = u64::MAX;
        domain.mr_mode = (ffi::FI_MR_LOCAL
            | ffi::FI_MR_VIRT_ADDR
            | ffi::FI_MR_ALLOCATED
            | ffi::FI_MR_PROV_KEY
            | ffi::FI_MR_ENDPOINT) as i32;
        domain.threading = ffi::FI_THREAD_COMPLETION;
        domain.av_type = ffi::FI_AV_TABLE;
        domain.data_progress = ffi::FI_PROGRESS_MANUAL;
    }
    let node = if in_memory {
        Some(format!("symrail-raw-{}", std::process::id()))
    } else {
        nic.address.parse::<IpAddr>().is_ok().then(|| nic.address.clone())
    };
    let node = node.as_deref().map(text).transpose()?;
    let flags = if node.is_some() { ffi::FI_SOURCE } else { 0 };
    let infos = library.getinfo(node.as_deref(), flags, Some(&hints)).map_err(|code| none(&library.strerror(code)))?;
    let fits = |info: &Info| info.provider() == nic.provider && (in_memory || info.domain() == nic.domain);
    infos.into_iter().find(fits).ok_or_else(|| none("it offers nothing that fits"))
}
