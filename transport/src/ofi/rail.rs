//! Connecting and posting: the operations of a rail as libfabric calls.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr;

use libfabric_sys as ffi;

use super::completion::SlotIndex;
use super::fault::fault;
use super::memory::{Memory, PRIVATE, SHARED};
use super::open::OfiRail;
use super::provider::traits;
use super::sockets::{self, Connection};
use super::{address, atomics};
use crate::amo::{AmoOp, AmoType};
use crate::device::{DeviceMemory, Export, unreached};
use crate::error::Result;
use crate::pairing::InterfaceAddress;
use crate::rail::{
    Dest, LocalBuf, LocalKey, NativeAmo, Notify, OpId, Piece, Pieces, Ports, PostError, Rail, RailCaps, RailSink,
    Registration, RemoteBuf, WriteOptions,
};

/// The most pieces of one write or read that providers over TCP accept.
pub(super) const MOST_PIECES: usize = 4;

impl OfiRail {
    #[inline]
    fn peer(&self, dest: Dest) -> Result<ffi::fi_addr_t, PostError> {
        self.peers
            .get(dest)
            .ok_or_else(|| PostError::refused(ffi::FI_ENOTCONN, || format!("destination {dest} is not connected")))
    }

    /// The TCP connections with a destination.
    fn connections(&self, dest: Dest) -> Vec<Connection> {
        let ends = address::listens_at(&self.address()).zip(self.peers.listens_at(dest));
        let ends = ends.filter(|_| traits(&self.caps.provider).over_tcp);
        ends.map_or_else(Vec::new, |(ours, theirs)| sockets::connections(ours, theirs))
    }

    #[inline]
    fn take(&mut self, id: OpId) -> Result<SlotIndex, PostError> {
        self.slab.take(id).ok_or(PostError::Again)
    }

    /// The result of a posting call, for an operation without a slot.
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

    /// The result of a posting call, for the operation in `slot`.
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
        Err(PostError::refused(ffi::FI_EMSGSIZE, || {
            format!("{bytes} bytes; {what} on rail {} takes at most {limit}", self.caps.name)
        }))
    }
}

// SAFETY: the provider follows work requests, and an operation is reported as done only by the completion queue.
unsafe impl Rail for OfiRail {
    fn caps(&self) -> &RailCaps {
        &self.caps
    }

    fn address(&self) -> Vec<u8> {
        address::of_endpoint(&self.endpoint, &self.caps.provider, self.prefix)
    }

    fn interface(&self, address: &[u8]) -> Option<InterfaceAddress> {
        address::interface(address)
    }

    fn connect(&mut self, dest: Dest, address: &[u8], _return_dest: Dest) -> Result<()> {
        self.peers.connect(&self.domain, &self.caps.provider, dest, address)
    }

    fn forget(&mut self, dest: Dest) -> bool {
        self.peers.forget(&self.caps.provider, dest);
        true
    }

    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration> {
        let memory = Memory { address: ptr, length: len, gpu: None, access: SHARED };
        // SAFETY: the caller's promise; regions close before all other parts of the rail.
        unsafe { self.regions.register(&self.domain, &self.endpoint, self.mode, memory, id) }
    }

    fn suggest_key(&mut self, key: u64) {
        self.regions.next_key = Some(key);
    }

    unsafe fn register_local(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<LocalKey> {
        let memory = Memory { address: ptr, length: len, gpu: None, access: PRIVATE };
        // SAFETY: as above.
        unsafe { self.regions.register(&self.domain, &self.endpoint, self.mode, memory, id) }
            .map(|registration| registration.local)
    }

    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, id: u32) -> Result<Registration> {
        let (Export::Gpu { ordinal, .. }, true) = (memory.export, self.device) else {
            return Err(unreached(self.caps(), memory.len));
        };
        let (address, length) = (memory.base, memory.len);
        let memory = Memory { address, length, gpu: Some(ordinal), access: SHARED };
        // SAFETY: as above.
        unsafe { self.regions.register(&self.domain, &self.endpoint, self.mode, memory, id) }
    }

    fn deregister(&mut self, id: u32) {
        self.regions.deregister(id);
    }

    #[inline]
    unsafe fn write(&mut self, dest: Dest, piece: Piece, options: WriteOptions) -> Result<(), PostError> {
        let (Piece { local, remote }, peer) = (piece, self.peer(dest)?);
        let Some(id) = options.id else {
            self.check_size(local.len, self.caps.inject, "a write without completion")?;
            let (endpoint, from) = (self.endpoint.as_ptr(), local.ptr.cast_const().cast::<c_void>());
            let RemoteBuf { address, key } = remote;
            // SAFETY: `local` is readable by the contract, and the call copies it.
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
            | asked_for(options.notify)
            | if options.immediate.is_some() { ffi::FI_REMOTE_CQ_DATA } else { 0 }
            | if options.more { ffi::FI_MORE } else { 0 };
        let data = options.immediate.unwrap_or(0);
        // SAFETY: `local` stays until the completion by the contract, and so does the taken slot.
        let code = unsafe {
            message(peer, &[piece], self.slab.get(slot).cast(), data, |message| {
                ffi::fi_writemsg(self.endpoint.as_ptr(), message, flags)
            })
        };
        self.posted_in(slot, code)
    }

    #[inline]
    unsafe fn read(&mut self, dest: Dest, piece: Piece, id: OpId, more: bool) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        self.check_size(piece.local.len, self.caps.max_rma, "a read")?;
        let slot = self.take(id)?;
        let flags = ffi::FI_COMPLETION | if more { ffi::FI_MORE } else { 0 };
        // SAFETY: as for a write.
        let code = unsafe {
            message(peer, &[piece], self.slab.get(slot).cast(), 0, |message| {
                ffi::fi_readmsg(self.endpoint.as_ptr(), message, flags)
            })
        };
        self.posted_in(slot, code)
    }

    unsafe fn move_pieces(&mut self, dest: Dest, pieces: &[Piece], way: Pieces, id: OpId) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        if pieces.len() > self.caps.pieces {
            return Err(PostError::refused(ffi::FI_EINVAL, || {
                format!("{} pieces on rail {}", pieces.len(), self.caps.name)
            }));
        }
        self.check_size(pieces.iter().map(|piece| piece.local.len).sum(), self.caps.max_rma, "all pieces of one")?;
        let slot = self.take(id)?;
        let (endpoint, context) = (self.endpoint.as_ptr(), self.slab.get(slot).cast());
        let (flags, data) = match way {
            Pieces::Read => (0, 0),
            Pieces::Written(notify, None) => (asked_for(notify), 0),
            Pieces::Written(notify, Some(data)) => (asked_for(notify) | ffi::FI_REMOTE_CQ_DATA, data),
        };
        // SAFETY: as for a write and a read.
        let code = unsafe {
            message(peer, pieces, context, data, |message| match way {
                Pieces::Written(..) => ffi::fi_writemsg(endpoint, message, ffi::FI_COMPLETION | flags),
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
            // SAFETY: `local` is readable by the contract, and the call copies it.
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
        // SAFETY: the call copies the lists; `local` and the slot stay until the completion.
        let code = unsafe { ffi::fi_sendmsg(self.endpoint.as_ptr(), &raw const message, ffi::FI_COMPLETION) };
        self.posted_in(slot, code)
    }

    fn supports_amo(&self, ty: AmoType, op: AmoOp, fetching: bool) -> bool {
        self.atomics.supports(ty, op, fetching)
    }

    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError> {
        let peer = self.peer(dest)?;
        if !self.atomics.supports(amo.ty, amo.op, amo.result.is_some()) {
            return Err(PostError::refused(ffi::FI_EOPNOTSUPP, || {
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

    fn is_silent(&self, dest: Dest) -> bool {
        self.connections(dest).iter().any(Connection::is_silent)
    }

    fn opened(&self, dest: Dest) -> Ports {
        sockets::opened(&self.connections(dest))
    }

    fn cut(&mut self, dest: Dest, opened_there: Ports) -> bool {
        let named = |c: &&Connection| c.opened_here || opened_there.contains(&c.port);
        self.connections(dest).iter().filter(named).inspect(|connection| connection.cut()).count() > 0
    }

    fn cut_all(&mut self, dest: Dest) -> bool {
        let all = self.connections(dest);
        // A provider has one connection for a peer, whichever end has opened it.
        let known = all.iter().any(|connection| connection.opened_here);
        all.iter().filter(|c| c.opened_here == known).inspect(|connection| connection.cut()).count() > 0
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

/// A write's completion flags.
#[inline]
fn asked_for(notify: Notify) -> u64 {
    match notify {
        // Any completion means that the buffer is free again. FI_TRANSMIT_COMPLETE would mean more: tcp implements it
        // by an acknowledgement of the target, as slow as delivery.
        Notify::Transmitted => 0,
        Notify::Delivered => ffi::FI_DELIVERY_COMPLETE,
    }
}

/// Builds the message of a write or a read of at most [`MOST_PIECES`] pieces and passes it to `post`.
///
/// # Safety
/// `post` keeps no pointer to the message itself or its lists, only to the memory that the lists point to.
#[inline]
unsafe fn message(
    peer: ffi::fi_addr_t,
    pieces: &[Piece],
    context: *mut c_void,
    data: u64,
    post: impl FnOnce(*const ffi::fi_msg_rma) -> isize,
) -> isize {
    let mut iovs = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MOST_PIECES];
    let mut targets = [ffi::fi_rma_iov { addr: 0, len: 0, key: 0 }; MOST_PIECES];
    let mut descriptors = [ptr::null_mut::<c_void>(); MOST_PIECES];
    let count = pieces.len().min(MOST_PIECES);
    for (at, &Piece { local, remote }) in pieces[..count].iter().enumerate() {
        iovs[at] = libc::iovec { iov_base: local.ptr.cast(), iov_len: local.len };
        targets[at] = ffi::fi_rma_iov { addr: remote.address, len: local.len, key: remote.key };
        descriptors[at] = local.key.raw() as *mut c_void;
    }
    let message = ffi::fi_msg_rma {
        msg_iov: iovs.as_ptr(),
        desc: descriptors.as_mut_ptr(),
        iov_count: count,
        addr: peer,
        rma_iov: targets.as_ptr(),
        rma_iov_count: count,
        context,
        data,
    };
    post(&raw const message)
}
