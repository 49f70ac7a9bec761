//! The word through which a PE that gives up tells the others. Kernels use it, too (`symrail/semaphore.cuh`).

use symrail_transport::Pe;

use super::Error;
use crate::rma::SignalUpdate;
use crate::runtime::Runtime;
use crate::team::Group;

/// A PE that has given up, as the abort word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// The PE that gave up.
    pub by: Pe,
    /// The PE that it lost, if that was the reason.
    pub lost: Option<Pe>,
}

impl Abort {
    /// What an abort word says; `None` if it is 0.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Abort> {
        let [by, lost] = [word as u32, (word >> 32) as u32].map(|plus_one| plus_one.checked_sub(1));
        by.map(|by| Abort { by, lost })
    }

    /// The value of the abort word, which is never 0.
    #[must_use]
    pub fn to_word(self) -> u64 {
        (u64::from(self.by) + 1) | self.lost.map_or(0, |lost| (u64::from(lost) + 1) << 32)
    }

    /// The error of a PE that learns of it in an operation.
    #[must_use]
    pub fn error(self, pe: Pe, what: &'static str) -> Error {
        Error::Aborted { pe, what, by: self.by, lost: self.lost }
    }

    /// Fails if an abort word is set.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn check(word: u64, pe: Pe, what: &'static str) -> Result<(), Error> {
        Abort::from_word(word).map_or(Ok(()), |abort| Err(abort.error(pe, what)))
    }

    /// Sets the abort word at all other PEs of a group, for an error of this PE's that names `lost` or none. Returns at
    /// once. A PE that the signal cannot reach is dead, or waits until its own time limit.
    pub fn send(runtime: &Runtime, group: Group, word: *mut u64, lost: Option<Pe>) {
        let value = Abort { by: runtime.my_pe(), lost }.to_word();
        for pe in (0..group.size()).map(|rank| group.pe(rank)).filter(|&pe| pe != runtime.my_pe()) {
            let signal = SignalUpdate::set(word, value);
            // SAFETY: no bytes are put.
            let _ = unsafe { runtime.put_signal_nbi(word.cast(), word.cast(), 0, signal, pe) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abort_words_name_two_pes_or_one() {
        assert_eq!(Abort::from_word(0), None);
        for (by, lost) in [(0, None), (0, Some(0)), (7, None), (1 << 19, Some((1 << 20) - 1))] {
            let abort = Abort { by, lost };
            assert_eq!(Abort::from_word(abort.to_word()), Some(abort));
        }
        // Kernels add one to their PE's number.
        assert_eq!(Abort { by: 3, lost: None }.to_word(), 4);
    }
}
