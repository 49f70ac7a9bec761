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
use super::queue_pair::{CREATE, Path, QueuePair, Shared};
use super::receive::{MESSAGE, ReceiveQueue};
use super::sizes::Sizes;
use crate::endpoint::Role;
use crate::env::Settings;
use crate::error::{Error, Fault, Result};
use crate::rail::{Dest, OpId, Order, RailCaps, Registration};
use crate::sparse::Slots;

/// The inline size to request: small puts and every request of the target agent without a payload fit, and a work
/// request with it still fits in a few cache lines.
const INLINE: u32 = 220;

/// The destinations of a rail.
#[derive(Debug, Clone, Copy)]
pub enum Destinations {
    /// Those below this number. Each has a queue pair from the start, which the rail's address names.
    Below(u32),
    /// Any, about so many at a time. Each gets a queue pair by [`Rail::address_to`] or when it is connected, and returns it
    /// when it is forgotten.
    ///
    /// [`Rail::address_to`]: crate::rail::Rail::address_to
    Any(u32),
}

impl From<u32> for Destinations {
    fn from(number: u32) -> Destinations {
        Destinations::Below(number)
    }
}

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

impl Peer {
    fn new(queue: QueuePair) -> Peer {
        Peer { sent: SendQueue::new(queue.depth), queue, state: PeerState::Waiting, theirs: None, psn: 0 }
    }
}

/// The state of a destination.
pub(super) enum PeerState {
    /// It waits for [`connect`](crate::rail::Rail::connect).
    Waiting,
    /// It works.
    Ready,
    /// It failed, for this reason.
    Failed(Fault),
    /// It is being forgotten. `marked`: the completion behind all others of its queue pair has been requested. `calls`:
    /// the calls since it began.
    Leaving { marked: bool, calls: u32 },
}

/// A rail over one port of one NIC. See the module for its parts.
pub struct VerbsRail {
    // Fields are dropped in this order: users of queues before the queues.
    pub(super) peers: Vec<Peer>,
    /// The places of destinations in `peers`.
    pub(super) slots: Slots,
    /// The length of each send queue.
    depth: u32,
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
    /// Opens a rail on a NIC.
    ///
    /// # Errors
    /// [`Error::Library`]; [`Error::NoRail`] when device, port, GID or partition key do not exist, with those that do;
    /// [`Error::Unsupported`] when the device lacks what the settings ask for; [`Error::Fabric`] with the call that
    /// failed.
    pub fn open(nic: &Nic, role: Role, destinations: impl Into<Destinations>, settings: &Settings) -> Result<Self> {
        let mode = mode::decide(std::slice::from_ref(nic), settings)?;
        Self::open_in(nic, role, destinations.into(), mode, settings)
    }

    /// As [`VerbsRail::open`], in a mode that was chosen for all rails of this PE, with its reason.
    ///
    /// # Errors
    /// As for [`VerbsRail::open`].
    pub fn open_in(
        nic: &Nic,
        role: Role,
        destinations: Destinations,
        (mode, mode_reason): (Mode, String),
        settings: &Settings,
    ) -> Result<Self> {
        let port = Port::open(nic, settings)?;
        let path = port.path(nic, mode, settings);
        let mut address = port.address(mode, &path);
        let how = format!("IB mode {mode}: {mode_reason}");
        tracing::info!("rail {} ({role:?}): {how}; port {}, GID {}", nic.name, nic.port, port.gid);
        let (Destinations::Below(number) | Destinations::Any(number)) = destinations;
        let Sizes { depth, credits, receives } = Sizes::new(&port.device, number, settings.ib_queue_depth, nic)?;
        let domain = Domain::new(port.context, &nic.name)?;
        let completions = CompletionQueue::new(&domain, credits + receives, role == Role::Proxy)?;
        let received = ReceiveQueue::new(&domain, receives)?;
        let shared = Shared { cq: completions.raw(), srq: received.raw() };
        let mut slots = Slots::default();
        let peers = match destinations {
            Destinations::Below(number) => {
                for dest in 0..number {
                    slots.enter(dest);
                }
                queue_pairs(&domain, shared, depth, number, &path)?
            }
            Destinations::Any(_) => {
                // It tells the inline size, and is for the first destination.
                slots.enter(0);
                slots.leave(0);
                queue_pairs(&domain, shared, depth, 1, &path)?
            }
        };
        if let Destinations::Below(_) = destinations {
            address.qpns = peers.iter().map(|peer| peer.queue.number()).collect();
        }
        let inline = peers.iter().map(|peer| peer.queue.inline).min().unwrap_or(0) as usize;
        let relaxed = settings.ib_relaxed_ordering && domain.verbs().reg_mr_iova2.is_some();
        let progress = format!("by the NIC; {how}; GID {}", port.gid);
        let caps = caps(nic, &port.attr, (credits, inline), relaxed, progress);
        Ok(VerbsRail {
            peers,
            slots,
            depth,
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
        let Some(qpn) = theirs.queue_pair_for(return_dest) else {
            return Err(Error::Malformed {
                what: "ibverbs rail address",
                pe: other_pe,
                why: format!("it has queue pairs for {} peers, none for number {return_dest}", theirs.qpns.len()),
            });
        };
        let index = self.enter(dest)?;
        let peer = &mut self.peers[index];
        if !matches!(peer.state, PeerState::Waiting) {
            return Err(Error::Unsupported {
                what: format!("connecting destination {dest} a second time"),
                by: format!("rail {}", self.caps.name),
                remedy: "renew the connection when it has failed".into(),
            });
        }
        let (ours, theirs) = (self.address.of(dest), theirs.of(return_dest));
        peer.queue.connect(&self.path, &ours, &theirs, qpn)?;
        (peer.psn, peer.state, peer.theirs) = (ours.psn, PeerState::Ready, Some((theirs, qpn)));
        Ok(())
    }

    /// [`Rail::address_to`](crate::rail::Rail::address_to).
    pub(super) fn address_for(&mut self, dest: Dest) -> Result<Vec<u8>> {
        if self.is_for_all() {
            return Ok(self.address.encode());
        }
        let index = self.enter(dest)?;
        let qpns = vec![self.peers[index].queue.number()];
        Ok(Address { qpns, ..self.address.clone() }.encode())
    }

    /// The place of a destination's queue pair.
    #[inline(always)]
    pub(super) fn index(&self, dest: Dest) -> Option<usize> {
        if self.is_for_all() {
            return Some(dest as usize).filter(|&index| index < self.peers.len());
        }
        self.slots.find(dest).checked_sub(1)
    }

    /// Whether each destination has had a queue pair from the start, whose place is its number.
    #[inline(always)]
    fn is_for_all(&self) -> bool {
        !self.address.qpns.is_empty()
    }

    /// The place of a destination's queue pair, which gets one if it has none.
    fn enter(&mut self, dest: Dest) -> Result<usize> {
        if self.is_for_all() {
            let none = Error::NoSuchPe { pe: dest.into(), last: (self.peers.len() - 1) as u32 };
            return self.index(dest).ok_or(none);
        }
        let index = self.slots.enter(dest) - 1;
        if index == self.peers.len() {
            match self.another_peer() {
                Ok(peer) => self.peers.push(peer),
                Err(error) => {
                    self.slots.leave(dest);
                    return Err(error);
                }
            }
        }
        Ok(index)
    }

    pub(super) fn another_peer(&self) -> Result<Peer> {
        let shared = Shared { cq: self.completions.raw(), srq: self.received.raw() };
        let wanted = self.caps.inject as u32;
        let queue = QueuePair::new(&self.domain, shared, self.depth, wanted, &self.path);
        match queue {
            Ok(queue) if queue.inline < wanted => {
                Err(self.no_more(&format!("another queue pair with {wanted} bytes of inline data")))
            }
            Ok(queue) => Ok(Peer::new(queue)),
            Err(Error::Fabric { call: CREATE, fault, .. }) => {
                Err(self.no_more(&format!("another queue pair ({fault})")))
            }
            Err(error) => Err(error),
        }
    }

    fn no_more(&self, what: &str) -> Error {
        let limit = self.domain.context.query_device().map_or(0, |device| device.max_qp);
        let (rail, here) = (&self.caps.name, self.peers.len());
        Error::Unsupported {
            what: what.into(),
            by: format!("rail {rail}"),
            remedy: format!(
                "connect to fewer peers at a time: it has {here} queue pairs of the {limit} that all processes share"
            ),
        }
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
fn queue_pairs(domain: &Arc<Domain>, shared: Shared, depth: u32, destinations: u32, path: &Path) -> Result<Vec<Peer>> {
    let mut peers: Vec<Peer> = Vec::with_capacity(destinations as usize);
    for _ in 0..destinations {
        let inline = peers.last().map_or(INLINE, |peer| peer.queue.inline.min(INLINE));
        let queue = QueuePair::new(domain, shared, depth, inline, path)?;
        peers.push(Peer::new(queue));
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
