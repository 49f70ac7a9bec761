//! A rail of the mock fabric.

use std::collections::HashMap;
use std::net::IpAddr;

use super::config::FabricConfig;
use super::fabric::{Cargo, Fabric, Flight, Report, State, path_fault, port_fault};
use crate::amo::{AmoOp, AmoType};
use crate::device::{DeviceMemory, Export};
use crate::error::{Error, Fault, Result};
use crate::pairing::InterfaceAddress;
use crate::rail::{
    Dest, LocalBuf, LocalKey, NativeAmo, Notify, OpId, Piece, Pieces, Ports, PostError, Rail, RailCaps, RailSink,
    Registration, RemoteBuf, WriteOptions,
};

/// A rail of a mock fabric. See the module.
pub struct MockRail {
    fabric: Fabric,
    id: usize,
    caps: RailCaps,
    /// The rail of each destination.
    peers: HashMap<Dest, usize>,
    /// Registrations of this rail: id, base, length. Local buffers must be inside of one if the capabilities demand it.
    regions: Vec<(u32, usize, usize)>,
    /// Registrations that the CPU accesses at another address: id, and the distance.
    elsewhere: Vec<(u32, usize)>,
    /// Whether the last post waits for its doorbell.
    chained: bool,
    /// Its network interface, if it has one.
    interface: Option<InterfaceAddress>,
}

impl MockRail {
    pub(super) fn new(
        fabric: Fabric,
        id: usize,
        name: &str,
        config: FabricConfig,
        interface: Option<InterfaceAddress>,
    ) -> Self {
        let caps = RailCaps {
            name: name.into(),
            provider: "mock".into(),
            max_rma: config.max_rma,
            inject: config.inject,
            polls_post: config.polls_post,
            pieces: config.pieces,
            max_send: 4096,
            queue_depth: config.queue_depth,
            window: config.window,
            order: config.order,
            local_registration: config.local_registration,
            immediate: size_of::<u64>(),
            software: config.software,
            half_open: config.half_open,
            paired: false,
            progress: "by whoever polls".into(),
        };
        let (peers, regions, elsewhere) = (HashMap::new(), Vec::new(), Vec::new());
        MockRail { fabric, id, caps, peers, regions, elsewhere, chained: false, interface }
    }

    fn peer(&self, dest: Dest) -> Result<usize, PostError> {
        let none = || PostError::refused(22, || format!("destination {dest} is not connected"));
        self.peers.get(&dest).copied().ok_or_else(none)
    }

    /// Checks the contract of a poster; a violation is a failure here, so that tests detect it.
    fn check_local(&self, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError> {
        let wrong = |text: &str| Err(PostError::refused(14, || text.into()));
        if id.is_none() {
            return if local.len <= self.caps.inject { Ok(()) } else { wrong("too long to be copied") };
        }
        let at = local.ptr.addr();
        let inside = |&(_, base, len): &(u32, usize, usize)| at >= base && at + local.len <= base + len;
        if !self.caps.local_registration || local.len == 0 || self.regions.iter().any(inside) {
            return Ok(());
        }
        wrong("a local buffer is not registered")
    }

    /// Rings the doorbell, unless more posts follow.
    fn ring(&mut self, more: bool) {
        self.chained = more;
        self.fabric.state().doorbells += u64::from(!more);
    }

    fn post(&self, to: usize, cargo: Cargo, id: Option<OpId>) -> Result<(), PostError> {
        let mut state = self.fabric.state();
        if state.down[self.id] || !state.is_connected(self.id, to) {
            return Err(PostError::Failed(path_fault()));
        }
        let again = state.config.again;
        if state.outstanding[self.id] >= self.caps.queue_depth || state.chance(again) || state.is_refused(self.id, to) {
            return Err(PostError::Again);
        }
        if id.is_some() || !matches!(cargo, Cargo::Message(_)) {
            state.outstanding[self.id] += 1;
        }
        state.depart(Flight { cargo, from: self.id, to, id, left: None });
        Ok(())
    }

    /// The address by which the CPU, which plays the NIC, accesses the bytes of a local buffer.
    fn reachable(&self, local: LocalBuf) -> *mut u8 {
        let id = (local.key.raw() as u32).wrapping_sub(1);
        match self.elsewhere.iter().find(|(of, _)| local.key.is_device() && *of == id) {
            Some((_, further)) => local.ptr.wrapping_add(*further),
            None => local.ptr,
        }
    }

    fn remote(&self, state: &State, to: usize, remote: RemoteBuf, len: usize) -> Result<usize, PostError> {
        let none = || PostError::refused(13, || format!("key {} does not cover {len} bytes there", remote.key));
        state.find(to, remote.key, remote.address, len).ok_or_else(none)
    }
}

/// A copy of the bytes of a local buffer.
///
/// # Safety
/// The buffer is valid for reads.
unsafe fn bytes_of(local: LocalBuf) -> Vec<u8> {
    let mut bytes = vec![0; local.len];
    if local.len > 0 {
        // SAFETY: the caller's promise; the vector is new.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(local.ptr, local.len) };
    }
    bytes
}

// SAFETY: a work request's bytes are copied while it is posted or kept until its completion is reported, and only
// inside of registered memory.
unsafe impl Rail for MockRail {
    fn caps(&self) -> &RailCaps {
        &self.caps
    }

    fn address(&self) -> Vec<u8> {
        let mut address = (self.id as u64).to_le_bytes().to_vec();
        if let Some(InterfaceAddress { ip: IpAddr::V4(ip), prefix, network }) = self.interface {
            address.extend(ip.octets());
            address.push(prefix);
            address.extend(network.to_le_bytes());
        }
        address
    }

    fn interface(&self, address: &[u8]) -> Option<InterfaceAddress> {
        let [a, b, c, d, prefix, n0, n1, n2, n3] = *address.split_first_chunk::<8>()?.1.first_chunk()?;
        Some(InterfaceAddress { ip: [a, b, c, d].into(), prefix, network: u32::from_le_bytes([n0, n1, n2, n3]) })
    }

    fn connect(&mut self, dest: Dest, address: &[u8], _return_dest: Dest) -> Result<()> {
        let malformed = || Error::Malformed { what: "mock address", pe: dest, why: "it has no 8 bytes".into() };
        let id = u64::from_le_bytes(*address.first_chunk().ok_or_else(malformed)?);
        self.peers.insert(dest, id as usize);
        Ok(())
    }

    fn forget(&mut self, dest: Dest) -> bool {
        self.peers.remove(&dest);
        true
    }

    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration> {
        let base = ptr.expose_provenance();
        self.regions.push((id, base, len));
        self.fabric.state().memory.push((self.id, u64::from(id), base, len));
        Ok(Registration { local: LocalKey(u64::from(id) + 1), remote_key: id.into(), remote_base: 0 })
    }

    unsafe fn register_device(&mut self, memory: DeviceMemory<'_>, id: u32) -> Result<Registration> {
        // Without a key for each buffer, the rail could not tell which address the CPU has to use.
        let (Export::Mapping(at), true) = (memory.export, self.caps.local_registration) else {
            let (what, by) = ("a device's memory".into(), "the mock fabric".into());
            return Err(Error::Unsupported { what, by, remedy: "hand it a mapping, with local registration".into() });
        };
        // SAFETY: the caller's promise.
        let registration = unsafe { self.register(at, memory.len, id) }?;
        self.regions.push((id, memory.base.addr(), memory.len));
        self.elsewhere.push((id, at.addr().wrapping_sub(memory.base.addr())));
        Ok(Registration { local: registration.local.of_device(), ..registration })
    }

    fn deregister(&mut self, id: u32) {
        self.regions.retain(|r| r.0 != id);
        self.elsewhere.retain(|e| e.0 != id);
        self.fabric.state().memory.retain(|m| (m.0, m.1) != (self.id, id.into()));
    }

    unsafe fn write(&mut self, dest: Dest, piece: Piece, options: WriteOptions) -> Result<(), PostError> {
        let (Piece { local, remote }, to) = (piece, self.peer(dest)?);
        self.check_local(local, options.id)?;
        let address = self.remote(&self.fabric.state(), to, remote, local.len)?;
        // SAFETY: the caller's promise. A write without id is copied now. One with an id may read its source at any
        // time until its completion, so also now.
        let bytes = unsafe { bytes_of(LocalBuf { ptr: self.reachable(local), ..local }) };
        let left = options.id.filter(|_| options.notify == Notify::Transmitted);
        let reported = options.id.filter(|_| left.is_none());
        self.post(to, Cargo::Write { parts: vec![(address, bytes)], immediate: options.immediate }, reported)?;
        if let Some(id) = left {
            self.fabric.state().report_left(self.id, id);
        }
        self.ring(options.more);
        Ok(())
    }

    unsafe fn read(&mut self, dest: Dest, piece: Piece, id: OpId, more: bool) -> Result<(), PostError> {
        let (Piece { local, remote }, to) = (piece, self.peer(dest)?);
        self.check_local(local, Some(id))?;
        let from = self.remote(&self.fabric.state(), to, remote, local.len)?;
        self.post(to, Cargo::Read(vec![(from, self.reachable(local).expose_provenance(), local.len)]), Some(id))?;
        self.ring(more);
        Ok(())
    }

    unsafe fn move_pieces(&mut self, dest: Dest, pieces: &[Piece], way: Pieces, id: OpId) -> Result<(), PostError> {
        let to = self.peer(dest)?;
        let (mut written, mut read, mut total) = (Vec::new(), Vec::new(), 0);
        for &Piece { local, remote } in pieces {
            self.check_local(local, Some(id))?;
            total += local.len;
            let (there, here) = (self.remote(&self.fabric.state(), to, remote, local.len)?, self.reachable(local));
            match way {
                // SAFETY: as for a write.
                Pieces::Written(..) => written.push((there, unsafe { bytes_of(LocalBuf { ptr: here, ..local }) })),
                Pieces::Read => read.push((there, here.expose_provenance(), local.len)),
            }
        }
        if pieces.len() > self.caps.pieces || total > self.caps.max_rma {
            return Err(PostError::refused(22, || format!("{} pieces of {total} bytes", pieces.len())));
        }
        let left = matches!(way, Pieces::Written(Notify::Transmitted, _));
        let cargo = match way {
            Pieces::Read => Cargo::Read(read),
            Pieces::Written(_, immediate) => Cargo::Write { parts: written, immediate },
        };
        self.post(to, cargo, (!left).then_some(id))?;
        if left {
            self.fabric.state().report_left(self.id, id);
        }
        Ok(())
    }

    unsafe fn send(&mut self, dest: Dest, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError> {
        let to = self.peer(dest)?;
        self.check_local(local, id)?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { bytes_of(local) };
        self.post(to, Cargo::Message(bytes), id)
    }

    fn supports_amo(&self, ty: AmoType, op: AmoOp, _fetching: bool) -> bool {
        self.fabric.state().config.atomics
            && matches!(ty, AmoType::I64 | AmoType::U64)
            && matches!(op, AmoOp::Fetch | AmoOp::Add | AmoOp::CompareSwap)
    }

    unsafe fn amo(&mut self, dest: Dest, remote: RemoteBuf, amo: NativeAmo, id: OpId) -> Result<(), PostError> {
        if !self.supports_amo(amo.ty, amo.op, true) {
            return Err(PostError::refused(38, || "the mock fabric does not perform it".into()));
        }
        let to = self.peer(dest)?;
        if let Some(result) = amo.result {
            self.check_local(result, Some(id))?;
        }
        let at = self.remote(&self.fabric.state(), to, remote, 8)?;
        if !at.is_multiple_of(8) {
            return Err(PostError::refused(22, || "the word is not aligned".into()));
        }
        let old_to = amo.result.map_or(0, |local| local.ptr.expose_provenance());
        let NativeAmo { ty, op, operand, compare, .. } = amo;
        self.post(to, Cargo::Amo { at, ty, op, operand, compare, old_to }, Some(id))
    }

    fn is_connected(&self, dest: Dest) -> bool {
        self.peer(dest).map_or(true, |to| self.fabric.state().is_connected(self.id, to))
    }

    fn port_down(&mut self) -> Option<Fault> {
        let state = self.fabric.state();
        let reported = !state.reports[self.id].iter().any(|report| matches!(report, Report::PortDown));
        (state.pulled_out[self.id] && reported).then(port_fault)
    }

    fn disconnect(&mut self, dest: Dest, _why: &Fault) {
        if let Ok(to) = self.peer(dest) {
            self.fabric.state().cut_connection(self.id, to);
        }
    }

    fn is_silent(&self, dest: Dest) -> bool {
        let state = self.fabric.state();
        state.config.tells_silence && self.peer(dest).is_ok_and(|to| state.is_pulled_out(self.id, to))
    }

    fn cut(&mut self, dest: Dest, _opened_there: Ports) -> bool {
        self.peer(dest).is_ok_and(|to| {
            let mut state = self.fabric.state();
            let cuts = state.config.tells_silence;
            if cuts {
                state.drop_flights(self.id, to);
            }
            cuts
        })
    }

    fn renew(&mut self, dest: Dest) -> Result<Option<u64>> {
        Ok(self.peer(dest).ok().and_then(|to| self.fabric.state().renew(self.id, to)))
    }

    fn reconnect(&mut self, dest: Dest, offer: u64) -> Result<()> {
        if let Ok(to) = self.peer(dest) {
            self.fabric.state().reconnect(self.id, to, offer);
        }
        Ok(())
    }

    fn poll(&mut self, sink: &mut dyn RailSink) -> usize {
        if self.chained {
            self.ring(false);
        }
        let reports = {
            let mut state = self.fabric.state();
            state.step();
            state.some_reports(self.id)
        };
        let count = reports.len();
        for report in reports {
            match report {
                Report::Done(id) => sink.done(id),
                Report::Failed(id, fault) => sink.failed(id, fault),
                Report::Message(bytes) => sink.message(&bytes),
                Report::Immediate(immediate) => sink.immediate(immediate),
                Report::Broken(fault) => sink.broken(fault),
                Report::PortDown => sink.port_down(),
            }
        }
        count
    }
}
