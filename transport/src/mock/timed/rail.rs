//! A PE's rail on a timed fabric.

use std::collections::HashMap;

use symrail_core::simulation::{self, nanos, spend, uncounted};

use super::TimedFabric;
use super::state::{Arrival, Cargo, Part};
use crate::amo::{AmoOp, AmoType};
use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::rail::{
    Dest, LocalBuf, LocalKey, NativeAmo, Notify, OpId, Order, Piece, Pieces, PostError, Rail, RailCaps, RailSink,
    Registration, RemoteBuf, WriteOptions,
};

/// A rail of a timed fabric. See the module.
pub(super) struct TimedRail {
    fabric: TimedFabric,
    id: u32,
    address: Vec<u8>,
    caps: RailCaps,
    /// The rail of each destination.
    peers: HashMap<Dest, u32>,
    /// Keys of registrations by their local ids, and the next key.
    keys: HashMap<u32, u64>,
    suggested: Option<u64>,
    outstanding: usize,
}

impl TimedRail {
    pub fn new(fabric: TimedFabric, (pe, id): (Pe, u32), address: Vec<u8>) -> Self {
        let order =
            Order { write_after_write: true, send_after_write: true, send_after_send: true, amo_after_write: true };
        // The capabilities are those of TCP.
        let caps = RailCaps {
            name: format!("timed{pe}"),
            provider: "timed".into(),
            max_rma: 1 << 30,
            inject: 64,
            polls_post: false,
            pieces: 4,
            max_send: 4096,
            queue_depth: 512,
            window: u64::MAX,
            order,
            local_registration: false,
            immediate: size_of::<u64>(),
            software: true,
            half_open: false,
            paired: false,
            progress: "by whoever polls".into(),
        };
        let (peers, keys) = Default::default();
        TimedRail { fabric, id, address, caps, peers, keys, suggested: None, outstanding: 0 }
    }

    fn peer(&self, dest: Dest) -> Result<u32, PostError> {
        let none = || PostError::refused(22, || format!("destination {dest} is not connected"));
        self.peers.get(&dest).copied().ok_or_else(none)
    }

    fn remote(&self, to: u32, remote: RemoteBuf, len: usize) -> Result<usize, PostError> {
        let none = || PostError::refused(13, || format!("{len} bytes are not there to be reached"));
        self.fabric.state().find(to, remote.key, remote.address, len).ok_or_else(none)
    }

    /// Posts a cargo whose bytes the CPU copies.
    fn post(&mut self, to: u32, cargo: Cargo, left: Option<OpId>, ends: bool) {
        let mut state = self.fabric.state();
        let link = state.link(self.id, to);
        spend(link.post + cargo.bytes() * link.copy_ps / 1000);
        self.outstanding += usize::from(ends);
        uncounted(|| state.post(nanos(), (self.id, to), cargo, left));
    }

    fn must_have_room(&self) -> Result<(), PostError> {
        if self.outstanding < self.caps.queue_depth { Ok(()) } else { Err(PostError::Again) }
    }

    fn part(&self, to: usize, from: *const u8, len: usize) -> Part {
        let carried = len <= self.fabric.state().carried;
        let bytes = carried.then(|| {
            let mut bytes = vec![0; len];
            // SAFETY: the callers hand in memory that is valid for reads: a local buffer, or one that was checked
            // against registered memory.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, len) };
            bytes.into_boxed_slice()
        });
        Part { to, len, bytes }
    }

    /// Handles a cargo that another rail has sent.
    fn take_in(&mut self, from: u32, cargo: Cargo, sink: &mut dyn RailSink) {
        let link = self.fabric.state().link(self.id, from);
        spend(link.arrival + cargo.bytes() * link.copy_ps / 1000);
        if !matches!(cargo, Cargo::Acknowledged(_) | Cargo::Failed(..)) {
            self.fabric.state().count_received(self.id);
        }
        match cargo {
            Cargo::Write { parts, immediate, acknowledged } => {
                parts.iter().for_each(land);
                if let Some(id) = acknowledged {
                    self.post(from, Cargo::Acknowledged(id), None, false);
                }
                uncounted(|| drop(parts));
                if let Some(immediate) = immediate {
                    sink.immediate(immediate);
                }
            }
            Cargo::Read(parts, id) => {
                let read = |(from, to, len)| self.part(to, std::ptr::with_exposed_provenance(from), len);
                let parts = uncounted(|| parts.into_iter().map(read).collect());
                self.post(from, Cargo::Answer(parts, id), None, false);
            }
            Cargo::Answer(parts, id) => {
                parts.iter().for_each(land);
                uncounted(|| drop(parts));
                self.ended(id, sink);
            }
            Cargo::Message(bytes) => {
                sink.message(&bytes);
                uncounted(|| drop(bytes));
            }
            Cargo::Acknowledged(id) => self.ended(id, sink),
            Cargo::Failed(id, fault) => {
                self.outstanding -= 1;
                sink.failed(id, fault);
            }
        }
    }

    fn ended(&mut self, id: OpId, sink: &mut dyn RailSink) {
        self.outstanding -= 1;
        sink.done(id);
    }
}

/// Stores arrived bytes at their destination.
fn land(part: &Part) {
    if let Some(bytes) = &part.bytes {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(part.to);
        // SAFETY: the address of a write was checked against registered memory when it was posted; the poster of a read
        // keeps its destination valid until the completion.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
    }
}

// SAFETY: a work request's bytes are copied while it is posted or when the target answers, and only inside of
// registered memory.
unsafe impl Rail for TimedRail {
    fn caps(&self) -> &RailCaps {
        &self.caps
    }

    fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    fn connect(&mut self, dest: Dest, address: &[u8], _return_dest: Dest) -> Result<()> {
        let malformed = || Error::Malformed { what: "timed address", pe: dest, why: "no rail has it".into() };
        let rail = self.fabric.state().rail_at(address).ok_or_else(malformed)?;
        // On a real fabric this would be the provider's memory.
        uncounted(|| self.peers.insert(dest, rail));
        Ok(())
    }

    unsafe fn register(&mut self, ptr: *mut u8, len: usize, id: u32) -> Result<Registration> {
        let key = self.suggested.take().unwrap_or_else(|| id.into());
        self.keys.insert(id, key);
        uncounted(|| self.fabric.state().register(self.id, key, ptr.expose_provenance(), len));
        Ok(Registration { local: LocalKey(u64::from(id) + 1), remote_key: key, remote_base: 0 })
    }

    fn suggest_key(&mut self, key: u64) {
        self.suggested = Some(key);
    }

    fn deregister(&mut self, id: u32) {
        if let Some(key) = self.keys.remove(&id) {
            self.fabric.state().deregister(self.id, key);
        }
    }

    unsafe fn write(&mut self, dest: Dest, piece: Piece, options: WriteOptions) -> Result<(), PostError> {
        self.must_have_room()?;
        let (Piece { local, remote }, to) = (piece, self.peer(dest)?);
        let address = self.remote(to, remote, local.len)?;
        let parts = uncounted(|| vec![self.part(address, local.ptr, local.len)]);
        let left = options.id.filter(|_| options.notify == Notify::Transmitted);
        let acknowledged = options.id.filter(|_| left.is_none());
        let cargo = Cargo::Write { parts, immediate: options.immediate, acknowledged };
        self.post(to, cargo, left, options.id.is_some());
        Ok(())
    }

    unsafe fn read(&mut self, dest: Dest, piece: Piece, id: OpId, _more: bool) -> Result<(), PostError> {
        self.must_have_room()?;
        let (Piece { local, remote }, to) = (piece, self.peer(dest)?);
        let from = self.remote(to, remote, local.len)?;
        let parts = uncounted(|| vec![(from, local.ptr.expose_provenance(), local.len)]);
        self.post(to, Cargo::Read(parts, id), None, true);
        Ok(())
    }

    unsafe fn move_pieces(&mut self, dest: Dest, pieces: &[Piece], way: Pieces, id: OpId) -> Result<(), PostError> {
        self.must_have_room()?;
        let to = self.peer(dest)?;
        let mut remotes = Vec::with_capacity(pieces.len());
        for piece in pieces {
            remotes.push((self.remote(to, piece.remote, piece.local.len)?, piece.local));
        }
        let Pieces::Written(notify, immediate) = way else {
            let part = |(from, local): (usize, LocalBuf)| (from, local.ptr.expose_provenance(), local.len);
            let parts = uncounted(|| remotes.into_iter().map(part).collect());
            self.post(to, Cargo::Read(parts, id), None, true);
            return Ok(());
        };
        let part = |(there, local): (usize, LocalBuf)| self.part(there, local.ptr, local.len);
        let parts = uncounted(|| remotes.into_iter().map(part).collect());
        let left = (notify == Notify::Transmitted).then_some(id);
        let acknowledged = if left.is_none() { Some(id) } else { None };
        self.post(to, Cargo::Write { parts, immediate, acknowledged }, left, true);
        Ok(())
    }

    unsafe fn send(&mut self, dest: Dest, local: LocalBuf, id: Option<OpId>) -> Result<(), PostError> {
        self.must_have_room()?;
        let to = self.peer(dest)?;
        // SAFETY: the caller's promise.
        let bytes = uncounted(|| unsafe { std::slice::from_raw_parts(local.ptr, local.len) }.into());
        self.post(to, Cargo::Message(bytes), id, id.is_some());
        Ok(())
    }

    fn supports_amo(&self, _ty: AmoType, _op: AmoOp, _fetching: bool) -> bool {
        false
    }

    unsafe fn amo(&mut self, _dest: Dest, _remote: RemoteBuf, _amo: NativeAmo, _id: OpId) -> Result<(), PostError> {
        Err(PostError::refused(38, || "a timed fabric performs no atomics".into()))
    }

    fn poll(&mut self, sink: &mut dyn RailSink) -> usize {
        let taken = uncounted(|| self.fabric.state().take(self.id));
        match taken {
            Ok(mut arrivals) => {
                let count = arrivals.len();
                while let Some(arrival) = arrivals.pop_front() {
                    match arrival {
                        Arrival::Cargo(from, cargo) => self.take_in(from, cargo, sink),
                        Arrival::Left(id) => self.ended(id, sink),
                    }
                }
                uncounted(|| drop(arrivals));
                count
            }
            Err(rests) => {
                if rests {
                    simulation::idle();
                }
                0
            }
        }
    }
}
