//! State that a PE's devices share, whether they are GPUs or CPU threads.

use std::sync::Arc;

use symrail_proxy::channel::Producer;
use symrail_transport::Pe;

/// A PE's state for devices.
pub(crate) struct Devices {
    pub producers: Vec<Producer>,
    /// Every PE's kernels access every heap, so they perform all of their AMOs themselves.
    pub atomics: bool,
    /// The first PE of each PE's host, for kernels and their heaps.
    pub hosts: Arc<[Pe]>,
}
