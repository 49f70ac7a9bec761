//! Kernels' reports of failed waits (`symrail/semaphore.cuh`), in pinned memory.

use symrail_core::word_of;
use symrail_kernels::cuda::PinnedBuffer;
use symrail_kernels::layout::{self, BY_PEER, LATE};
use symrail_transport::Pe;

use super::{Abort, Error};

/// Why a kernel gave up.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The reason: a number of the kernel's, or one of those that all kernels have.
    pub reason: u64,
    /// The PE, or the number that the waiter used instead. If another PE has given up, its abort word less one.
    pub who: u64,
    /// The place, numbered by the waiter.
    pub place: u64,
}

impl Report {
    /// Bytes of a report.
    pub const BYTES: usize = size_of::<layout::Report>();

    /// The report, if there is one.
    #[must_use]
    pub fn of(words: &PinnedBuffer) -> Option<Report> {
        let reason = words.word(word_of!(layout::Report, reason));
        (reason != 0).then(|| Report {
            reason,
            who: words.word(word_of!(layout::Report, pe)),
            place: words.word(word_of!(layout::Report, place)),
        })
    }

    /// Makes all waiting kernels give up.
    pub fn end_waits(words: &PinnedBuffer) {
        words.set_word(word_of!(layout::Report, end), 1);
    }

    /// The error of the report on a PE that waited `seconds` for `waiting`, in an operation `what`. `late` is the PE
    /// that is late if the waiter reported another number.
    #[must_use]
    pub fn error(&self, pe: Pe, what: &'static str, waiting: String, late: Option<Pe>, seconds: u64) -> Error {
        let seconds = seconds as f64;
        // The host has ended a wait with any other reason.
        let abort = Abort { by: pe, lost: None };
        match self.reason {
            LATE => Error::TimedOut { pe, what, waiting, late: vec![late.unwrap_or(self.who as Pe)], seconds },
            BY_PEER => Abort::from_word(self.who + 1).unwrap_or(abort).error(pe, what),
            _ => abort.error(pe, what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_name_the_late_pe_or_the_one_that_gave_up() {
        let said = |reason, who, late| {
            Report { reason, who, place: 0 }.error(5, "a plan", "its block".into(), late, 7).to_string()
        };
        let late = said(LATE, 3, None);
        assert!(late.contains("waited 7.0 s for its block; PE 3 is late"), "{late}");
        assert!(said(LATE, 3, Some(4)).contains("PE 4 is late"));
        let lost = said(BY_PEER, Abort { by: 3, lost: Some(1) }.to_word() - 1, None);
        assert!(lost.contains("PE 3 has given up, since it has lost PE 1"), "{lost}");
        assert!(said(3, 0, None).contains("PE 5 has given up"));
    }
}
