//! One PE of a running job: what it knows, and leaving.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

pub(crate) use symrail_core::lock;
use symrail_heap::{PeerMap, SymmetricHeap};
use symrail_proxy::channel::Producer;
use symrail_transport::env::Settings;
use symrail_transport::region::Segment;
use symrail_transport::{Operation, Pe};

use crate::bootstrap::Bootstrap;
use crate::collective::same_call::Call;
use crate::context::Contexts;
use crate::error::{Error, Result};
use crate::gpu::Pinned;
use crate::observe::{Reporter, Trace};
use crate::process::OfProcess;
use crate::program_data::ProgramData;
use crate::staged::{STAGED_OFFSET, Staged};
use crate::sync::SyncArea;
use crate::team::World;
use crate::wire::{Flow, Wire};

/// How long a PE that leaves without the others lets what it has sent go out.
const LAST_SENDS: Duration = Duration::from_secs(1);

/// One PE of a running job.
///
/// Made by [`Runtime::init`] and shared by reference between threads; dropping it leaves the job, without waiting for the others: those who
/// wait for this PE are then told that it has left. All PEs make the same collective calls (marked so) in the same order.
///
/// It belongs to the process that has made it. In a child that is forked from that one, operations are errors ([`Error::Forked`]), and so is
/// [`Runtime::finalize`]; that, dropping it and `exit` do no harm there, neither to the child nor to the job.
pub struct Runtime(OfProcess<Joined>);

/// What a PE has of the job that it has joined.
#[doc(hidden)]
pub struct Joined {
    pub(crate) me: Pe,
    pub(crate) n_pes: u32,
    pub(crate) settings: Settings,
    /// NICs perform all AMOs and signals; agreed by all PEs.
    pub(crate) native_amo: bool,
    pub(crate) base: usize,
    /// Bytes of the heap that are committed, on every PE.
    pub(crate) committed: AtomicUsize,
    /// Collective calls on the heap so far.
    pub(crate) alloc_calls: AtomicU64,
    /// Why the heap cannot grow any more.
    pub(crate) growth_refused: OnceLock<Error>,
    /// Where each PE's heap is in this process; 0 where it is reached over the wire.
    pub(crate) bases: Arc<[usize]>,
    /// No peer needs the wire.
    pub(crate) all_mapped: bool,
    /// The first PE of each PE's host; one that nobody may map is by itself.
    pub(crate) hosts: Box<[Pe]>,
    pub(crate) trace: Option<Trace>,
    // Before the wire, which it looks at.
    pub(crate) _reporter: Option<Reporter>,
    pub(crate) wire: Result<Wire>,
    /// The default context's.
    pub(crate) flow: Flow,
    pub(crate) contexts: Contexts,
    /// Made when the team of all PEs is first asked for.
    pub(crate) world: OnceLock<World>,
    pub(crate) producers: Vec<Producer>,
    pub(crate) sync: SyncArea,
    /// The collective calls of all PEs, one thread at a time where they are compared; how many were.
    pub(crate) calls: Mutex<u64>,
    pub(crate) data: ProgramData,
    pub(crate) bootstrap: Mutex<Box<dyn Bootstrap>>,
    /// Every PE's kernels reach every heap, so they perform all of their AMOs themselves.
    pub(crate) device_atomics: bool,
    /// As `hosts`, for kernels and their heaps.
    pub(crate) device_hosts: Box<[Pe]>,
    // Last: everything above points into them.
    /// The heaps of this host as the PE's GPU reaches them, if they are pinned for it.
    pub(crate) pinned: Option<Pinned>,
    /// Keeps the peers' heaps mapped.
    pub(crate) peers: PeerMap,
    pub(crate) heap: Mutex<SymmetricHeap>,
    /// The heap that users get, when that is memory that the CPU cannot touch.
    pub(crate) staged: Option<Staged>,
}

impl Deref for Runtime {
    type Target = Joined;

    #[inline]
    fn deref(&self) -> &Joined {
        &self.0
    }
}

impl DerefMut for Runtime {
    #[inline]
    fn deref_mut(&mut self) -> &mut Joined {
        &mut self.0
    }
}

impl Runtime {
    pub(crate) fn new(joined: Joined) -> Runtime {
        Runtime(OfProcess::new(joined))
    }

    /// Refuses to do anything in a process that was forked from the one that has joined.
    #[inline]
    pub(crate) fn here(&self) -> Result<()> {
        if self.0.is_here() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::Forked { pe: self.me, joined: self.0.pid(), here: std::process::id() }
    }

    /// Whether this process was forked from the one that has joined the job, and so takes no part in it.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        !self.0.is_here()
    }

    /// This PE.
    #[inline]
    #[must_use]
    pub fn my_pe(&self) -> Pe {
        self.me
    }

    /// How many PEs the job has.
    #[inline]
    #[must_use]
    pub fn n_pes(&self) -> u32 {
        self.n_pes
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where `pe`'s copy of the symmetric object at `ptr` is in this process, or null if it is only reached over the wire.
    #[must_use]
    pub fn peer_ptr(&self, ptr: *const u8, pe: Pe) -> *mut u8 {
        match (self.offset(Operation::Put, pe, ptr, 1), self.bases.get(pe as usize)) {
            (Ok(offset), Some(&base)) if base != 0 && offset < STAGED_OFFSET => {
                std::ptr::with_exposed_provenance_mut(base + offset as usize)
            }
            _ => std::ptr::null_mut(),
        }
    }

    /// Whether `len` bytes at `ptr` are symmetric memory: in the heap, or static data that is shared.
    #[must_use]
    pub fn is_symmetric(&self, ptr: *const u8, len: usize) -> bool {
        self.offset(Operation::Put, self.me, ptr, len).is_ok()
    }

    /// Where `len` bytes at `ptr` are in symmetric memory: the same on every PE.
    ///
    /// # Errors
    /// They are not symmetric.
    pub fn symmetric_offset(&self, ptr: *const u8, len: usize) -> Result<u64> {
        self.offset(Operation::Put, self.me, ptr, len)
    }

    /// The symmetric offset of `len` bytes at `ptr`.
    #[inline]
    pub(crate) fn offset(&self, operation: Operation, pe: Pe, ptr: *const u8, len: usize) -> Result<u64> {
        let committed = self.committed.load(Ordering::Relaxed);
        let offset = ptr.addr().wrapping_sub(self.base);
        if offset <= committed && len <= committed - offset {
            return Ok(offset as u64);
        }
        if let Some(offset) = self.data.offset_of(ptr, len) {
            return Ok(offset);
        }
        if let Some(offset) = self.staged.as_ref().and_then(|staged| staged.offset_of(ptr.addr(), len)) {
            return Ok(offset);
        }
        Err(self.not_symmetric(operation, pe, ptr, len))
    }

    #[cold]
    fn not_symmetric(&self, operation: Operation, pe: Pe, ptr: *const u8, bytes: usize) -> Error {
        let (heap, heap_bytes) = match &self.staged {
            Some(staged) => (staged.base, staged.len),
            None => (self.base, self.committed.load(Ordering::Relaxed)),
        };
        Error::NotSymmetric { operation, pe, address: ptr.addr(), bytes, heap, heap_bytes }
    }

    /// Where `pe`'s heap is in this process; 0 if it is reached over the wire, as memory is that the CPU cannot touch:
    /// at `offset` there, or the local buffer.
    #[inline]
    pub(crate) fn mapped(&self, pe: Pe, offset: u64, local: *const u8) -> Result<usize> {
        self.here()?;
        match self.bases.get(pe as usize) {
            Some(_) if self.staged.is_some() && (offset >= STAGED_OFFSET || self.is_staged(local)) => Ok(0),
            Some(&base) => Ok(base),
            None => Err(symrail_transport::Error::NoSuchPe { pe: pe.into(), last: self.n_pes - 1 }.into()),
        }
    }

    pub(crate) fn wire(&self) -> Result<&Wire> {
        self.here()?;
        self.wire.as_ref().map_err(Error::clone)
    }

    /// What devices of this PE need to start operations: see `symrail_kernels::cpu`.
    #[must_use]
    pub fn producers(&self) -> &[Producer] {
        &self.producers
    }

    /// What the proxy endpoint's rails are and can do, in lane order; none without a wire.
    #[must_use]
    pub fn rails(&self) -> Vec<symrail_transport::rail::RailCaps> {
        self.wire.as_ref().map_or_else(|_| Vec::new(), |w| w.driver().engine().endpoint().caps().to_vec())
    }

    /// Counters of the proxy endpoint's lanes, then of the host endpoints'.
    #[must_use]
    pub fn counters(&self) -> Vec<symrail_transport::endpoint::LaneCounters> {
        let Ok(wire) = &self.wire else { return Vec::new() };
        let mut all = wire.driver().engine().endpoint().counters().to_vec();
        all.extend(wire.host_counters());
        all
    }

    /// Whether host threads reach `pe`'s memory by loads and stores.
    #[must_use]
    pub fn is_mapped(&self, pe: Pe) -> bool {
        self.staged.is_none() && self.bases.get(pe as usize).is_some_and(|&b| b != 0)
    }

    /// Leaves the job: waits for what is under way and for all others. Collective.
    ///
    /// # Errors
    /// What was under way and failed, or a peer that has died or left; one that takes its time is waited for, as in a barrier. The PE has left
    /// in any case.
    pub fn finalize(self) -> Result<()> {
        self.here()?;
        let quiet = self.quiet();
        let met = self.agree(Call::new("finalize", 0)).and_then(|_turn| self.meet_all("finalize"));
        if let Ok(wire) = &self.wire {
            // Of those who cannot be met some will never take what was sent to them.
            let patience = if met.is_ok() { Duration::from_secs(self.settings.timeout_s) } else { LAST_SENDS };
            wire.settle(&self.flow, patience);
        }
        self.write_trace(|trace| {
            trace.add(self.wire.as_ref().map_or_else(|_| Vec::new(), |wire| wire.lanes().take_records()))
        });
        // Nobody takes anything down before all have come here.
        let left = met.and_then(|()| lock(&self.bootstrap).finish().map_err(Error::from));
        self.write_trace(Trace::end);
        quiet.and(left)
    }

    /// Writes some of the trace, if there is one. That it cannot be written is no reason to fail.
    fn write_trace(&self, write: impl FnOnce(&Trace) -> std::io::Result<()>) {
        let Some(trace) = &self.trace else { return };
        if let Err(error) = write(trace) {
            tracing::warn!(%error, "the trace could not be written");
        }
    }

    /// Ends the whole job with an exit code. Returns; the caller ends this process.
    pub fn abort(&self, code: i32, why: &str) {
        if self.is_forked() {
            return; // it is not this process's job
        }
        lock(&self.bootstrap).abort(code, why);
    }
}

/// The heap's segments, as the transport names them.
pub(crate) fn segments(heap: &SymmetricHeap) -> Vec<Segment> {
    heap.segments().to_vec()
}
