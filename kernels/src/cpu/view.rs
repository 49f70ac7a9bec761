//! A device's view of its PE.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use symrail_proxy::channel::Producer;
use symrail_transport::{Error, Operation, Pe};

use super::answers::AnswerWaits;
use super::element::Element;
use super::error::DeviceError;
use super::symmetric::Symmetric;
use crate::barrier_plan::Step;

/// The parts that a device works with. All belong to the runtime, which outlives the device.
#[derive(Clone)]
pub struct DeviceParts {
    /// This PE.
    pub me: Pe,
    /// The number of PEs.
    pub n_pes: u32,
    /// The first byte of this PE's heap.
    pub heap_base: usize,
    /// Bytes of every PE's heap.
    pub heap_size: u64,
    /// For each PE where its heap is mapped here; 0 where it is not.
    pub peer_bases: Arc<[usize]>,
    /// The channels.
    pub producers: Vec<Producer>,
    /// Called by a thread that waits: lends it to the engine. `true` when something happened.
    pub progress: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Mapped peers' words may be worked on by this CPU's atomics. `false` where the NICs perform AMOs, which are not
    /// atomic with a CPU's: then AMOs and signals take the channel even to mapped peers.
    pub direct_amos: bool,
    /// All PEs, and their barriers.
    pub world: Arc<DeviceTeam>,
    /// The time-out (`SYMRAIL_TIMEOUT_S`).
    pub timeout: Duration,
}

/// Some PEs as their devices know them: the plan of their barriers, and how many there were. One for all PEs, and one
/// for each team.
#[derive(Debug, Default)]
pub struct DeviceTeam {
    pub(super) words: u64,
    pub(super) steps: Box<[Step]>,
    pub(super) barriers: AtomicU64,
}

impl DeviceTeam {
    /// The PEs whose plan has these steps for this PE. `words` is the symmetric offset of
    /// [`WORDS`](crate::barrier_plan::WORDS) zeroed words of this team alone.
    #[must_use]
    pub fn new(words: u64, steps: &[Step]) -> DeviceTeam {
        DeviceTeam { words, steps: steps.into(), barriers: AtomicU64::new(0) }
    }
}

/// A checked [`DeviceParts`], shared by all threads of a grid.
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

/// Heaps start at least this aligned, so that an offset's alignment is an address's.
const HEAP_ALIGNMENT: usize = 64;

impl DeviceView {
    /// Checks the parts and makes a view of them.
    ///
    /// # Safety
    /// `heap_base` and every base in `peer_bases` that is not 0 are exposed addresses of `heap_size` bytes that stay
    /// mapped for reading and writing as long as the view or a copy of it lives. Nobody holds references into them.
    ///
    /// # Errors
    /// The parts contradict one another.
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
    pub(super) fn check(&self, operation: Operation, pe: Pe, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        if pe >= self.parts.n_pes {
            return Err(Error::NoSuchPe { pe: pe.into(), last: self.parts.n_pes - 1 }.into());
        }
        if offset.checked_add(bytes).is_none_or(|end| end > self.parts.heap_size) {
            return Err(Error::OutOfSegment { operation, pe, offset, bytes }.into());
        }
        Ok(())
    }
}
