//! Peers' device heaps in this GPU's address space. Each segment is mapped once; the cache key is (peer, segment,
//! generation).

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use symrail_cuda::sys;

use super::share::{Exchange, NAME_LEN};
use super::vmm::{DeviceHeap, DeviceSegment, HandleKind, Range};
use crate::host::HostIdentity;
use symrail_cuda::error::{CudaError, Result, cuda};
use symrail_cuda::{DevicePtr, Gpu};

/// Bytes of connection info.
pub const CARD_LEN: usize = 192;
const MAGIC: [u8; 4] = *b"SyDv";

/// Why a peer's device heap is not mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotMapped {
    /// It was not opened.
    NotOpened,
    /// `SYMRAIL_DISABLE_P2P` is set.
    Disabled,
    /// It is on another host, and its memory has no fabric handle.
    OtherHost,
    /// Its heap has another size.
    Capacity(u64),
    /// The driver refused.
    Refused(String),
}

/// A PE's description of one segment of its device heap.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConnectionInfo {
    kind: HandleKind,
    private: bool,
    segment: u32,
    generation: u32,
    offset: u64,
    bytes: u64,
    capacity: u64,
    host: u64,
    name: [u8; NAME_LEN],
    fabric: [u8; 64],
}

impl ConnectionInfo {
    fn encode(&self) -> [u8; CARD_LEN] {
        let mut out = [0; CARD_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&[self.kind as u8, u8::from(self.private), 0, 0]);
        put(&self.segment.to_le_bytes());
        put(&self.generation.to_le_bytes());
        for word in [self.offset, self.bytes, self.capacity, self.host] {
            put(&word.to_le_bytes());
        }
        put(&self.name);
        put(&self.fabric);
        out
    }

    fn decode(bytes: &[u8], pe: u32) -> Result<Self> {
        let bad = || CudaError::Exchange {
            pe,
            what: "its connection info",
            reason: "it is not a device heap's connection info".into(),
        };
        if bytes.len() != CARD_LEN || bytes[..4] != MAGIC {
            return Err(bad());
        }
        let kind = match bytes[4] {
            1 => HandleKind::Fabric,
            2 => HandleKind::FileDescriptor,
            _ => return Err(bad()),
        };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (mut name, mut fabric) = ([0; NAME_LEN], [0; 64]);
        name.copy_from_slice(&bytes[48..48 + NAME_LEN]);
        fabric.copy_from_slice(&bytes[48 + NAME_LEN..48 + NAME_LEN + 64]);
        let ids = word(8);
        let connection_info = ConnectionInfo {
            kind,
            private: bytes[5] != 0,
            segment: ids as u32,
            generation: (ids >> 32) as u32,
            offset: word(16),
            bytes: word(24),
            capacity: word(32),
            host: word(40),
            name,
            fabric,
        };
        let fits = connection_info
            .offset
            .checked_add(connection_info.bytes)
            .is_some_and(|end| end <= connection_info.capacity)
            && connection_info.bytes > 0;
        if fits { Ok(connection_info) } else { Err(bad()) }
    }
}

/// A segment that is offered to peers. The caller sends its connection info to all PEs, and passes theirs to
/// [`DevicePeers::open`].
#[derive(Debug)]
pub struct Offer {
    connection_info: ConnectionInfo,
    exchange: Exchange,
}

impl Offer {
    /// The connection info for peers.
    #[must_use]
    pub fn connection_info(&self) -> [u8; CARD_LEN] {
        self.connection_info.encode()
    }
}

#[derive(Debug)]
struct Peer {
    range: Option<Range>,
    segments: Vec<(u32, u32)>,
    why_not: NotMapped,
}

impl Peer {
    fn forget(&mut self) {
        self.range = None;
        self.segments.clear();
    }
}

/// The mapped device heaps of peers.
#[derive(Debug)]
pub struct DevicePeers {
    me: u32,
    gpu: Arc<Gpu>,
    own: DevicePtr,
    capacity: u64,
    host: u64,
    private: bool,
    /// Whether peers' heaps may have other sizes.
    any_size: bool,
    peers: Vec<Peer>,
}

impl DevicePeers {
    /// A map without peers. `host` determines which PEs can exchange descriptors; `private` keeps all peers on the
    /// proxy.
    #[must_use]
    pub fn new(me: u32, n_pes: u32, heap: &DeviceHeap, host: &HostIdentity, private: bool) -> Self {
        let none = || Peer { range: None, segments: Vec::new(), why_not: NotMapped::NotOpened };
        Self {
            me,
            gpu: Arc::clone(heap.gpu()),
            own: heap.base(),
            capacity: heap.capacity(),
            host: fingerprint(host),
            private,
            any_size: false,
            peers: (0..n_pes).map(|_| none()).collect(),
        }
    }

    /// Also maps heaps of other sizes: for memory that is not addressed by symmetric offsets.
    #[must_use]
    pub fn of_any_size(self) -> Self {
        Self { any_size: true, ..self }
    }

    /// Offers a segment of this PE's heap.
    ///
    /// # Errors
    /// The system's or the driver's error.
    pub fn offer(&self, segment: &DeviceSegment) -> Result<Offer> {
        let exchange = Exchange::listen(self.me)?;
        let fabric = match segment.kind {
            HandleKind::Fabric => segment.export_fabric(&self.gpu)?,
            HandleKind::FileDescriptor => [0; 64],
        };
        let connection_info = ConnectionInfo {
            kind: segment.kind,
            private: self.private,
            segment: segment.id,
            generation: segment.generation,
            offset: segment.offset,
            bytes: segment.bytes,
            capacity: self.capacity,
            host: self.host,
            name: exchange.name(),
            fabric,
        };
        Ok(Offer { connection_info, exchange })
    }

    /// Maps the segments that all PEs have offered. `connection_infos` has one entry per PE, in their order. A segment
    /// that is mapped already costs a look-up and no message. A segment of a later generation replaces everything that
    /// was mapped of that peer. The call is collective, also in the set of mapped segments.
    ///
    /// # Errors
    /// A malformed connection info, or a peer of this host that does not arrive. A peer that cannot be mapped is no
    /// error: see [`why`](Self::why).
    pub fn open(
        &mut self,
        offer: Offer,
        segment: &DeviceSegment,
        connection_infos: &[u8],
        time_limit: Duration,
        is_ended: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let connection_infos = connection_infos.chunks(CARD_LEN).zip(0u32..);
        let connection_infos =
            connection_infos.map(|(bytes, pe)| ConnectionInfo::decode(bytes, pe)).collect::<Result<Vec<_>>>()?;
        let swaps = |connection_info: &ConnectionInfo| {
            connection_info.kind == HandleKind::FileDescriptor
                && connection_info.host == self.host
                && !connection_info.private
        };
        let mut with = Vec::new();
        if swaps(&offer.connection_info) {
            let new = |pe: u32, connection_info: &ConnectionInfo| {
                pe != self.me && swaps(connection_info) && !self.has(pe, connection_info)
            };
            let others = connection_infos.iter().zip(0u32..).filter(|(connection_info, pe)| new(*pe, connection_info));
            with.extend(others.map(|(connection_info, pe)| (pe, connection_info.name)));
        }
        let mut fds = Vec::new();
        if !with.is_empty() {
            let fd = segment.export_fd(&self.gpu)?;
            fds = offer.exchange.swap(self.me, fd.as_raw_fd(), &with, time_limit, is_ended)?;
        }
        for (connection_info, pe) in connection_infos.iter().zip(0u32..) {
            let Some(peer) = self.peers.get_mut(pe as usize) else { break };
            if pe == self.me || peer.segments.contains(&(connection_info.segment, connection_info.generation)) {
                continue;
            }
            if peer.segments.iter().any(|(segment, _)| *segment == connection_info.segment) {
                peer.forget();
            }
            let fd = with.iter().position(|(p, _)| *p == pe).and_then(|at| fds.get(at));
            peer.why_not = if self.private || connection_info.private {
                NotMapped::Disabled
            } else if !self.any_size && connection_info.capacity != self.capacity {
                NotMapped::Capacity(connection_info.capacity)
            } else {
                match (connection_info.kind, fd) {
                    (HandleKind::FileDescriptor, None) => NotMapped::OtherHost,
                    (_, fd) => match map(&self.gpu, peer, connection_info, fd.map(AsRawFd::as_raw_fd)) {
                        Ok(()) => continue,
                        Err(error) => NotMapped::Refused(error.to_string()),
                    },
                }
            };
            tracing::info!(pe, why = ?peer.why_not, "device heap not mapped");
            peer.forget();
        }
        Ok(())
    }

    fn has(&self, pe: u32, connection_info: &ConnectionInfo) -> bool {
        let peer = self.peers.get(pe as usize);
        peer.is_some_and(|peer| peer.segments.contains(&(connection_info.segment, connection_info.generation)))
    }

    /// Unmaps a peer's heap from this GPU's address space. All kernels that use it have ended.
    pub fn close(&mut self, pe: u32) {
        if let Some(peer) = self.peers.get_mut(pe as usize) {
            peer.forget();
            peer.why_not = NotMapped::NotOpened;
        }
    }

    /// The address of each PE's heap in this GPU's address space; 0 where it is not mapped.
    #[must_use]
    pub fn bases(&self) -> Vec<DevicePtr> {
        let base = |(peer, pe): (&Peer, u32)| match &peer.range {
            _ if pe == self.me => self.own,
            Some(range) => DevicePtr::new(range.base),
            None => DevicePtr::NULL,
        };
        self.peers.iter().zip(0u32..).map(base).collect()
    }

    /// Why a peer's heap is not mapped; `None` when it is, or is this PE's own.
    #[must_use]
    pub fn why(&self, pe: u32) -> Option<&NotMapped> {
        let peer = self.peers.get(pe as usize)?;
        (pe != self.me && peer.range.is_none()).then_some(&peer.why_not)
    }
}

fn map(gpu: &Arc<Gpu>, peer: &mut Peer, connection_info: &ConnectionInfo, fd: Option<RawFd>) -> Result<()> {
    gpu.bind()?;
    let mut fabric = connection_info.fabric;
    let os_handle = match fd {
        // The driver expects the descriptor's number in place of a pointer.
        Some(fd) => std::ptr::without_provenance_mut(fd as usize),
        None => fabric.as_mut_ptr().cast(),
    };
    let mut memory = 0;
    // SAFETY: a descriptor that is open during the call, or 64 bytes; the driver checks both.
    unsafe {
        cuda!(gpu.ordinal(), cuMemImportFromShareableHandle(&raw mut memory, os_handle, connection_info.kind.raw()))
    }?;
    let range = match &mut peer.range {
        Some(range) => Ok(range),
        none => Range::reserve(gpu, connection_info.capacity, 2 << 20).map(|range| none.insert(range)),
    };
    let mapped = range.and_then(|range| range.map(connection_info.offset, connection_info.bytes, memory));
    // SAFETY: imported above; the mapping holds its own reference.
    let _ = unsafe { sys::cuMemRelease(memory) };
    mapped?;
    peer.segments.push((connection_info.segment, connection_info.generation));
    Ok(())
}

/// A value that is equal for PEs on one host, as far as their host names and the kernel's boot id show.
fn fingerprint(host: &HostIdentity) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (&host.name, host.boot_id).hash(&mut hasher);
    hasher.finish()
}
