//! Lists of descriptors, as the operations that move them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use symrail_proxy::session::{Part, Registered, Session};

use crate::devices::Mapped;
use crate::error::{Error, Result};
use crate::mappings::Reach;
use crate::peer::Peer;
use crate::sharing::Sharing;

/// Operations are started in batches of at most this many bytes, unless one alone has more.
const BATCH_BYTES: u64 = 64 << 20;

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the other agent to this one.
    Read,
    /// From this agent to the other one.
    Write,
}

/// One operation: descriptors that are contiguous at both ends are one.
pub(crate) struct Item {
    pub local: u64,
    /// Its memory among the list's.
    pub remote: usize,
    pub at: u64,
    pub len: u64,
}

/// One end of an operation in memory of this agent: the memory, the device that has it, and the address.
pub(crate) type Local<'a> = (&'a Arc<Registered>, Option<i32>, u64);

/// A peer's memory that a list uses.
pub(crate) struct Remote {
    memory: Arc<Registered>,
    /// The device here whose memory is at the other ends, if the peer's is a device's, too: they may copy by
    /// themselves.
    pub device: Option<i32>,
}

/// Where a device has mapped a peer's memory, by the memory's place in a list.
pub(crate) type Places = Vec<Option<Arc<dyn Mapped>>>;

/// The memory at both ends.
type Ends = (*const Registered, *const Registered);

/// What a transfer moves.
pub(crate) struct List {
    pub direction: Direction,
    pub peer: Arc<Peer>,
    pub items: Vec<Item>,
    /// Operations that devices can do where they have mapped the peer's memory, by device; otherwise they follow the
    /// others.
    pub direct: Vec<Item>,
    /// This agent's memory that the items use.
    locals: HashMap<*const Registered, Weak<Registered>>,
    pub remotes: Vec<Remote>,
    /// Their places, and the last one that was found with the local end: most lists stay in one memory.
    places: HashMap<(*const Registered, Option<i32>), usize>,
    last: Option<(Ends, usize)>,
}

// SAFETY: the pointers are keys, and are not dereferenced.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

impl List {
    pub fn new(direction: Direction, peer: Arc<Peer>) -> List {
        let (items, direct) = (Vec::new(), Vec::new());
        let (locals, remotes, places) = (HashMap::new(), Vec::new(), HashMap::new());
        List { direction, peer, items, direct, locals, remotes, places, last: None }
    }

    /// Adds bytes in memory of this agent, and as many at `address` in the process of the peer, which are in `remote`.
    pub fn add(&mut self, (memory, device, local): Local<'_>, (remote, address): (&Arc<Registered>, u64), len: u64) {
        if len == 0 {
            return;
        }
        let device = device.filter(|_| remote.is_staged());
        let ends = (Arc::as_ptr(memory), Arc::as_ptr(remote));
        let known = self.last.filter(|(last, _)| *last == ends);
        let index = match known {
            Some((_, index)) => index,
            None => {
                self.uses(memory);
                let remotes = &mut self.remotes;
                *self.places.entry((ends.1, device)).or_insert_with(|| {
                    remotes.push(Remote { memory: Arc::clone(remote), device });
                    remotes.len() - 1
                })
            }
        };
        self.last = Some((ends, index));
        let at = address - remote.base();
        let items = if device.is_some() { &mut self.direct } else { &mut self.items };
        // One copy is not over two registrations of this agent: the driver refuses copies over two allocations.
        if known.is_some()
            && let Some(last) = items.last_mut()
            && (last.remote, last.at + last.len, last.local + last.len) == (index, at, local)
        {
            last.len += len;
            return;
        }
        items.push(Item { local, remote: index, at, len });
    }

    /// Notes that the list uses memory of this agent.
    pub fn uses(&mut self, memory: &Arc<Registered>) {
        self.locals.entry(Arc::as_ptr(memory)).or_insert_with(|| Arc::downgrade(memory));
    }

    /// The memory of this agent, kept registered.
    pub fn pinned(&self) -> Result<Vec<Arc<Registered>>> {
        let gone = || Error::Argument { what: "transfer", why: "memory that it uses was deregistered".into() };
        self.locals.values().map(|memory| memory.upgrade().ok_or_else(gone)).collect()
    }

    /// The next batch for the rails.
    pub fn parts(&self, from: usize) -> impl Iterator<Item = Part<'_>> {
        let mut bytes = 0u64;
        let fits = move |item: &&Item| {
            let first = bytes == 0;
            bytes = bytes.saturating_add(item.len);
            first || bytes <= BATCH_BYTES
        };
        self.items.iter().chain(&self.direct).skip(from).take_while(fits).map(|item| {
            let place = self.remotes[item.remote].memory.place(item.at);
            Part { place, local: std::ptr::with_exposed_provenance_mut(item.local as usize), len: item.len }
        })
    }

    /// Where the devices here have mapped the peer's memory, by its place in the list. `None` until that is known; no
    /// mappings where one of them does not reach it.
    pub fn mappings(&self, session: &Session, sharing: &Sharing) -> Option<Places> {
        let mut all = Vec::with_capacity(self.remotes.len());
        for Remote { memory, device } in &self.remotes {
            let Some(device) = *device else {
                all.push(None);
                continue;
            };
            match self.peer.reach(session, sharing, device, memory) {
                Reach::Unknown => return None,
                Reach::No => return Some(Vec::new()),
                Reach::Mapped(mapped) => all.push(Some(mapped)),
            }
        }
        Some(all)
    }
}
