//! What kernels say when they give up (`symrail/semaphore.cuh`).

use symrail::Pe;
use symrail::kernels::cuda::PinnedBuffer;

use crate::error::Error;

/// The report's words.
const REASON: usize = 0;
const WHO: usize = 1;
const PLACE: usize = 2;
const END: usize = 3;
pub(super) const REPORT_BYTES: usize = 32;

/// Why a kernel gave up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    reason: u64,
    /// The PE, or what the waiter went by.
    pub who: u64,
    /// The step of the plan.
    pub step: usize,
}

impl Report {
    /// What was reported, if anything.
    pub fn of(words: &PinnedBuffer) -> Option<Report> {
        let reason = words.word(REASON);
        (reason != 0).then(|| Report { reason, who: words.word(WHO), step: words.word(PLACE) as u32 as usize })
    }

    /// Lets all who wait give up.
    pub fn end_waits(words: &PinnedBuffer) {
        words.set_word(END, 1);
    }

    /// The error; `late` is the PE that is late where `who` is not it.
    pub fn error(&self, waiting: &str, late: Option<Pe>, me: Pe, seconds: u64) -> Error {
        match self.reason {
            1 => Error::Late { waiting: waiting.into(), pe: late.unwrap_or(self.who as Pe), seconds },
            2 => Error::Aborted { pe: self.who as Pe },
            // The host has ended it.
            _ => Error::Aborted { pe: me },
        }
    }
}
