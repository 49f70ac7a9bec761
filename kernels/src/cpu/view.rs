//! The view: a device's data about its PE.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use symrail_proxy::channel::Producer;
use symrail_transport::{Error, Operation, Pe};

use super::answers::AnswerWaits;
use super::element::Element;
use super::error::DeviceError;
use super::symmetric::Symmetric;
use crate::barrier_words::Step;

/// The parts of a view. The runtime owns all of them, and outlives the device.
#[derive(Clone)]
pub struct DeviceParts {
    /// This PE.
    pub me: Pe,
    /// The number of PEs.
    pub n_pes: u32,
    /// The address of this PE's heap.
    pub heap_base: usize,
    /// Size of every PE's heap in bytes.
    pub heap_size: u64,
    /// For each PE the address at which its heap is mapped here; 0 where it is not.
    pub peer_bases: Arc<[usize]>,
    /// The channels.
    pub producers: Vec<Producer>,
    /// Lends a waiting thread to the engine. Returns `true` when there was an event.
    pub progress: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether this CPU's atomics may access mapped peers' words. `false` where NICs perform AMOs, which are not atomic
    /// with a CPU's: then AMOs and signals use the channel even for mapped peers.
    pub direct_amos: bool,
    /// The team of all PEs.
    pub world: Arc<DeviceTeam>,
    /// The time-out (`SYMRAIL_TIMEOUT_S`).
    pub timeout: Duration,
}

/// A set of PEs for barriers of their devices: the plan of the barriers, and the number of barriers so far. There is
/// one for all PEs, and one for each team.
#[derive(Debug, Default)]
pub struct DeviceTeam {
    pub(super) words: u64,
    pub(super) steps: Box<[Step]>,
    pub(super) barriers: AtomicU64,
}

impl DeviceTeam {
    /// The set of PEs whose plan has these steps for this PE. `words` is the symmetric offset of
    /// [`WORDS`](crate::barrier_words::WORDS) zeroed words that only this set uses.
    #[must_use]
    pub fn new(words: u64, steps: &[Step]) -> DeviceTeam {
        DeviceTeam { words, steps: steps.into(), barriers: AtomicU64::new(0) }
    }
}

/// Checked [`DeviceParts`], which all threads of a grid share.
#[derive(Clone)]
pub struct DeviceView {
    parts: Arc<DeviceParts>,
    answer_waits: Arc<AnswerWaits>,
}

impl std::fmt::Debug for DeviceView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceView")
            .field("me", &self.parts.me)
            .field("n_pes", &self.parts.n_pes)
            .finish_non_exhaustive()
    }
}

/// The least alignment of heaps, so that the alignment of an offset is that of its address.
const HEAP_ALIGNMENT: usize = 64;

impl DeviceView {
    /// Checks the parts and creates a view of them.
    ///
    /// # Safety
    /// `heap_base` and every base in `peer_bases` that is not 0 are exposed addresses of `heap_size` bytes. These stay
    /// mapped for reading and writing as long as the view or a copy of it lives, and no code holds references into
    /// them.
    ///
    /// # Errors
    /// The parts contradict each other.
    pub unsafe fn new(parts: DeviceParts) -> Result<Self, DeviceError> {
        let bases = parts.peer_bases.iter().chain([&parts.heap_base]);
        let wrong = if parts.me >= parts.n_pes || parts.peer_bases.len() != parts.n_pes as usize {
            format!("PE {} of {} with {} peer bases", parts.me, parts.n_pes, parts.peer_bases.len())
        } else if parts.heap_base == 0 || bases.into_iter().any(|base| base % HEAP_ALIGNMENT != 0) {
            format!("a heap that does not start at a multiple of {HEAP_ALIGNMENT}")
        } else {
            return Ok(Self { parts: Arc::new(parts), answer_waits: Arc::new(AnswerWaits::new()) });
        };
        Err(DeviceError::Argument(format!("a device cannot have {wrong}")))
    }

    pub(super) fn answer_waits(&self) -> &AnswerWaits {
        &self.answer_waits
    }

    #[inline]
    pub(super) fn parts(&self) -> &DeviceParts {
        &self.parts
    }

    /// Names `len` elements at a symmetric offset.
    ///
    /// # Errors
    /// They are not aligned, or not within the heap.
    pub fn symmetric<T: Element>(&self, offset: u64, len: u64) -> Result<Symmetric<T>, DeviceError> {
        let needed = T::WIDTH.bytes();
        if !offset.is_multiple_of(needed as u64) {
            return Err(Error::Misaligned { operation: Operation::Put, pe: self.parts.me, offset, needed }.into());
        }
        let bytes = len.saturating_mul(needed as u64);
        self.check(Operation::Put, self.parts.me, offset, bytes)?;
        Ok(Symmetric::new(offset, len))
    }

    /// Whether the range is within the heap of an existing PE.
    #[inline]
    pub(super) fn check(&self, operation: Operation, pe: Pe, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        if pe < self.parts.n_pes && offset.checked_add(bytes).is_some_and(|end| end <= self.parts.heap_size) {
            return Ok(());
        }
        Err(self.outside(operation, pe, offset, bytes))
    }

    #[cold]
    fn outside(&self, operation: Operation, pe: Pe, offset: u64, bytes: u64) -> DeviceError {
        if pe >= self.parts.n_pes {
            return Error::NoSuchPe { pe: pe.into(), last: self.parts.n_pes - 1 }.into();
        }
        Error::OutOfSegment { operation, pe, offset, bytes }.into()
    }
}
