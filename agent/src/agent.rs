//! The agent.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use symrail_core::lock;
use symrail_heap::HostIdentity;
use symrail_proxy::session::kept::Kept;
use symrail_proxy::session::memory::Memory;
use symrail_proxy::session::rendezvous::Handle;
use symrail_proxy::session::{Progress, Registered, Session};
use symrail_transport::env::{Settings, log};
use symrail_transport::ranges::Ranges;

use crate::devices::cuda::Cuda;
use crate::devices::{DeviceMemory, Devices};
use crate::error::{Error, Result};
use crate::inbox::Notification;
use crate::list::{Direction, List};
use crate::memory::{Descriptor, MemoryId};
use crate::metadata::{Metadata, must_be_a_name};
use crate::outbox;
use crate::peer::Peer;
use crate::sharing::Sharing;
use crate::transfer::Transfer;
use crate::worker::Shared;

/// The pause between two looks of a thread that waits for a notification.
const PAUSE: Duration = Duration::from_micros(100);

/// This agent's memory.
#[derive(Default)]
struct Own {
    by_id: HashMap<MemoryId, Arc<Registered>>,
    by_address: Ranges<Arc<Registered>>,
}

impl Own {
    fn insert(&mut self, memory: Arc<Registered>) {
        self.by_address.insert(memory.base(), memory.len(), memory.offset(), Arc::clone(&memory));
        self.by_id.insert(memory.offset(), memory);
    }

    fn remove(&mut self, id: MemoryId) -> Option<Arc<Registered>> {
        let memory = self.by_id.remove(&id)?;
        self.by_address.remove(memory.base(), memory.len(), id);
        Some(memory)
    }
}

/// An agent whose metadata was loaded.
struct Known {
    peer: Arc<Peer>,
    handle: Handle,
    memories: Ranges<Arc<Registered>>,
}

/// An agent. Any thread may call any method.
///
/// Dropping it cancels its transfers and waits for their operations, sends the notifications that wait for at most two
/// seconds, deregisters all memory, and disconnects it from its peers.
pub struct Agent {
    shared: Arc<Shared>,
    registered: Mutex<Own>,
    known: Mutex<HashMap<String, Known>>,
    thread: Option<JoinHandle<()>>,
    _kept: Option<Kept>,
}

impl Agent {
    /// Opens an agent with this name over the rails that the environment's `SYMRAIL_` variables choose.
    ///
    /// # Errors
    /// The name; a variable; the error of choosing or opening rails.
    pub fn from_env(name: &str) -> Result<Agent> {
        let settings = Settings::from_env()?;
        log::start(&settings.log);
        settings.warn_unknown();
        Agent::open(name, &settings)
    }

    /// Opens an agent with this name. Names need not be unique, but an agent knows one other agent by each.
    ///
    /// # Errors
    /// As for [`Agent::from_env`].
    pub fn open(name: &str, settings: &Settings) -> Result<Agent> {
        let devices = Cuda::new().map_err(|why| no_staging_buffer(&why))?;
        Agent::open_with(name, settings, Arc::new(devices))
    }

    /// As [`Agent::open`], with other devices in the place of GPUs: for tests.
    ///
    /// # Errors
    /// As for [`Agent::from_env`].
    #[doc(hidden)]
    pub fn open_with(name: &str, settings: &Settings, devices: Arc<dyn Devices>) -> Result<Agent> {
        must_be_a_name(name)?;
        let copy_engine = devices.copy_engine().map_err(|why| no_staging_buffer(&why))?;
        let session = Session::open_without_peers(settings, Progress::Thread, Some(copy_engine))?;
        let host = HostIdentity::of_this_process(settings.fake_host.as_deref())?;
        let sharing = Sharing::new(devices, (!settings.disable_p2p).then_some(host));
        let shared = Arc::new(Shared::new(name, session, sharing, Duration::from_secs(settings.timeout_s))?);
        let kept = Kept::new(&shared.session);
        let of_thread = Arc::clone(&shared);
        let system = |error: std::io::Error| symrail_transport::Error::System {
            what: "starting an agent's thread",
            reason: error.to_string(),
        };
        let thread = std::thread::Builder::new().name("symrail-agent".into()).spawn(move || of_thread.run());
        let thread = Some(thread.map_err(system)?);
        Ok(Agent { shared, registered: Mutex::default(), known: Mutex::default(), thread, _kept: kept })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The names of its rails, and why they were chosen.
    #[must_use]
    pub fn rails(&self) -> (Vec<String>, Vec<String>) {
        let names = self.shared.session.rails().iter().map(|rail| format!("{} ({})", rail.name, rail.provider));
        (names.collect(), self.shared.session.reasons().to_vec())
    }

    /// Registers `len` bytes at `base`, for transfers of this agent and of those that have its metadata.
    ///
    /// # Safety
    /// The memory stays mapped until [`Agent::deregister`] has returned `Ok`, or until the agent was dropped. Other code
    /// uses it only in ways that allow for concurrent changes.
    ///
    /// # Errors
    /// No bytes; the error of the provider.
    pub unsafe fn register(&self, base: *mut u8, len: usize) -> Result<MemoryId> {
        if base.is_null() || len == 0 || base.addr().checked_add(len).is_none() {
            let why = format!("{len} bytes at {:#x}; use at least one byte that is mapped", base.addr());
            return Err(Error::Argument { what: "memory", why });
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { self.shared.session.register(base, len) }?;
        let id = memory.offset();
        let local = Arc::new(Registered::own(&self.shared.session, memory));
        lock(&self.registered).insert(local);
        Ok(id)
    }

    /// As [`Agent::register`], for memory of a GPU by its number for CUDA in this process: of `cudaMalloc` or of any
    /// other allocator. Work of the program's streams on it has to have ended when a transfer that uses it is posted.
    ///
    /// # Safety
    /// The memory stays until [`Agent::deregister`] has returned `Ok`, or until the agent was dropped. Other code uses it
    /// only in ways that allow for concurrent changes.
    ///
    /// # Errors
    /// No bytes; no CUDA driver, no such GPU, or memory that is not its; with `SYMRAIL_GPUDIRECT=on` memory that rails do
    /// not reach; the error of the provider.
    pub unsafe fn register_device(&self, base: u64, len: u64, device: i32) -> Result<MemoryId> {
        let refused = |why: String| Error::Argument { what: "memory of a GPU", why };
        if base == 0 || len == 0 || base.checked_add(len).is_none() {
            return Err(refused(format!("{len} bytes at {base:#x}; use at least one byte")));
        }
        let (memory, sharing) = (DeviceMemory { device, base, len }, &self.shared.sharing);
        sharing.devices.add(memory).map_err(refused)?;
        let address = std::ptr::with_exposed_provenance_mut(base as usize);
        let exported = sharing.devices.export(memory);
        let exported = exported.as_ref().map_err(String::clone);
        // SAFETY: the caller's promise.
        let registered = unsafe { self.shared.session.register_staged(address, len as usize, exported) };
        let memory_of_session = registered.inspect_err(|_| sharing.devices.remove(memory, None))?;
        let id = memory_of_session.offset();
        let local = Arc::new(Registered::own(&self.shared.session, memory_of_session));
        sharing.add(id, memory);
        lock(&self.registered).insert(local);
        Ok(id)
    }

    /// Deregisters memory. Prepared transfers that use it fail when they are posted. It waits for operations of
    /// transfers that were cancelled.
    ///
    /// Agents on this host that have mapped memory of a GPU end their copies and unmap it first, so that nothing accesses
    /// it afterwards. It waits for them, too: some 10 ms.
    ///
    /// Peers' later operations are refused. Over TCP a peer's write of which a part has been received goes on until it is
    /// whole: keep memory mapped until peers' transfers into it have ended.
    ///
    /// # Errors
    /// No memory has this number; [`Error::Busy`] if a transfer that uses it is under way and does not end in time. The
    /// memory stays registered then.
    pub fn deregister(&self, id: MemoryId) -> Result<()> {
        self.deregister_within(id, self.shared.settles_within())
    }

    /// As [`Agent::deregister`], but it waits no longer than this.
    ///
    /// # Errors
    /// As for [`Agent::deregister`].
    pub fn deregister_within(&self, id: MemoryId, limit: Duration) -> Result<()> {
        let taken = lock(&self.registered).remove(id);
        let unknown = || Error::Argument { what: "memory", why: format!("no registration has the number {id}") };
        let mut local = taken.ok_or_else(unknown)?;
        let (begun, sharing) = (Instant::now(), &self.shared.sharing);
        self.shared.withdraw(id);
        loop {
            let unused = if sharing.is_in_use(id) { Err(local) } else { Arc::try_unwrap(local) };
            match unused {
                Ok(local) => {
                    drop(local);
                    sharing.remove(id);
                    return Ok(());
                }
                Err(in_use) if begun.elapsed() >= limit => {
                    lock(&self.registered).insert(in_use);
                    sharing.offer(id);
                    return Err(Error::Busy { what: "the memory" });
                }
                Err(in_use) => local = in_use,
            }
            self.shared.advance();
            std::thread::sleep(PAUSE);
        }
    }

    /// The metadata of all registrations, with which other agents connect and transfer. Whoever reads it can do so: it
    /// travels as confidentially as the data.
    #[must_use]
    pub fn metadata(&self) -> Vec<u8> {
        let registered = lock(&self.registered);
        let all = registered.by_id.values().map(|local| &***local);
        Metadata::encode(&self.shared.name, (&self.shared.handle, true), true, all)
    }

    /// The metadata of some registrations, or of none. Without the way to connect, only agents that have it already
    /// accept it.
    ///
    /// # Errors
    /// No memory has one of the numbers.
    pub fn partial_metadata(&self, memory: &[MemoryId], with_connection: bool) -> Result<Vec<u8>> {
        let registered = lock(&self.registered);
        let find = |id: &MemoryId| {
            let why = || format!("no registration has the number {id}");
            registered.by_id.get(id).ok_or_else(|| Error::Argument { what: "memory", why: why() })
        };
        let found: Vec<&Memory> = memory.iter().map(|id| find(id).map(|local| &***local)).collect::<Result<_>>()?;
        let handle = (&self.shared.handle, with_connection);
        Ok(Metadata::encode(&self.shared.name, handle, false, found.into_iter()))
    }

    /// Loads the metadata of another agent, and returns its name. Complete metadata takes the place of what was known of
    /// its memory, partial metadata is added. That of this agent itself changes nothing.
    ///
    /// # Errors
    /// [`Error::Unknown`]: it does not tell how to connect, and nothing that does was loaded from this agent.
    /// [`Error::Metadata`]: it is malformed or was changed, it is another agent's with this agent's own name, or an agent
    /// with this name is known that is another one and not lost. [`Agent::forget`] forgets that one.
    pub fn load(&self, metadata: &[u8]) -> Result<String> {
        let mut known = lock(&self.known);
        let (metadata, handle) = self.decode(metadata, &known)?;
        let name = metadata.name.clone();
        if metadata.identity == *self.shared.session.identity() {
            return Ok(name);
        }
        if name == self.shared.name {
            return Err(Error::Metadata { why: format!("another agent has this agent's name, {name}") });
        }
        if known.get(&name).is_some_and(|one| one.handle != handle || one.peer.is_open().is_err()) {
            if known.get(&name).is_some_and(|one| one.peer.is_open().is_ok()) {
                let why = format!("another agent is known by the name {name}; forget it first");
                return Err(Error::Metadata { why });
            }
            known.remove(&name);
        }
        if known.iter().any(|(other, one)| *other != name && one.handle.identity() == &metadata.identity) {
            return Err(Error::Metadata { why: format!("{name} has the identity of another known agent") });
        }
        let pe = self.shared.session.number_for(&metadata.identity)?;
        let memories = metadata.memories(pe).inspect_err(|error| self.shared.keep_out(pe, &error.to_string()))?;
        let entry = known.entry(name.clone()).or_insert_with(|| Known {
            peer: self.shared.peer(pe, &name),
            handle,
            memories: Ranges::default(),
        });
        if metadata.complete {
            entry.memories = Ranges::default();
        }
        for memory in memories {
            let remote = entry.peer.memory(&self.shared.session, memory);
            entry.memories.insert(remote.base(), remote.len(), remote.offset(), remote);
        }
        Ok(name)
    }

    /// Forgets the memory that this metadata names. Transfers that were prepared with it stay usable.
    ///
    /// # Errors
    /// [`Error::Metadata`], [`Error::Unknown`].
    pub fn unload(&self, metadata: &[u8]) -> Result<()> {
        let mut known = lock(&self.known);
        let (metadata, _) = self.decode(metadata, &known)?;
        if metadata.identity == *self.shared.session.identity() {
            return Ok(());
        }
        let unknown = || Error::Unknown { agent: metadata.name.clone() };
        let entry = known.get_mut(&metadata.name).ok_or_else(unknown)?;
        if entry.handle.identity() != &metadata.identity {
            return Err(unknown());
        }
        for memory in metadata.memories(entry.peer.pe)? {
            entry.memories.remove(memory.base(), memory.len(), memory.offset());
        }
        Ok(())
    }

    fn decode(&self, metadata: &[u8], known: &HashMap<String, Known>) -> Result<(Metadata, Handle)> {
        Metadata::decode(metadata, |metadata| {
            let own = (metadata.identity == *self.shared.session.identity()).then(|| self.shared.handle.clone());
            own.or_else(|| Some(known.get(&metadata.name)?.handle.clone()))
        })
    }

    /// Forgets an agent's metadata. Its transfers under way go on; its connection stays as long as both agents are there.
    /// Without a connection, transfers that were prepared fail with [`Error::Lost`].
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn forget(&self, agent: &str) -> Result<()> {
        let forgotten = lock(&self.known).remove(agent);
        let forgotten = forgotten.ok_or_else(|| Error::Unknown { agent: agent.to_owned() })?;
        self.shared.forget(&forgotten.peer);
        Ok(())
    }

    /// The names of the agents whose metadata was loaded.
    #[must_use]
    pub fn agents(&self) -> Vec<String> {
        lock(&self.known).keys().cloned().collect()
    }

    /// The memory of an agent that is known here, by address.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn memory_of(&self, agent: &str) -> Result<Vec<Descriptor>> {
        let unknown = || Error::Unknown { agent: agent.to_owned() };
        let known = lock(&self.known);
        let all = known.get(agent).ok_or_else(unknown)?.memories.iter();
        let mut all: Vec<Descriptor> = all.map(|(address, len)| Descriptor { address, len }).collect();
        all.sort_by_key(|one| one.address);
        Ok(all)
    }

    /// Connects to an agent, unless a connection is there or being made. Returns whether it is there. It does not
    /// block, and need not be called: the first transfer or notification connects.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Lost`].
    pub fn connect(&self, agent: &str) -> Result<bool> {
        self.peer(agent)?.is_open()
    }

    /// The peer with this name, to which a connection is there or being made.
    fn peer(&self, agent: &str) -> Result<Arc<Peer>> {
        let known = lock(&self.known);
        match known.get(agent) {
            Some(Known { peer, handle, .. }) => {
                self.shared.connect(peer, handle)?;
                Ok(Arc::clone(peer))
            }
            None if agent == self.shared.name => Ok(self.shared.peer(self.shared.session.me(), agent)),
            None => Err(Error::Unknown { agent: agent.to_owned() }),
        }
    }

    /// Prepares a transfer: descriptor by descriptor between memory of this agent and memory of the other one, which may
    /// be this agent itself. No order holds between them.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Lost`], [`Error::NotRegistered`]; lists or descriptors of different lengths.
    pub fn transfer(
        &self,
        direction: Direction,
        local: &[Descriptor],
        remote: &[Descriptor],
        agent: &str,
    ) -> Result<Transfer> {
        if local.len() != remote.len() {
            let why = format!("{} here, {} at the other agent; use as many", local.len(), remote.len());
            return Err(Error::Argument { what: "descriptors", why });
        }
        let peer = self.peer(agent)?;
        let (registered, known) = (lock(&self.registered), lock(&self.known));
        let known = known.get(agent);
        let outside = |agent: &str, Descriptor { address, len }: Descriptor| Error::NotRegistered {
            agent: agent.to_owned(),
            address,
            bytes: len,
        };
        let own = &registered.by_address;
        let theirs = known.map_or(own, |known| &known.memories);
        let mut list = List::new(direction, Arc::clone(&peer));
        // Most lists stay in one registration at each end, which no other one overlaps.
        let mut last: Option<(&Arc<Registered>, Option<i32>)> = None;
        let mut last_there: Option<Arc<Registered>> = None;
        for (here, there) in local.iter().zip(remote) {
            if here.len != there.len {
                let why =
                    format!("one of {} bytes here, of {} at the other agent; use equal lengths", here.len, there.len);
                return Err(Error::Argument { what: "descriptors", why });
            }
            let (memory, device) = match last {
                Some(found @ (memory, _)) if here.is_inside(memory) => found,
                _ => {
                    let memory =
                        own.holding(here.address, here.len).ok_or_else(|| outside(&self.shared.name, *here))?;
                    // A rail may use any registration that has one of the bytes.
                    own.touching(here.address, here.len).for_each(|one| list.uses(one));
                    let on_device = memory.is_staged().then(|| self.shared.sharing.get(memory.offset())).flatten();
                    let found = (memory, on_device.map(|memory| memory.device));
                    last = is_alone(own, memory).then_some(found);
                    found
                }
            };
            let (of_peer, alone) = match last_there.take() {
                Some(of_peer) if there.is_inside(&of_peer) => (of_peer, true),
                _ => {
                    let found = theirs.holding(there.address, there.len).ok_or_else(|| outside(agent, *there))?;
                    let alone = is_alone(theirs, found);
                    if known.is_some() {
                        (Arc::clone(found), alone)
                    } else {
                        list.uses(found);
                        (peer.memory(&self.shared.session, Memory::clone(found)), alone)
                    }
                }
            };
            list.add((memory, device, here.address), (&of_peer, there.address), here.len);
            last_there = alone.then_some(of_peer);
        }
        Ok(Transfer::new(&self.shared, list))
    }

    /// Sends a notification. It does not block, and the order of notifications to an agent is kept.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Lost`]; a message that is too large, or too many that wait.
    pub fn notify(&self, agent: &str, message: &[u8]) -> Result<()> {
        let peer = self.peer(agent)?;
        self.shared.notify(&peer, message).map(drop)
    }

    /// The next notification, if one has arrived. It does not block.
    #[must_use]
    pub fn notification(&self) -> Option<Notification> {
        self.wait_notification(Duration::ZERO)
    }

    /// Waits for the next notification, but no longer than this.
    #[must_use]
    pub fn wait_notification(&self, limit: Duration) -> Option<Notification> {
        self.read_notification(limit, |_| Ok::<(), Infallible>(()))?.ok()
    }

    /// As [`Agent::wait_notification`], but the notification stays the next one if `read` refuses it.
    ///
    /// # Errors
    /// That of `read`.
    pub fn read_notification<E>(
        &self,
        limit: Duration,
        mut read: impl FnMut(&Notification) -> std::result::Result<(), E>,
    ) -> Option<std::result::Result<Notification, E>> {
        let begun = Instant::now();
        let inbox = &self.shared.inbox;
        loop {
            if let Some(found) = inbox.take(&mut read) {
                return Some(found);
            }
            self.shared.receive();
            if let Some(found) = inbox.take(&mut read) {
                return Some(found);
            }
            let left = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
            inbox.wait(left.min(PAUSE));
        }
    }

    /// The most bytes of a notification.
    pub const LONGEST_NOTIFICATION: usize = outbox::MOST_BYTES;
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // The thread's own panic message is enough.
            let _ = thread.join();
        }
        self.shared.finish();
        *lock(&self.registered) = Own::default();
        self.shared.sharing.all().into_iter().for_each(|id| self.shared.sharing.remove(id));
    }
}

/// Whether no other registration has one of its bytes.
fn is_alone(all: &Ranges<Arc<Registered>>, memory: &Registered) -> bool {
    all.touching(memory.base(), memory.len()).count() == 1
}

fn no_staging_buffer(why: &str) -> symrail_transport::Error {
    symrail_transport::Error::System { what: "making an agent's staging buffer", reason: why.into() }
}
