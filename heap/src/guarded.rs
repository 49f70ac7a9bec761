//! Guarded memory: it stands in for a GPU's in tests. Loads and stores at its addresses fault.
//!
//! The memory is mapped twice. The published mapping permits no access, so any direct access by the CPU faults. The
//! copy engine uses a second, writable mapping; it copies late, and in an order as loose as its contract permits. Peers
//! on the same host map the memory in the same way.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::MFdFlags;
use nix::sys::stat::fstat;

use crate::copy::copy;
use crate::copy_engine::{Between, Copy, CopyCompletion, CopyEngine};
use crate::export::Exported;
use crate::handle::{HeapHandle, MemoryKind};
use crate::host::HostIdentity;
use crate::mapping::{Access, MAPPING_ALIGN, MapError, Mapping, memory_file};
use crate::memory::SEALS;
use crate::peers::{Refusal, open_heap};

/// A copy is delayed by up to this many polls.
const MOST_POLLS: u64 = 8;
/// A copy between two memories, which stands in for a large one, is delayed by up to this many polls: a message is
/// faster.
const MOST_POLLS_BETWEEN: u64 = 256;

/// Memory that faults on direct access by the CPU.
#[derive(Debug)]
pub struct GuardedMemory {
    file: OwnedFd,
    closed: Mapping,
    open: Mapping,
}

/// Peers' guarded memory that a copy engine can access like its own, once it is known.
pub type GuardedPeers = OnceLock<Vec<Arc<GuardedMemory>>>;

impl GuardedMemory {
    /// Creates zeroed memory of at least `bytes`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(bytes: usize) -> Result<Arc<Self>, MapError> {
        let at = |call| move |errno| MapError { call, errno };
        let len = bytes.max(1).checked_next_multiple_of(MAPPING_ALIGN).ok_or(at("mmap")(Errno::ENOMEM))?;
        let file = memory_file("symrail-guarded", MFdFlags::MFD_ALLOW_SEALING, len as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).map_err(at("fcntl"))?;
        Self::of_file(file, len)
    }

    fn of_file(file: OwnedFd, len: usize) -> Result<Arc<Self>, MapError> {
        let closed = Mapping::of_file(file.as_fd(), len, Access::Closed)?;
        let open = Mapping::of_file(file.as_fd(), len, Access::Open)?;
        Ok(Arc::new(Self { file, closed, open }))
    }

    /// The handle by which peers map it; `private` forbids that.
    ///
    /// # Errors
    /// The system's error.
    pub fn handle(&self, host: HostIdentity, private: bool) -> Result<HeapHandle, MapError> {
        let status = fstat(&self.file).map_err(|errno| MapError { call: "fstat", errno })?;
        Ok(HeapHandle {
            host,
            pid: std::process::id(),
            fd: self.file.as_raw_fd().unsigned_abs(),
            device: status.st_dev,
            inode: status.st_ino,
            capacity: self.bytes() as u64,
            granule: self.bytes() as u64,
            segment: 0,
            generation: 0,
            kind: MemoryKind::Device,
            private,
        })
    }

    /// Maps a peer's guarded memory.
    ///
    /// # Errors
    /// The reason why it cannot be mapped.
    pub fn of_peer(own: &HeapHandle, theirs: &HeapHandle) -> Result<Arc<Self>, Refusal> {
        let file = open_heap(own, theirs, MemoryKind::Device)?;
        let len = usize::try_from(theirs.capacity).map_err(|_| Refusal::Map(Errno::ENOMEM))?;
        Self::of_file(file, len).map_err(|error| Refusal::Map(error.errno))
    }

    /// The first byte, at the address that faults.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.closed.base()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.closed.len()
    }

    /// All of the memory, exported for rails.
    #[must_use]
    pub fn export(&self) -> Exported {
        Exported::Mapping(self.open.base().as_ptr())
    }

    /// The address at which the CPU can access the `len` bytes at `address`; `None` unless all of them are in this
    /// memory.
    #[must_use]
    pub fn reachable(&self, address: usize, len: usize) -> Option<*mut u8> {
        let at = address.checked_sub(self.closed.base().addr().get())?;
        let inside = at <= self.closed.len() && len <= self.closed.len() - at;
        inside.then(|| self.open.base().as_ptr().wrapping_add(at))
    }
}

struct Waiting<C> {
    copy: C,
    ticket: u64,
    polls: u64,
}

/// Copies to and from [`GuardedMemory`], late.
pub struct GuardedCopyEngine {
    memory: Arc<GuardedMemory>,
    peers: Arc<GuardedPeers>,
    staging_buffer: Mapping,
    /// Copies in order of start; the two directions are not ordered with each other.
    to: VecDeque<Waiting<Copy>>,
    from: VecDeque<Waiting<Copy>>,
    /// Copies without any order.
    between: Vec<Waiting<Between>>,
    random: u64,
}

// SAFETY: the pointers of waiting copies are in the staging buffer, which is the copy engine's own.
unsafe impl Send for GuardedCopyEngine {}

impl GuardedCopyEngine {
    /// A copy engine with a staging buffer of at least `staging_buffer` bytes, whose delays depend on `seed`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(memory: Arc<GuardedMemory>, staging_buffer: usize, seed: u64) -> Result<Self, MapError> {
        let at = |call| move |errno| MapError { call, errno };
        let len = staging_buffer.max(1).checked_next_multiple_of(MAPPING_ALIGN).ok_or(at("mmap")(Errno::ENOMEM))?;
        let file = memory_file("symrail-staging-buffer", MFdFlags::empty(), len as u64)?;
        let staging_buffer = Mapping::of_file(file.as_fd(), len, Access::Open)?;
        let (to, from) = (VecDeque::new(), VecDeque::new());
        Ok(Self { memory, peers: Arc::default(), staging_buffer, to, from, between: Vec::new(), random: seed | 1 })
    }

    /// Adds peers' memory that this engine has mapped.
    #[must_use]
    pub fn with_peers(self, peers: Arc<GuardedPeers>) -> Self {
        Self { peers, ..self }
    }

    /// The address at which the CPU can access bytes of its own memory or a peer's.
    fn find(&self, address: usize, len: usize) -> Option<*mut u8> {
        std::iter::once(&self.memory)
            .chain(self.peers.get().into_iter().flatten())
            .find_map(|memory| memory.reachable(address, len))
    }

    fn poll_between(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        let (ready, waiting): (Vec<_>, _) = self.between.drain(..).partition(|w| w.polls == 0);
        self.between = waiting;
        self.between.iter_mut().for_each(|w| w.polls -= 1);
        for Waiting { copy: c, ticket, .. } in &ready {
            let (Some(to), Some(from)) = (self.find(c.to, c.len), self.find(c.from, c.len)) else { continue };
            // SAFETY: `find` checked both ends; the caller of `start_between` promises that no other code uses them.
            unsafe { copy(to, from, c.len) };
            ended(CopyCompletion { ticket: *ticket, result: Ok(()) });
        }
        ready.len()
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

// SAFETY: the staging buffer is a mapping that the copy engine owns, and a copy is reported when it has been made.
unsafe impl CopyEngine for GuardedCopyEngine {
    fn staging_buffer(&self) -> (NonNull<u8>, usize) {
        (self.staging_buffer.base(), self.staging_buffer.len())
    }

    unsafe fn start(&mut self, copy: Copy, ticket: u64) -> Result<(), String> {
        if self.memory.reachable(copy.memory, copy.len).is_none() {
            return Err(format!("{} bytes at {:#x} are not guarded memory", copy.len, copy.memory));
        }
        let polls = self.next() % MOST_POLLS;
        let queue = if copy.to_memory { &mut self.to } else { &mut self.from };
        queue.push_back(Waiting { copy, ticket, polls });
        Ok(())
    }

    fn prepare_peer(&mut self, peer: usize) -> Result<(), String> {
        self.find(peer, 1).map(drop).ok_or_else(|| format!("what lies at {peer:#x} is not guarded memory"))
    }

    unsafe fn start_between(&mut self, copy: Between, ticket: u64) -> Result<(), String> {
        if let Some(end) = [copy.to, copy.from].into_iter().find(|&end| self.find(end, copy.len).is_none()) {
            return Err(format!("{} bytes at {end:#x} are not guarded memory", copy.len));
        }
        let polls = self.next() % MOST_POLLS_BETWEEN;
        self.between.push(Waiting { copy, ticket, polls });
        Ok(())
    }

    fn poll(&mut self, ended: &mut dyn FnMut(CopyCompletion)) -> usize {
        let mut count = self.poll_between(ended);
        for queue in [&mut self.to, &mut self.from] {
            while let Some(first) = queue.front_mut() {
                if first.polls > 0 {
                    first.polls -= 1;
                    break;
                }
                let Some(Waiting { copy: c, ticket, .. }) = queue.pop_front() else { break };
                let Some(memory) = self.memory.reachable(c.memory, c.len) else { continue };
                let (to, from) = if c.to_memory { (memory, c.host) } else { (c.host, memory) };
                // SAFETY: `reachable` checked one end; the caller of `start` keeps the other, in the staging buffer,
                // valid.
                unsafe { copy(to, from, c.len) };
                ended(CopyCompletion { ticket, result: Ok(()) });
                count += 1;
            }
        }
        count
    }

    fn pending(&self) -> usize {
        self.to.len() + self.from.len() + self.between.len()
    }

    fn writing(&self) -> usize {
        self.to.len()
    }
}
