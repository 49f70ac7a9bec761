//! A symmetric heap in memory that the CPU cannot touch: a GPU's, or what stands in for it in tests.
//!
//! With such a `SYMRAIL_HEAP_KIND`, what users allocate is that memory, all of it there from the start. Operations on
//! it go through the engine, which [stages](symrail_proxy::stage) them, those on this PE's own heap too; so do the few
//! places in which host threads read it (waits, and [`SymSlice`](crate::SymSlice)'s local accesses). What the
//! runtime needs for itself stays in host memory, where the ways of an ordinary heap lead.

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
/// Host segments count from 0.
pub(crate) const STAGED_ID: u32 = 0xffff_ff00;

/// What is behind the addresses.
enum Memory {
    Guarded(Box<Guarded>),
    Device(Box<Shared>),
}

/// The heap, and what has to live as long as it.
pub(crate) struct Staged {
    pub base: usize,
    pub len: usize,
    pub heap: Mutex<SymmetricHeap>,
    memory: Memory,
    /// NICs read and write it, and all PEs' likewise.
    pub direct: bool,
    /// What went wrong where no result could tell.
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
        Ok(Some(Staged { base, len, heap, memory, direct: false, late: Mutex::default() }))
    }

    /// What copies to and from it for a proxy thread, with a staging buffer of its own.
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
                // SAFETY: zeroed, large enough, aligned to a page, and for this copy engine and kernels alone.
                let mailbox = unsafe { Mailbox::new(place.base(), place) };
                Box::new(MailboxCopyEngine::new(copy_engine, mailbox))
            }
        })
    }

    /// By what NICs may find it.
    ///
    /// # Errors
    /// No NIC reaches it.
    pub fn export(&self) -> Result<Exported> {
        Ok(match &self.memory {
            Memory::Guarded(guarded) => guarded.memory().export(),
            Memory::Device(shared) => shared.heap().export()?,
        })
    }

    /// All of it, as the engine knows it.
    pub fn segment(&self) -> Segment {
        let base = std::ptr::with_exposed_provenance_mut(self.base);
        // SAFETY: the memory of this PE's heap, which lives as long as `self`, and which nobody refers into.
        unsafe { Segment::new(STAGED_ID, STAGED_OFFSET, base, self.len as u64) }
    }

    /// The heap and its peers', if it is in a GPU.
    pub fn shared(&self) -> Option<&Shared> {
        match &self.memory {
            Memory::Device(shared) => Some(shared),
            Memory::Guarded(_) => None,
        }
    }

    /// What peers have to know to map it.
    pub fn connection_info(&self) -> Vec<u8> {
        match &self.memory {
            Memory::Guarded(guarded) => guarded.connection_info(),
            Memory::Device(shared) => shared.connection_info(),
        }
    }

    /// Maps what can be mapped of peers'; `connection_infos` has everybody's, in order. Collective among the PEs of a
    /// host.
    ///
    /// # Errors
    /// Connection infos that are none, or a peer of this host that does not arrive.
    pub fn open(&mut self, me: Pe, connection_infos: &[Vec<u8>], time_limit: Duration) -> Result<()> {
        match &mut self.memory {
            Memory::Guarded(guarded) => guarded.open(me, connection_infos),
            Memory::Device(shared) => shared.open(connection_infos, time_limit),
        }
    }

    /// Where the device has mapped each PE's; 0 where it has not.
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

    /// The error that was kept, if there is one.
    pub fn take_noted(&self) -> Result<()> {
        lock(&self.late).take().map_or(Ok(()), Err)
    }
}
