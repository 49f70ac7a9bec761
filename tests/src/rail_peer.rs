//! A real peer on a rail that belongs to no job: an attacker that can reach the address of a rail over TCP.

use std::ffi::{CString, c_void};
use std::net::SocketAddrV4;
use std::ptr;
use std::time::{Duration, Instant};

use libfabric_sys as ffi;
use libfabric_sys::Libfabric;

/// The time limit for each operation.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of its buffer.
pub const BUFFER: usize = 8 << 10;
/// The key of its own memory.
const OWN_KEY: u64 = 77;

/// An endpoint that knows one address. Not closed: its process ends.
pub struct RailPeer {
    endpoint: *mut ffi::fid_ep,
    queue: *mut ffi::fid_cq,
    descriptor: *mut c_void,
    peer: ffi::fi_addr_t,
    /// The bytes to send and write, and for reads.
    pub buffer: Box<[u8]>,
}

impl RailPeer {
    /// Opens an endpoint of `provider` that talks to `to`.
    #[must_use]
    pub fn open(provider: &str, to: SocketAddrV4) -> RailPeer {
        let library = Libfabric::load(None).unwrap();
        let mut hints = library.allocinfo().unwrap();
        hints.set_provider(&CString::new(provider).unwrap());
        // SAFETY: the hints belong to this function and have all attribute structs.
        unsafe {
            let raw = &mut *hints.as_ptr();
            (raw.caps, raw.mode) = (ffi::FI_RMA | ffi::FI_MSG, ffi::FI_CONTEXT | ffi::FI_CONTEXT2);
            (*raw.ep_attr).type_ = ffi::FI_EP_RDM;
            (*raw.domain_attr).mode = u64::MAX;
            (*raw.domain_attr).mr_mode = ffi::FI_MR_LOCAL as i32;
        }
        let node = CString::new("127.0.0.1").unwrap();
        let infos = library.getinfo(Some(&node), ffi::FI_SOURCE, Some(&hints)).unwrap();
        let info = infos.into_iter().find(|info| info.provider() == provider).unwrap();
        let raw = info.as_ptr();
        let mut buffer = vec![0; BUFFER].into_boxed_slice();
        let (mut fabric, mut domain, mut queue) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut table, mut endpoint, mut region) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut peer = ffi::FI_ADDR_UNSPEC;
        // SAFETY: each call gets the objects that the calls before have opened, and our own addresses for results;
        // all-zero is a valid attribute struct. Nothing is closed, and the buffer lives as long as the endpoint is
        // used.
        let descriptor = unsafe {
            assert_eq!(library.fabric((*raw).fabric_attr, &raw mut fabric, ptr::null_mut()), 0);
            assert_eq!(ffi::fi_domain(fabric, raw, &raw mut domain, ptr::null_mut()), 0);
            let mut attr: ffi::fi_cq_attr = std::mem::zeroed();
            (attr.size, attr.format, attr.wait_obj) = (1024, ffi::FI_CQ_FORMAT_DATA, ffi::FI_WAIT_NONE);
            assert_eq!(ffi::fi_cq_open(domain, &raw mut attr, &raw mut queue, ptr::null_mut()), 0);
            let mut attr: ffi::fi_av_attr = std::mem::zeroed();
            attr.type_ = ffi::FI_AV_TABLE;
            assert_eq!(ffi::fi_av_open(domain, &raw mut attr, &raw mut table, ptr::null_mut()), 0);
            assert_eq!(ffi::fi_endpoint(domain, raw, &raw mut endpoint, ptr::null_mut()), 0);
            assert_eq!(ffi::fi_ep_bind(endpoint, queue.cast(), ffi::FI_TRANSMIT | ffi::FI_RECV), 0);
            assert_eq!(ffi::fi_ep_bind(endpoint, table.cast(), 0), 0);
            assert_eq!(ffi::fi_enable(endpoint), 0);
            let access = ffi::FI_READ | ffi::FI_WRITE | ffi::FI_SEND | ffi::FI_RECV;
            let base = buffer.as_mut_ptr().cast();
            let none = ptr::null_mut();
            assert_eq!(ffi::fi_mr_reg(domain, base, BUFFER, access, 0, OWN_KEY, 0, &raw mut region, none), 0);
            let mut address = [0u8; 16];
            address[0] = libc::AF_INET as u8;
            address[2..4].copy_from_slice(&to.port().to_be_bytes());
            address[4..8].copy_from_slice(&to.ip().octets());
            assert_eq!(ffi::fi_av_insert(table, address.as_ptr().cast(), 1, &raw mut peer, 0, none), 1);
            ffi::fi_mr_desc(region)
        };
        RailPeer { endpoint, queue, descriptor, peer, buffer }
    }

    /// Sends the first bytes of the buffer as a message, perhaps with an immediate. Returns whether it has arrived.
    pub fn send(&mut self, len: usize, immediate: Option<u64>) -> bool {
        let iov = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: len };
        let flags = ffi::FI_COMPLETION | ffi::FI_DELIVERY_COMPLETE | with_data(immediate);
        let (mut descriptor, addr, endpoint) = (self.descriptor, self.peer, self.endpoint);
        self.end(|context| {
            let message = ffi::fi_msg {
                msg_iov: &raw const iov,
                desc: &raw mut descriptor,
                iov_count: 1,
                addr,
                context,
                data: immediate.unwrap_or(0),
            };
            // SAFETY: an open endpoint; the buffer and the context stay until the completion, which is awaited.
            unsafe { ffi::fi_sendmsg(endpoint, &raw const message, flags) }
        })
    }

    /// Writes the first bytes of the buffer to the peer's memory behind `key`, or reads from there. Returns whether
    /// that succeeded.
    pub fn reach(&mut self, key: u64, address: u64, len: usize, write: bool) -> bool {
        self.rma(&[ffi::fi_rma_iov { addr: address, len, key }], len, write, None)
    }

    /// An immediate with a write of no bytes, which needs no key.
    pub fn immediate_alone(&mut self, immediate: u64) -> bool {
        self.rma(&[], 0, true, Some(immediate))
    }

    fn rma(&mut self, targets: &[ffi::fi_rma_iov], len: usize, write: bool, immediate: Option<u64>) -> bool {
        let iov = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: len };
        let (mut descriptor, addr, endpoint) = (self.descriptor, self.peer, self.endpoint);
        let delivered = if write { ffi::FI_DELIVERY_COMPLETE } else { 0 };
        let flags = ffi::FI_COMPLETION | delivered | with_data(immediate);
        self.end(|context| {
            let message = ffi::fi_msg_rma {
                msg_iov: &raw const iov,
                desc: &raw mut descriptor,
                iov_count: 1,
                addr,
                rma_iov: targets.as_ptr(),
                rma_iov_count: targets.len(),
                context,
                data: immediate.unwrap_or(0),
            };
            // SAFETY: as for a message.
            unsafe {
                if write {
                    ffi::fi_writemsg(endpoint, &raw const message, flags)
                } else {
                    ffi::fi_readmsg(endpoint, &raw const message, flags)
                }
            }
        })
    }

    /// Posts an operation, and waits for its outcome.
    fn end(&mut self, mut post: impl FnMut(*mut c_void) -> isize) -> bool {
        // SAFETY: a context is scratch space of the provider; zeros are valid. It is leaked, since a time-out leaves it
        // in use.
        let context: &'static mut ffi::fi_context2 = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let (context, begun, mut posted) = (ptr::from_mut(context).cast::<c_void>(), Instant::now(), false);
        while begun.elapsed() < TIME_LIMIT {
            if !posted {
                match post(context) {
                    0 => posted = true,
                    code if code == -(ffi::FI_EAGAIN as isize) => {}
                    _ => return false,
                }
            }
            // SAFETY: an open queue, and entries of ours of its format; zeros are valid.
            unsafe {
                let mut entry: ffi::fi_cq_data_entry = std::mem::zeroed();
                let count = ffi::fi_cq_read(self.queue, (&raw mut entry).cast(), 1);
                if count == 1 && entry.op_context == context {
                    return true;
                }
                if count < 0 && count != -(ffi::FI_EAGAIN as isize) {
                    let mut error: ffi::fi_cq_err_entry = std::mem::zeroed();
                    if ffi::fi_cq_readerr(self.queue, &raw mut error, 0) == 1 && error.op_context == context {
                        return false;
                    }
                }
            }
        }
        false
    }
}

fn with_data(immediate: Option<u64>) -> u64 {
    if immediate.is_some() { ffi::FI_REMOTE_CQ_DATA } else { 0 }
}
