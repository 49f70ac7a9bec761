//! Reports of kernels that give up (`symrail/semaphore.cuh`).

use std::sync::{Arc, Mutex};

use symrail::Pe;
use symrail::kernels::cuda::{Gpu, PinnedBuffer};
use symrail::kernels::layout::{self, BY_PEER, LATE};
use symrail_core::{lock, word_of};

use super::layout::{SIZE_SHIFT, SIZES};
use crate::error::{Error, Result};

/// Why a kernel gave up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub reason: u64,
    /// The PE, or the number that the waiter used instead.
    pub who: u64,
    /// The place, numbered by the waiter.
    pub place: u64,
}

impl Report {
    /// The report, if there is one.
    pub fn of(words: &PinnedBuffer) -> Option<Report> {
        let reason = words.word(word_of!(layout::Report, reason));
        (reason != 0).then(|| Report {
            reason,
            who: words.word(word_of!(layout::Report, pe)),
            place: words.word(word_of!(layout::Report, place)),
        })
    }

    /// The step of the plan, if the place is one.
    pub fn step(&self) -> usize {
        self.place as u32 as usize
    }

    /// The size of the send, if that is why a receiver gave up (`cu/exchange.cuh`).
    pub fn other_size(&self) -> Option<u64> {
        (self.reason & ((1 << SIZE_SHIFT) - 1) == SIZES).then_some(self.reason >> SIZE_SHIFT)
    }

    /// Makes all waiting kernels give up.
    pub fn end_waits(words: &PinnedBuffer) {
        words.set_word(word_of!(layout::Report, end), 1);
    }

    /// The error; `late` is the PE that is late if `who` is not a PE.
    pub fn error(&self, waiting: &str, late: Option<Pe>, me: Pe, seconds: u64) -> Error {
        match self.reason {
            LATE => Error::Late { waiting: waiting.into(), pe: late.unwrap_or(self.who as Pe), seconds },
            BY_PEER => Error::Aborted { pe: self.who as Pe },
            // The host has ended the wait.
            _ => Error::Aborted { pe: me },
        }
    }
}

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
        let report = Arc::new(PinnedBuffer::new(gpu, size_of::<layout::Report>())?);
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
