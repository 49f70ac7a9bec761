//! What CPU threads in a device's place work with: the heap as this process sees it, and the channels. GPUs: see [`gpu`](crate::gpu).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use symrail_proxy::channel::Producer;
use symrail_transport::Pe;

use crate::runtime::Runtime;

/// A PE's heap in host memory and its channels. Valid as long as the runtime.
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
    /// The channels; no host thread pushes to them.
    pub channels: Vec<Producer>,
    /// How long anything is waited for.
    pub timeout: Duration,
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
            channels: self.producers().to_vec(),
            timeout: Duration::from_secs(self.settings.timeout_s),
        }
    }
}
