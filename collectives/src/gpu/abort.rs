//! Ending the waits of kernels.

use std::sync::{Arc, Mutex};

use symrail::kernels::cuda::{Gpu, PinnedBuffer};
use symrail::rounds::Report;
use symrail_core::lock;

use crate::error::Result;

/// Ends all waits of a communicator's kernels, from any thread and at once: also while another thread is in a driver
/// call that blocks until a kernel ends.
#[derive(Clone, Default)]
pub struct AbortHandle(Arc<Mutex<Waits>>);

/// The reports of a communicator's kernels, and whether the kernels must end.
#[derive(Default)]
struct Waits {
    ended: bool,
    reports: Vec<Arc<PinnedBuffer>>,
}

impl AbortHandle {
    /// Memory for a report of kernels; [`AbortHandle::abort`] ends their waits.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn report(&self, gpu: &Arc<Gpu>) -> Result<Arc<PinnedBuffer>> {
        // The driver is not called under the lock: a kernel may block the call until `abort` has run.
        let report = Arc::new(PinnedBuffer::new(gpu, Report::BYTES)?);
        let mut waits = lock(&self.0);
        if waits.ended {
            Report::end_waits(&report);
        }
        waits.reports.push(Arc::clone(&report));
        Ok(report)
    }

    /// Ends all waits, also those of later calls. The communicator must not be used again.
    pub fn abort(&self) {
        let mut waits = lock(&self.0);
        waits.ended = true;
        waits.reports.iter().for_each(|report| Report::end_waits(report));
    }
}

impl std::fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AbortHandle").field("ended", &lock(&self.0).ended).finish_non_exhaustive()
    }
}
