//! Connecting, registering and posting: the operations of a rail as verbs calls.

use std::os::fd::RawFd;

use verbs_sys as sys;

use super::address::Address;
use super::memory::Memory;
use super::open::{Peer, PeerState, VerbsRail};
use super::post::Request;
use crate::amo::{AmoOp, AmoType};
use crate::device::DeviceMemory;
use crate::error::{Fault, Result};
use crate::pairing::InterfaceAddress;
use crate::rail::{
    Dest, LocalBuf, LocalKey, NativeAmo, OpId, Piece, PostError, Rail, RailCaps, RailSink, Registration, RemoteBuf,
    WriteOptions,
};

fn refused(text: impl FnOnce() -> String) -> PostError {
    PostError::refused(libc::EINVAL, text)
}

fn rkey(remote: RemoteBuf) -> Result<u32, PostError> {
    u32::try_from(remote.key).map_err(|_| refused(|| format!("{:#x} is no remote key of ibverbs", remote.key)))
}

fn at(remote: RemoteBuf) -> Result<sys::ibv_send_wr__bindgen_ty_2, PostError> {
    let rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote.address, rkey: rkey(remote)? };
    Ok(sys::ibv_send_wr__bindgen_ty_2 { rdma })
}

impl VerbsRail {
    fn check_length(&self, what: &str, len: usize, limit: usize) -> Result<(), PostError> {
        if len <= limit {
            return Ok(());
        }
        Err(refused(|| format!("{what} of {len} bytes; rail {} takes {limit}", self.caps.name)))
    }
}

// SAFETY: libibverbs and the NIC follow work requests, and an operation is reported as done only by the completion
// queue.
unsafe impl Rail for VerbsRail {
    fn caps(&self) -> &RailCaps {
        &self.caps
    }

    fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    fn address_to(&mut self, dest: Dest) -> Result<Vec<u8>> {
        self.address_for(dest)
    }

    fn interface(&self, address: &[u8]) -> Option<InterfaceAddress> {
        Address::interface(address)
    }

    fn connect(&mut self, dest: Dest, address: &[u8], return_dest: Dest) -> Result<()> {
        self.connect_to(dest, address, return_dest)
    }

    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.register_host(ptr, len, true, id) }
    }

    unsafe fn register_local(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<LocalKey> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.register_host(ptr, len, false, id) }.map(|registration| registration.local)
    }

    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, id: u32) -> Result<Registration> {
        // SAFETY: as in `register_host`.
        let registered = unsafe { Memory::register_device(&self.domain, memory, self.access) }?;
        let registration = self.keep(id, registered, memory.base as u64);
        Ok(Registration { local: registration.local.of_device(), ..registration })
    }

    fn deregister(&mut self, id: u32) {
        self.memory.remove(&id);
    }

    unsafe fn write(&mut self, dest: Dest, piece: Piece, options: WriteOptions) -> Result<(), PostError> {
        let Piece { local, remote } = piece;
        self.check_length("write", local.len, self.caps.max_rma)?;
        if options.id.is_none() {
            self.check_length("write without completion", local.len, self.caps.inject)?;
        }
        let opcode = match options.immediate {
            Some(_) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => sys::IBV_WR_RDMA_WRITE,
        };
        let request = Request {
            opcode,
            local,
            immediate: options.immediate.unwrap_or(0) as u32,
            target: at(remote)?,
            id: options.id,
            more: options.more,
            // The CPU reads inline data.
            inline: local.len <= self.caps.inject && !local.key.is_device(),
        };
        self.post(dest, &request)
    }

    unsafe fn read(&mut self, dest: Dest, piece: Piece, id: OpId, more: bool) -> Result<(), PostError> {
        let Piece { local, remote } = piece;
        self.check_length("read", local.len, self.caps.max_rma)?;
        let request = Request {
            opcode: sys::IBV_WR_RDMA_READ,
            local,
            immediate: 0,
            target: at(remote)?,
            id: Some(id),
            more,
            inline: false,
        };
        self.post(dest, &request)
    }

    unsafe fn send(&mut self, dest: Dest, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError> {
        self.check_length("message", local.len, self.caps.max_send)?;
        if id.is_none() {
            self.check_length("message without completion", local.len, self.caps.inject)?;
        }
        let request = Request {
            opcode: sys::IBV_WR_SEND,
            local,
            immediate: 0,
            target: sys::ibv_send_wr__bindgen_ty_2::default(),
            id,
            more: false,
            inline: local.len <= self.caps.inject,
        };
        self.post(dest, &request)
    }

    /// Whether the NIC performs an AMO: addition or compare-swap of 8-byte integers. A fetch is an addition of 0. The
    /// NIC always returns old values, so `fetching` makes no difference.
    fn supports_amo(&self, ty: AmoType, op: AmoOp, _fetching: bool) -> bool {
        self.path.atomics
            && matches!(ty, AmoType::I64 | AmoType::U64)
            && matches!(op, AmoOp::Fetch | AmoOp::Add | AmoOp::CompareSwap)
    }

    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError> {
        if !self.supports_amo(amo.ty, amo.op, true) {
            let by = &self.caps.name;
            return Err(refused(|| format!("{:?} of {:?} is not done by the NIC of rail {by}", amo.op, amo.ty)));
        }
        if !remote.address.is_multiple_of(8) {
            return Err(refused(|| format!("an atomic at {:#x}, which is not a multiple of 8", remote.address)));
        }
        let own = LocalBuf { ptr: self.unwanted.start(), len: 8, key: LocalKey(self.unwanted.lkey().into()) };
        let local = amo.result.unwrap_or(own);
        if local.len != 8 {
            return Err(refused(|| format!("{} bytes for the old value of an atomic, 8 expected", local.len)));
        }
        let (opcode, compare_add, swap) = match amo.op {
            AmoOp::CompareSwap => (sys::IBV_WR_ATOMIC_CMP_AND_SWP, amo.compare, amo.operand),
            AmoOp::Fetch => (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0),
            _ => (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, amo.operand, 0),
        };
        let atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: rkey(remote)?,
        };
        let target = sys::ibv_send_wr__bindgen_ty_2 { atomic };
        let request = Request { opcode, local, immediate: 0, target, id: Some(id), more: false, inline: false };
        self.post(dest, &request)
    }

    fn poll(&mut self, sink: &mut dyn RailSink) -> usize {
        self.progress(sink)
    }

    fn is_connected(&self, dest: Dest) -> bool {
        let broken =
            |peer: &Peer| peer.theirs.is_some() && matches!(peer.state, PeerState::Waiting | PeerState::Failed(_));
        !self.index(dest).is_some_and(|index| broken(&self.peers[index]))
    }

    fn port_down(&mut self) -> Option<Fault> {
        self.poll_events();
        if self.port_event { None } else { self.port_fault() }
    }

    fn disconnect(&mut self, dest: Dest, why: &Fault) {
        if let Some(index) = self.index(dest) {
            self.fail_peer(index, why);
        }
    }

    fn leave(&mut self, dest: Dest) {
        self.forget_destination(dest);
    }

    fn forget(&mut self, dest: Dest) -> bool {
        self.forget_destination(dest)
    }

    fn renew(&mut self, dest: Dest) -> Result<Option<u64>> {
        self.renew_connection(dest)
    }

    fn reconnect(&mut self, dest: Dest, offer: u64) -> Result<()> {
        self.connect_again(dest, offer)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.completions.wait_fd()
    }

    fn arm(&mut self) -> bool {
        self.flush();
        self.poll_events();
        let pending = self.port_event
            || !self.unposted.is_empty()
            || self.down.as_ref().is_some_and(|(_, unreported)| *unreported);
        !pending && self.completions.arm()
    }
}
