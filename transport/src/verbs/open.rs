//! The rail: opening, connecting, registering.

use std::collections::HashMap;
use std::sync::Arc;

use verbs_sys as sys;

use super::address::Address;
use super::completion::{BATCH, CompletionQueue};
use super::credits::{Credits, SendQueue};
use super::discover::Nic;
use super::domain::Domain;
use super::memory::{Access, Memory, OwnMemory};
use super::mode::{self, Mode};
use super::port::Port;
use super::post::Chain;
use super::queue_pair::{Path, QueuePair, Shared};
use super::receive::{MESSAGE, ReceiveQueue};
use super::sizes::Sizes;
use crate::endpoint::Role;
use crate::env::Settings;
use crate::error::{Error, Fault, Result};
use crate::rail::{Dest, OpId, Order, RailCaps, Registration};

/// The inline size to request: small puts and every request of the target agent without a payload fit, and a work
/// request with it still fits in a few cache lines.
const INLINE: u32 = 220;

/// One destination.
pub(super) struct Peer {
    pub queue: QueuePair,
    pub sent: SendQueue,
    pub state: PeerState,
    /// The address of the other end, and its queue pair for us, once known.
    pub theirs: Option<(Address, u32)>,
    /// The sequence number of our first packet.
    pub psn: u32,
}

/// The state of a destination.
pub(super) enum PeerState {
    /// It waits for [`connect`](crate::rail::Rail::connect).
    Waiting,
    /// It works.
    Ready,
    /// It failed, for this reason.
    Failed(Fault),
}

/// A rail over one port of one NIC. See the module for its parts.
pub struct VerbsRail {
    // Fields are dropped in this order: users of queues before the queues.
    pub(super) peers: Vec<Peer>,
    pub(super) received: ReceiveQueue,
    pub(super) completions: CompletionQueue,
    pub(super) memory: HashMap<u32, Memory>,
    /// The destination of unwanted old values.
    pub(super) unwanted: OwnMemory,
    pub(super) chain: Chain,
    pub(super) credits: Credits,
    /// Ended work requests that are not reported yet: a chain accepted them and could not be posted.
    pub(super) unposted: Vec<(Option<OpId>, Fault)>,
    /// Why the rail does not work, and whether that has yet to be reported.
    pub(super) down: Option<(Fault, bool)>,
    /// Whether the port has gone down and that has yet to be reported.
    pub(super) port_event: bool,
    pub(super) entries: Box<[sys::ibv_wc; BATCH]>,
    /// The number of calls of `poll`, since asynchronous events are polled only now and then.
    pub(super) polls: u32,
    pub(super) path: Path,
    pub(super) address: Address,
    pub(super) caps: RailCaps,
    mode_reason: String,
    pub(super) access: Access,
    pub(super) domain: Arc<Domain>,
}

impl VerbsRail {
    /// Opens a rail on a NIC, with a queue pair for each of `destinations`.
    ///
    /// # Errors
    /// [`Error::Library`]; [`Error::NoRail`] when device, port, GID or partition key do not exist, with those that do;
    /// [`Error::Unsupported`] when the device lacks what the settings ask for; [`Error::Fabric`] with the call that
    /// failed.
    pub fn open(nic: &Nic, role: Role, destinations: u32, settings: &Settings) -> Result<Self> {
        let mode = mode::decide(std::slice::from_ref(nic), settings)?;
        Self::open_in(nic, role, destinations, mode, settings)
    }

    /// As [`VerbsRail::open`], in a mode that was chosen for all rails of this PE, with its reason.
    ///
    /// # Errors
    /// As for [`VerbsRail::open`].
    pub fn open_in(
        nic: &Nic,
        role: Role,
        destinations: u32,
        (mode, mode_reason): (Mode, String),
        settings: &Settings,
    ) -> Result<Self> {
        let port = Port::open(nic, settings)?;
        let path = port.path(nic, mode, settings);
        let mut address = port.address(mode, &path);
        let how = format!("IB mode {mode}: {mode_reason}");
        tracing::info!("rail {} ({role:?}): {how}; port {}, GID {}", nic.name, nic.port, port.gid);
        let Sizes { depth, credits, receives } = Sizes::new(&port.device, destinations, settings.ib_queue_depth, nic)?;
        let domain = Domain::new(port.context, &nic.name)?;
        let completions = CompletionQueue::new(&domain, credits + receives, role == Role::Proxy)?;
        let received = ReceiveQueue::new(&domain, receives)?;
        let shared = Shared { cq: completions.raw(), srq: received.raw() };
        let peers = queue_pairs(&domain, shared, depth, destinations, &path, address.psn)?;
        address.qpns = peers.iter().map(|peer| peer.queue.number()).collect();
        let inline = peers.iter().map(|peer| peer.queue.inline).min().unwrap_or(0) as usize;
        let relaxed = settings.ib_relaxed_ordering && domain.verbs().reg_mr_iova2.is_some();
        let progress = format!("by the NIC; {how}; GID {}", port.gid);
        let caps = caps(nic, &port.attr, (credits, inline), relaxed, progress);
        Ok(VerbsRail {
            peers,
            received,
            completions,
            memory: HashMap::new(),
            unwanted: OwnMemory::new(&domain, 8)?,
            chain: Chain::new(inline),
            credits: Credits::new(credits),
            unposted: Vec::new(),
            down: None,
            port_event: false,
            entries: Box::new([sys::ibv_wc::default(); BATCH]),
            polls: 0,
            path,
            address,
            caps,
            mode_reason,
            access: Access { remote: true, atomics: mode == Mode::RdmaAtomics, relaxed },
            domain,
        })
    }

    /// The IB mode that was chosen, and why.
    #[must_use]
    pub fn mode(&self) -> (Mode, &str) {
        (self.address.mode, &self.mode_reason)
    }

    pub(super) fn connect_to(&mut self, dest: Dest, address: &[u8], return_dest: Dest) -> Result<()> {
        // Peers are known here by their indices. Where these are PE numbers, the errors name PEs.
        let (pe, other_pe) = (return_dest, dest);
        let theirs = Address::decode(address, other_pe)?;
        self.address.check(&theirs, pe, other_pe)?;
        let count = self.peers.len();
        let Some(peer) = self.peers.get_mut(dest as usize) else {
            let last = Dest::try_from(count).unwrap_or(Dest::MAX).saturating_sub(1);
            return Err(Error::NoSuchPe { pe: dest.into(), last });
        };
        let Some(&qpn) = theirs.qpns.get(return_dest as usize) else {
            return Err(Error::Malformed {
                what: "ibverbs rail address",
                pe: other_pe,
                why: format!("it has queue pairs for {} peers, none for number {return_dest}", theirs.qpns.len()),
            });
        };
        if !matches!(peer.state, PeerState::Waiting) {
            return Err(Error::Unsupported {
                what: format!("connecting destination {dest} a second time"),
                by: format!("rail {}", self.caps.name),
                remedy: "renew the connection when it has failed".into(),
            });
        }
        peer.queue.connect(&self.path, &self.address, &theirs, qpn)?;
        peer.state = PeerState::Ready;
        peer.theirs = Some((Address { qpns: Vec::new(), ..theirs }, qpn));
        Ok(())
    }

    /// Registers host memory. `remote`: peers may access it.
    ///
    /// # Safety
    /// As for [`Rail::register`](crate::rail::Rail::register).
    pub(super) unsafe fn register_host(
        &mut self,
        ptr: *mut u8,
        len: usize,
        remote: bool,
        id: u32,
    ) -> Result<Registration> {
        let access = Access { remote, ..self.access };
        // SAFETY: the caller keeps the memory mapped until `deregister` or the rail's end, which drop the registration.
        let memory = unsafe { Memory::register(&self.domain, ptr, len, access) }?;
        Ok(self.keep(id, memory, ptr as u64))
    }

    pub(super) fn keep(&mut self, id: u32, memory: Memory, base: u64) -> Registration {
        let registration = memory.registration(base);
        self.memory.insert(id, memory);
        registration
    }
}

/// A queue pair for each destination. Each requests the inline size that the one before was granted.
fn queue_pairs(
    domain: &Arc<Domain>,
    shared: Shared,
    depth: u32,
    destinations: u32,
    path: &Path,
    psn: u32,
) -> Result<Vec<Peer>> {
    let mut peers: Vec<Peer> = Vec::with_capacity(destinations as usize);
    for _ in 0..destinations {
        let inline = peers.last().map_or(INLINE, |peer| peer.queue.inline.min(INLINE));
        let queue = QueuePair::new(domain, shared, depth, inline, path)?;
        let (sent, state) = (SendQueue::new(queue.depth), PeerState::Waiting);
        peers.push(Peer { queue, sent, state, theirs: None, psn });
    }
    Ok(peers)
}

/// The capabilities of a rail over this port, with so many work requests and bytes of inline data.
fn caps(
    nic: &Nic,
    port: &sys::ibv_port_attr,
    (credits, inline): (u32, usize),
    relaxed: bool,
    progress: String,
) -> RailCaps {
    RailCaps {
        polls_post: true,
        half_open: false,
        paired: true,
        name: nic.name.clone(),
        provider: "verbs".into(),
        max_rma: port.max_msg_sz as usize,
        pieces: 1,
        inject: inline,
        max_send: MESSAGE.min(port.max_msg_sz as usize),
        queue_depth: credits as usize,
        window: u64::MAX,
        order: Order {
            write_after_write: !relaxed,
            send_after_write: true,
            send_after_send: true,
            amo_after_write: !relaxed,
        },
        local_registration: true,
        immediate: size_of::<u32>(),
        software: false,
        progress,
    }
}
