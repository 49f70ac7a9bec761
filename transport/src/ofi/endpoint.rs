//! The rail: connecting and posting.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as ffi;
use libfabric_sys::{Info, Libfabric};

use super::address::{self, Peers};
use super::atomics::{self, Atomics};
use super::completion::{Queue, Slab, SlotIndex};
use super::domain::{Domain, Object};
use super::fault::fault;
use super::memory::{self, Mode, PRIVATE, Regions, SHARED};
use super::messages::{self, Receives};
use super::{hints, rma};
use crate::amo::{AmoOp, AmoType};
use crate::device::{DeviceMemory, Export, unreached};
use crate::error::{Fault, Result};
use crate::rail::{
    Dest, LocalBuf, LocalKey, NativeAmo, OpId, Piece, Pieces, PostError, Rail, RailCaps, RailSink, Registration,
    RemoteBuf, WriteOptions,
};

/// Most operations outstanding on one rail. Providers allow more, but a longer queue hides no more latency, and its
/// contexts (128 bytes each) should stay in the L2 cache.
const MAX_DEPTH: usize = 2048;

/// Completion queue entries for what arrives unasked: immediates of peers.
const ARRIVALS: usize = 1024;

/// A rail over libfabric. Fields that hold libfabric objects are in the order in which these must be closed, and before
/// the memory that those may touch.
pub(super) struct OfiRail {
    regions: Regions,
    pub(super) endpoint: Object<ffi::fid_ep>,
    pub(super) receives: Receives,
    /// Registration of `slab`, when local buffers need one and atomics' operands lie there.
    slab_region: Option<Object<ffi::fid_mr>>,
    pub(super) slab: Slab,
    peers: Peers,
    pub(super) queue: Queue,
    pub(super) domain: Domain,

    atomics: Atomics,
    mode: Mode,
    /// It reaches GPUs' memory.
    device: bool,
    wait_fd: Option<RawFd>,
    pub(super) caps: RailCaps,
}

// SAFETY: the rail owns all its objects and shares none with another rail (each has its own domain); it is not `Sync`,
// so one thread at a time uses them, which is what the weakest granted threading model (FI_THREAD_COMPLETION) asks for.
unsafe impl Send for OfiRail {}

impl OfiRail {
    /// Opens an endpoint with `info`. `sleeps`: its thread wants a descriptor to wait on.
    pub fn open(library: &Arc<Libfabric>, info: Info, name: &str, sleeps: bool, progress: String) -> Result<Self> {
        // SAFETY: whatever libfabric offers has its attribute structs.
        let (tx_size, rx_size, inject, max_rma, cq_data, caps) = unsafe {
            let raw = &*info.as_ptr();
            let (tx, ep) = (&*raw.tx_attr, &*raw.ep_attr);
            let data = (*raw.domain_attr).cq_data_size;
            (tx.size, (*raw.rx_attr).size, tx.inject_size, ep.max_msg_size, data, raw.caps)
        };
        let depth = tx_size.clamp(1, MAX_DEPTH);
        let provider = info.provider();
        let known = super::provider::traits(&provider);
        let caps = RailCaps {
            polls_post: false,
            name: name.to_owned(),
            provider: provider.clone(),
            max_rma,
            inject,
            pieces: rma::pieces(&info),
            max_send: messages::largest(&provider)?.min(max_rma),
            queue_depth: depth,
            window: rma::window(&provider),
            order: hints::granted_order(&info),
            local_registration: Mode::of(&info).local,
            immediate: if caps & ffi::FI_RMA == 0 { 0 } else { cq_data.min(size_of::<u64>()) },
            half_open: known.connected,
            paired: false,
            software: known.software,
            progress,
        };
        let mode = Mode::of(&info);
        let domain = Domain::open(library, info, name)?;
        let mut receives = Receives::new(rx_size);
        let (cq, wait_fd) = domain.open_queue(depth + receives.count() + ARRIVALS, sleeps)?;
        let addresses = domain.open_addresses()?;
        let (endpoint, device) = domain.open_endpoint(&cq, &addresses)?;
        receives.start(&domain, &endpoint, mode)?;
        let atomics = Atomics::query(&domain);
        let slab = Slab::new(depth as u32);
        let mut slab_region = None;
        if mode.local && atomics.any() {
            // SAFETY: the slab is freed after its registration is closed (field order).
            let region = unsafe { memory::register(&domain, &endpoint, mode, slab.bytes()) };
            slab_region = Some(region?);
        }
        let queue = Queue::new(cq);
        let regions = Regions::default();
        let peers = Peers::new(addresses);
        #[rustfmt::skip]
        let rail = OfiRail {
            regions, endpoint, receives, slab_region, slab, peers, queue, domain, atomics, mode, device, wait_fd, caps,
        };
        tracing::debug!(rail = rail.caps.name, caps = ?rail.caps, wait_fd = ?rail.wait_fd, "opened");
        Ok(rail)
    }

    #[inline]
    fn peer(&self, dest: Dest) -> Result<ffi::fi_addr_t, PostError> {
        self.peers.get(dest).ok_or_else(|| refused(ffi::FI_ENOTCONN, || format!("destination {dest} is not connected")))
    }

    #[inline]
    fn take(&mut self, id: OpId) -> Result<SlotIndex, PostError> {
        self.slab.take(id).ok_or(PostError::Again)
    }

    /// What a posting call returned, for an operation without a slot.
    #[inline]
    fn posted(&self, code: isize) -> Result<(), PostError> {
        if code == 0 {
            Ok(())
        } else if code == -(ffi::FI_EAGAIN as isize) {
            Err(PostError::Again)
        } else {
            Err(PostError::Failed(fault(&self.domain.library, code)))
        }
    }

    /// What a posting call returned, for the operation in `slot`.
    #[inline]
    fn posted_in(&mut self, slot: SlotIndex, code: isize) -> Result<(), PostError> {
        if code != 0 {
            self.slab.give_back(slot);
        }
        self.posted(code)
    }

    fn check_size(&self, bytes: usize, limit: usize, what: &str) -> Result<(), PostError> {
        if bytes <= limit {
            return Ok(());
        }
        Err(refused(ffi::FI_EMSGSIZE, || {
            format!("{bytes} bytes; {what} on rail {} takes at most {limit}", self.caps.name)
        }))
    }
}

#[cold]
fn refused(code: i32, text: impl FnOnce() -> String) -> PostError {
    PostError::Failed(Fault { code, text: text(), retryable: false })
}

// SAFETY: the provider follows work requests; what is reported done is what the completion queue says.
unsafe impl Rail for OfiRail {
    fn caps(&self) -> &RailCaps {
        &self.caps
    }

    fn address(&self) -> Vec<u8> {
        address::of_endpoint(&self.endpoint, &self.caps.provider)
    }

    fn connect(&mut self, dest: Dest, address: &[u8], _return_dest: Dest) -> Result<()> {
        self.peers.connect(&self.domain, &self.caps.provider, dest, address)
    }

    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration> {
        // SAFETY: forwarded to the caller; regions close before anything else of the rail.
        unsafe { self.regions.register(&self.domain, &self.endpoint, self.mode, (ptr, len), (None, SHARED), id) }
    }

    fn suggest_key(&mut self, key: u64) {
        self.regions.next_key = Some(key);
    }

    unsafe fn register_local(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<LocalKey> {
        // SAFETY: as above.
        unsafe { self.regions.register(&self.domain, &self.endpoint, self.mode, (ptr, len), (None, PRIVATE), id) }
            .map(|registration| registration.local)
    }

    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, id: u32) -> Result<Registration> {
        let (Export::Gpu { ordinal, .. }, true) = (memory.export, self.device) else {
            return Err(unreached(self.caps(), memory.len));
        };
        let range = (memory.base, memory.len);
        // SAFETY: as above.
        unsafe { self.regions.register(&self.domain, &self.endpoint, self.mode, range, (Some(ordinal), SHARED), id) }
    }

    fn deregister(&mut self, id: u32) {
        self.regions.deregister(id);
    }

    #[inline]
    unsafe fn write(
        &mut self,
        dest: Dest,
        local: LocalBuf,
        remote: RemoteBuf,
        options: WriteOptions,
    ) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        let Some(id) = options.id else {
            self.check_size(local.len, self.caps.inject, "a write without completion")?;
            let (endpoint, from) = (self.endpoint.as_ptr(), local.ptr.cast_const().cast::<c_void>());
            let RemoteBuf { address, key } = remote;
            // SAFETY: `local` is readable by the contract and copied by the call.
            let code = unsafe {
                match options.immediate {
                    None => ffi::fi_inject_write(endpoint, from, local.len, peer, address, key),
                    Some(data) => ffi::fi_inject_writedata(endpoint, from, local.len, data, peer, address, key),
                }
            };
            return self.posted(code);
        };
        self.check_size(local.len, self.caps.max_rma, "a write")?;
        let slot = self.take(id)?;
        let flags = ffi::FI_COMPLETION
            | rma::asked_for(options.notify)
            | if options.immediate.is_some() { ffi::FI_REMOTE_CQ_DATA } else { 0 }
            | if options.more { ffi::FI_MORE } else { 0 };
        let data = options.immediate.unwrap_or(0);
        // SAFETY: `local` stays until the completion by the contract, and so does the taken slot.
        let code = unsafe {
            rma::message(peer, &[Piece { local, remote }], self.slab.get(slot).cast(), data, |message| {
                ffi::fi_writemsg(self.endpoint.as_ptr(), message, flags)
            })
        };
        self.posted_in(slot, code)
    }

    #[inline]
    unsafe fn read(
        &mut self,
        dest: Dest,
        local: LocalBuf,
        remote: RemoteBuf,
        id: OpId,
        more: bool,
    ) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        self.check_size(local.len, self.caps.max_rma, "a read")?;
        let slot = self.take(id)?;
        let flags = ffi::FI_COMPLETION | if more { ffi::FI_MORE } else { 0 };
        // SAFETY: as for a write.
        let code = unsafe {
            rma::message(peer, &[Piece { local, remote }], self.slab.get(slot).cast(), 0, |message| {
                ffi::fi_readmsg(self.endpoint.as_ptr(), message, flags)
            })
        };
        self.posted_in(slot, code)
    }

    unsafe fn move_pieces(&mut self, dest: Dest, pieces: &[Piece], way: Pieces, id: OpId) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        if pieces.len() > self.caps.pieces {
            return Err(refused(ffi::FI_EINVAL, || format!("{} pieces on rail {}", pieces.len(), self.caps.name)));
        }
        self.check_size(pieces.iter().map(|piece| piece.local.len).sum(), self.caps.max_rma, "all pieces of one")?;
        let slot = self.take(id)?;
        let (endpoint, context) = (self.endpoint.as_ptr(), self.slab.get(slot).cast());
        // SAFETY: as for a write and a read.
        let code = unsafe {
            rma::message(peer, pieces, context, 0, |message| match way {
                Pieces::Written(notify) => {
                    ffi::fi_writemsg(endpoint, message, ffi::FI_COMPLETION | rma::asked_for(notify))
                }
                Pieces::Read => ffi::fi_readmsg(endpoint, message, ffi::FI_COMPLETION),
            })
        };
        self.posted_in(slot, code)
    }

    #[inline]
    unsafe fn send(&mut self, dest: Dest, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        let Some(id) = id else {
            self.check_size(local.len, self.caps.inject.min(self.caps.max_send), "a message without completion")?;
            // SAFETY: `local` is readable by the contract and copied by the call.
            let code = unsafe { ffi::fi_inject(self.endpoint.as_ptr(), local.ptr.cast(), local.len, peer) };
            return self.posted(code);
        };
        self.check_size(local.len, self.caps.max_send, "a message")?;
        let slot = self.take(id)?;
        let iov = libc::iovec { iov_base: local.ptr.cast(), iov_len: local.len };
        let mut descriptor = local.key.raw() as *mut c_void;
        let message = ffi::fi_msg {
            msg_iov: &raw const iov,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer,
            context: self.slab.get(slot).cast(),
            data: 0,
        };
        // SAFETY: the lists are copied by the call; `local` and the slot stay until the completion.
        let code = unsafe { ffi::fi_sendmsg(self.endpoint.as_ptr(), &raw const message, ffi::FI_COMPLETION) };
        self.posted_in(slot, code)
    }

    fn supports_amo(&self, ty: AmoType, op: AmoOp, fetching: bool) -> bool {
        self.atomics.supports(ty, op, fetching)
    }

    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        if !self.atomics.supports(amo.ty, amo.op, amo.result.is_some()) {
            return Err(refused(ffi::FI_EOPNOTSUPP, || {
                format!("provider {} performs no {:?} on {:?}", self.caps.provider, amo.op, amo.ty)
            }));
        }
        let slot = self.take(id)?;
        // SAFETY: an open region.
        let descriptor =
            self.slab_region.as_ref().map_or(ptr::null_mut(), |region| unsafe { ffi::fi_mr_desc(region.as_ptr()) });
        // SAFETY: the contract of the caller; the slot is taken until the completion.
        let code = unsafe { atomics::post(&self.endpoint, peer, self.slab.get(slot), descriptor, remote, amo) };
        self.posted_in(slot, code)
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn RailSink) -> usize {
        self.progress(sink)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.wait_fd
    }

    fn arm(&mut self) -> bool {
        let mut fids = [self.queue.cq.fid()];
        // SAFETY: an open fabric and one open queue of it.
        self.wait_fd.is_some()
            && unsafe { ffi::fi_trywait(self.domain.fabric.as_ptr(), fids.as_mut_ptr(), fids.len()) } == 0
    }
}
