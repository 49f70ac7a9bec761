//! A symmetric heap in memory that the CPU cannot access: a GPU's, or what tests use in its place.
//!
//! With such a `SYMRAIL_HEAP_KIND`, users' allocations are in that memory, which has its full size from the start.
//! Operations on it go through the engine, which [stages](symrail_proxy::stage) them, also those on this PE's own heap.
//! So do the few accesses of host threads (waits, and [`SymSlice`](crate::SymSlice)'s local accesses). The runtime's
//! own memory stays in host memory, and works as in an ordinary heap.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use symrail_core::lock;
use symrail_heap::cuda::{CudaCopyEngine, PinnedBuffer};
use symrail_heap::export::Exported;
use symrail_heap::mailbox::Mailbox;
use symrail_heap::mailbox_copy_engine::MailboxCopyEngine;
use symrail_heap::{CopyEngine, SymmetricHeap};
use symrail_proxy::stage::{MAX_COPIES, STAGING_BUFFER_BYTES};
use symrail_transport::Pe;
use symrail_transport::env::{HeapKind, Settings};
use symrail_transport::region::Segment;

use crate::error::{Error, Result};
use crate::gpu::shared::Shared;
use crate::guarded::Guarded;

/// The symmetric offset of the first byte: beyond every heap in host memory.
pub(crate) const STAGED_OFFSET: u64 = 1 << 48;
/// The id of its segment; segments in host memory count from 0.
pub(crate) const STAGED_ID: u32 = 0xffff_ff00;

/// The memory behind the addresses.
enum Memory {
    Guarded(Box<Guarded>),
    Device(Box<Shared>),
}

/// The heap, and everything that must live as long as it.
pub(crate) struct Staged {
    pub base: usize,
    pub len: usize,
    pub heap: Mutex<SymmetricHeap>,
    memory: Memory,
    /// NICs read and write this heap, and those of all PEs.
    pub direct: bool,
    /// The number of PEs of this host with a heap in the same GPU's memory.
    pub sharers: u32,
    /// An error that no result could return.
    late: Mutex<Option<Error>>,
}

impl Staged {
    /// The heap of PE `me`, if the settings ask for such memory.
    ///
    /// # Errors
    /// No GPU, no memory, or a kind of heap that this build does not have.
    pub fn new(me: Pe, n_pes: u32, settings: &Settings) -> Result<Option<Staged>> {
        let memory = match settings.heap_kind {
            HeapKind::Host | HeapKind::Pinned => return Ok(None),
            HeapKind::Guarded => Memory::Guarded(Box::new(Guarded::new(settings)?)),
            HeapKind::Device => Memory::Device(Box::new(Shared::new(me, n_pes, settings)?)),
        };
        let (base, len) = match &memory {
            Memory::Guarded(guarded) => (guarded.memory().base().addr().get(), guarded.memory().bytes()),
            Memory::Device(shared) => (shared.heap().base().get() as usize, shared.heap().committed() as usize),
        };
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(base)).unwrap_or(NonNull::dangling());
        // SAFETY: the memory was made above and is kept beside the heap.
        let heap = Mutex::new(unsafe { SymmetricHeap::over(me, settings, first, len as u64) }?);
        Ok(Some(Staged { base, len, heap, memory, direct: false, sharers: 1, late: Mutex::default() }))
    }

    /// A copy engine for a proxy thread, with its own staging buffer.
    ///
    /// # Errors
    /// The system's or the driver's error.
    pub fn copy_engine(&self, thread: usize) -> Result<Box<dyn CopyEngine>> {
        Ok(match &self.memory {
            Memory::Guarded(guarded) => Box::new(guarded.copy_engine()?),
            Memory::Device(shared) => {
                let copy_engine = CudaCopyEngine::new(shared.contexts(), STAGING_BUFFER_BYTES, MAX_COPIES)?;
                if thread > 0 {
                    return Ok(Box::new(copy_engine)); // there is one mailbox
                }
                let place: Arc<PinnedBuffer> = Arc::clone(shared.mailbox());
                // SAFETY: zeroed, large enough, aligned to a page, and only this copy engine and kernels use it.
                let mailbox = unsafe { Mailbox::new(place.base(), place) };
                Box::new(MailboxCopyEngine::new(copy_engine, mailbox))
            }
        })
    }

    /// An export of the heap that NICs can register.
    ///
    /// # Errors
    /// No NIC can access it.
    pub fn export(&self) -> Result<Exported> {
        Ok(match &self.memory {
            Memory::Guarded(guarded) => guarded.memory().export(),
            Memory::Device(shared) => shared.heap().export()?,
        })
    }

    /// The whole heap as a segment for the engine.
    pub fn segment(&self) -> Segment {
        let base = std::ptr::with_exposed_provenance_mut(self.base);
        // SAFETY: the memory of this PE's heap, which lives as long as `self`, and to which no references exist.
        unsafe { Segment::new(STAGED_ID, STAGED_OFFSET, base, self.len as u64) }
    }

    /// The heap and its peers' heaps, if it is in a GPU.
    pub fn shared(&self) -> Option<&Shared> {
        match &self.memory {
            Memory::Device(shared) => Some(shared),
            Memory::Guarded(_) => None,
        }
    }

    /// The information that peers need to map it.
    pub fn connection_info(&self) -> Vec<u8> {
        match &self.memory {
            Memory::Guarded(guarded) => guarded.connection_info(),
            Memory::Device(shared) => shared.connection_info(),
        }
    }

    /// Maps all heaps that can be mapped; `connection_infos` has all PEs', in order. Collective among the PEs of a
    /// host.
    ///
    /// # Errors
    /// Malformed connection infos, or a peer of this host that does not arrive.
    pub fn open(&mut self, me: Pe, connection_infos: &[Vec<u8>], time_limit: Duration) -> Result<()> {
        match &mut self.memory {
            Memory::Guarded(guarded) => guarded.open(me, connection_infos),
            Memory::Device(shared) => shared.open(connection_infos, time_limit),
        }
    }

    /// The address at which the device has mapped each PE's heap; 0 if it has not.
    pub fn bases(&self) -> Vec<usize> {
        match &self.memory {
            Memory::Guarded(guarded) => guarded.bases().to_vec(),
            Memory::Device(shared) => shared.bases().into_iter().map(|base| base.get() as usize).collect(),
        }
    }

    /// The symmetric offset of `len` bytes at `address`.
    #[inline]
    pub fn offset_of(&self, address: usize, len: usize) -> Option<u64> {
        let within = address.wrapping_sub(self.base);
        (within <= self.len && len <= self.len - within).then(|| STAGED_OFFSET + within as u64)
    }

    /// Keeps an error for the next quiet.
    pub fn note(&self, error: Error) {
        lock(&self.late).get_or_insert(error);
    }

    /// The kept error, if there is one.
    pub fn take_noted(&self) -> Result<()> {
        lock(&self.late).take().map_or(Ok(()), Err)
    }
}
