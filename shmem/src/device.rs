//! What CPU threads in a device's place work with: the heap as this process sees it, and the channels. GPUs: see [`gpu`](crate::gpu).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use symrail_kernels::cpu::{DeviceParts, DeviceTeam};

use crate::runtime::Runtime;
use crate::team::Team;

impl Runtime {
    /// What a CPU device of this PE is made of, whose waiting threads call `progress` (see [`DeviceParts::progress`]). Valid as long as the
    /// runtime. The channels belong to one device at a time, and no host thread pushes to them.
    #[must_use]
    pub fn cpu_device_parts(&self, progress: Arc<dyn Fn() -> bool + Send + Sync>) -> DeviceParts {
        DeviceParts {
            me: self.me,
            n_pes: self.n_pes,
            heap_base: self.base,
            heap_size: self.committed.load(Ordering::Relaxed) as u64,
            peer_bases: Arc::clone(&self.bases),
            producers: self.producers().to_vec(),
            progress,
            direct_amos: self.cpu_performs_amos(),
            world: Arc::clone(&self.sync.on_device),
            timeout: Duration::from_secs(self.settings.timeout_s),
        }
    }
}

impl Team<'_> {
    /// The team for threads of a CPU device, the same each time. Not used any more when the team is destroyed.
    #[must_use]
    pub fn on_cpu_device(&self) -> Arc<DeviceTeam> {
        Arc::clone(&self.on_device)
    }
}
