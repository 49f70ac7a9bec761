//! Memory that stands in for a GPU's where there is none: loads and stores at its addresses fault.
//!
//! It is mapped twice. The addresses that everybody is told permit no access, so whoever touches them directly is found
//! out; a second mapping is the mover's, which copies late and in an order as loose as it may.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use crate::copy::copy;
use crate::export::Exported;
use crate::mapping::{Access, MAPPING_ALIGN, MapError, Mapping};
use crate::mover::{Copy, Moved, Mover};

/// A copy is looked at up to this many times before it is made.
const MOST_POLLS: u64 = 8;

/// Memory at addresses that nobody can touch.
#[derive(Debug)]
pub struct GuardedMemory {
    closed: Mapping,
    open: Mapping,
}

impl GuardedMemory {
    /// Zeroed memory of at least `bytes`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(bytes: usize) -> Result<Arc<Self>, MapError> {
        let at = |call| move |errno| MapError { call, errno };
        let len = bytes.max(1).checked_next_multiple_of(MAPPING_ALIGN).ok_or(at("mmap")(Errno::ENOMEM))?;
        let file = memfd_create("symrail-guarded", MFdFlags::MFD_CLOEXEC).map_err(at("memfd_create"))?;
        ftruncate(&file, len as i64).map_err(at("ftruncate"))?;
        let closed = Mapping::of_file(file.as_fd(), len, Access::Closed)?;
        let open = Mapping::of_file(file.as_fd(), len, Access::Open)?;
        Ok(Arc::new(Self { closed, open }))
    }

    /// The first byte, where nobody can touch it.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.closed.base()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.closed.len()
    }

    /// All of it, for rails.
    #[must_use]
    pub fn export(&self) -> Exported {
        Exported::Mapping(self.open.base().as_ptr())
    }

    /// Where the `len` bytes at `address` can be looked at; `None` unless all of them are this memory's.
    #[must_use]
    pub fn reachable(&self, address: usize, len: usize) -> Option<*mut u8> {
        let at = address.checked_sub(self.closed.base().addr().get())?;
        let inside = at <= self.closed.len() && len <= self.closed.len() - at;
        inside.then(|| self.open.base().as_ptr().wrapping_add(at))
    }
}

struct Waiting {
    copy: Copy,
    ticket: u64,
    polls: u64,
}

/// Copies to and from [`GuardedMemory`], late.
pub struct GuardedMover {
    memory: Arc<GuardedMemory>,
    window: Mapping,
    /// In order of start; the two directions are not ordered with each other.
    to: VecDeque<Waiting>,
    from: VecDeque<Waiting>,
    random: u64,
}

// SAFETY: the pointers of waiting copies lie in the window, which is the mover's own.
unsafe impl Send for GuardedMover {}

impl GuardedMover {
    /// A mover with a window of at least `window` bytes, whose delays depend on `seed`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(memory: Arc<GuardedMemory>, window: usize, seed: u64) -> Result<Self, MapError> {
        let at = |call| move |errno| MapError { call, errno };
        let len = window.max(1).checked_next_multiple_of(MAPPING_ALIGN).ok_or(at("mmap")(Errno::ENOMEM))?;
        let file = memfd_create("symrail-window", MFdFlags::MFD_CLOEXEC).map_err(at("memfd_create"))?;
        ftruncate(&file, len as i64).map_err(at("ftruncate"))?;
        let window = Mapping::of_file(file.as_fd(), len, Access::Open)?;
        Ok(Self { memory, window, to: VecDeque::new(), from: VecDeque::new(), random: seed | 1 })
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl Mover for GuardedMover {
    fn window(&self) -> (NonNull<u8>, usize) {
        (self.window.base(), self.window.len())
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

    fn poll(&mut self, ended: &mut dyn FnMut(Moved)) -> usize {
        let mut count = 0;
        for queue in [&mut self.to, &mut self.from] {
            while let Some(first) = queue.front_mut() {
                if first.polls > 0 {
                    first.polls -= 1;
                    break;
                }
                let Some(Waiting { copy: c, ticket, .. }) = queue.pop_front() else { break };
                let Some(memory) = self.memory.reachable(c.memory, c.len) else { continue };
                let (to, from) = if c.to_memory { (memory, c.host) } else { (c.host, memory) };
                // SAFETY: `reachable` checked one end; the caller of `start` vouches for the other, in the window.
                unsafe { copy(to, from, c.len) };
                ended(Moved { ticket, result: Ok(()) });
                count += 1;
            }
        }
        count
    }

    fn pending(&self) -> usize {
        self.to.len() + self.from.len()
    }

    fn writing(&self) -> usize {
        self.to.len()
    }
}
