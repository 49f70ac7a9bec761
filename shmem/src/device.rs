//! What a device of this PE works with: the heap as this process sees it, and the channels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use symrail_proxy::channel::Producer;
use symrail_transport::Pe;

use crate::runtime::Runtime;
use crate::staged::STAGED_OFFSET;

/// A PE's heap and channels, for devices: CPU threads or a GPU. Valid as long as the runtime.
#[derive(Debug, Clone)]
pub struct DeviceHandles {
    /// This PE.
    pub me: Pe,
    /// How many PEs there are.
    pub n_pes: u32,
    /// The first byte of this PE's heap.
    pub base: usize,
    /// Bytes of every PE's heap that have memory behind them now.
    pub committed: usize,
    /// For each PE where its heap is mapped here; 0 where it is reached over the wire.
    pub bases: Arc<[usize]>,
    /// The heap in device memory, if `SYMRAIL_HEAP_KIND` asks for one: then that is where users' memory is.
    pub staged: Option<StagedHeap>,
    /// The channels; no host thread pushes to them.
    pub channels: Vec<Producer>,
    /// How long anything is waited for.
    pub timeout: Duration,
}

/// A symmetric heap in memory that the CPU cannot touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedHeap {
    /// The first byte of this PE's, in its device's address space.
    pub base: usize,
    /// Bytes, all of which have memory behind them.
    pub bytes: usize,
    /// The symmetric offset of the first byte.
    pub offset: u64,
}

impl Runtime {
    /// What a device of this PE works with. The channels belong to one device at a time.
    #[must_use]
    pub fn device_handles(&self) -> DeviceHandles {
        DeviceHandles {
            me: self.me,
            n_pes: self.n_pes,
            base: self.base,
            committed: self.committed.load(Ordering::Relaxed),
            bases: Arc::clone(&self.bases),
            staged: self.staged.as_ref().map(|s| StagedHeap { base: s.base, bytes: s.len, offset: STAGED_OFFSET }),
            channels: self.producers().to_vec(),
            timeout: Duration::from_secs(self.settings.timeout_s),
        }
    }
}
