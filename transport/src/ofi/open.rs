//! The rail: its parts, and how it is opened.

use std::os::fd::RawFd;
use std::sync::Arc;

use libfabric_sys as ffi;
use libfabric_sys::{Info, Libfabric};

use super::address::{self, Peers};
use super::atomics::Atomics;
use super::completion::{Queue, Slab};
use super::domain::{Domain, Object};
use super::hints;
use super::memory::{self, Mode, Regions};
use super::messages::{self, Receives};
use super::provider::traits;
use super::rail::MOST_PIECES;
use crate::error::Result;
use crate::rail::RailCaps;

/// Most outstanding operations of one rail. Providers allow more, but a longer queue hides no more latency, and its
/// contexts (128 bytes each) should stay in the L2 cache.
const MAX_DEPTH: usize = 2048;

/// Completion queue entries for unsolicited arrivals: immediates of peers.
const ARRIVALS: usize = 1024;

/// A rail over libfabric. Fields that hold libfabric objects are declared in the order in which these must be closed,
/// and before the memory that those objects may access.
pub(super) struct OfiRail {
    pub(super) regions: Regions,
    pub(super) endpoint: Object<ffi::fid_ep>,
    pub(super) receives: Receives,
    /// The registration of `slab`, where local buffers need one and atomics' operands are in the slab.
    pub(super) slab_region: Option<Object<ffi::fid_mr>>,
    pub(super) slab: Slab,
    pub(super) peers: Peers,
    pub(super) queue: Queue,
    pub(super) domain: Domain,

    pub(super) atomics: Atomics,
    pub(super) mode: Mode,
    /// Whether it accesses GPU memory.
    pub(super) device: bool,
    pub(super) wait_fd: Option<RawFd>,
    /// The length of its subnet's prefix, if its addresses are those of IP.
    pub(super) prefix: Option<u8>,
    pub(super) caps: RailCaps,
}

// SAFETY: the rail owns all its objects and shares none with another rail (each has its own domain). It is not `Sync`,
// so one thread at a time uses them, as the weakest granted threading model (FI_THREAD_COMPLETION) demands.
unsafe impl Send for OfiRail {}

impl OfiRail {
    /// Opens an endpoint with `info`. `sleeps`: the thread of the endpoint needs a wait descriptor.
    pub fn open(library: &Arc<Libfabric>, info: Info, name: &str, sleeps: bool, progress: String) -> Result<Self> {
        // SAFETY: every info from libfabric has its attribute structs.
        let (tx_size, rx_size, inject, max_rma, cq_data, caps) = unsafe {
            let raw = &*info.as_ptr();
            let (tx, ep) = (&*raw.tx_attr, &*raw.ep_attr);
            let data = (*raw.domain_attr).cq_data_size;
            (tx.size, (*raw.rx_attr).size, tx.inject_size, ep.max_msg_size, data, raw.caps)
        };
        let depth = tx_size.clamp(1, MAX_DEPTH);
        let provider = info.provider();
        let known = traits(&provider);
        let caps = RailCaps {
            polls_post: false,
            name: name.to_owned(),
            provider: provider.clone(),
            max_rma,
            inject,
            pieces: pieces(&info),
            max_send: messages::largest(&provider)?.min(max_rma),
            queue_depth: depth,
            window: window(&provider),
            order: hints::granted_order(&info),
            local_registration: Mode::of(&info).local,
            immediate: if caps & ffi::FI_RMA == 0 { 0 } else { cq_data.min(size_of::<u64>()) },
            half_open: known.connected,
            paired: false,
            software: known.software,
            progress,
        };
        let mode = Mode::of(&info);
        let prefix = address::prefix(&info.fabric());
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
            regions, endpoint, receives, slab_region, slab, peers, queue, domain, atomics, mode, device, wait_fd, prefix, caps,
        };
        tracing::debug!(rail = rail.caps.name, caps = ?rail.caps, wait_fd = ?rail.wait_fd, "opened");
        Ok(rail)
    }
}

/// Bytes in sockets should still be in the CPUs' caches when they are received: on one machine, 16 concurrent writes of
/// 1 MiB need a quarter more time than consecutive ones. The window exceeds the bandwidth-delay product of a network
/// with 100 Gbit/s and 100 µs.
const TCP_WINDOW: u64 = 2 << 20;

/// See [`RailCaps::window`](crate::rail::RailCaps::window).
fn window(provider: &str) -> u64 {
    if traits(provider).over_tcp { TCP_WINDOW } else { u64::MAX }
}

/// The number of pieces that is worthwhile in a write or read: several where each work request costs a system call or
/// more, and a packet.
fn pieces(info: &Info) -> usize {
    if !traits(&info.provider()).over_tcp {
        return 1;
    }
    // SAFETY: every info from libfabric has its attribute structs.
    let (here, there) = unsafe {
        let tx = &*(*info.as_ptr()).tx_attr;
        (tx.iov_limit, tx.rma_iov_limit)
    };
    here.min(there).clamp(1, MOST_PIECES)
}
