//! What a PE's devices share, whether they are GPUs or CPU threads in a GPU's place.

use std::sync::Arc;

use symrail_proxy::channel::Producer;
use symrail_transport::Pe;

/// A PE's way to be driven by devices.
pub(crate) struct Devices {
    pub producers: Vec<Producer>,
    /// Every PE's kernels reach every heap, so they perform all of their AMOs themselves.
    pub atomics: bool,
    /// The first PE of each PE's host, for kernels and their heaps.
    pub hosts: Arc<[Pe]>,
}
