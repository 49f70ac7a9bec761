//! Agreement of PEs on a number that is free on all of them, for a new team's area.
//!
//! Each PE offers its free numbers, as bits; a bit that all PEs offer may be taken. Meanwhile a PE offers nothing to
//! other agreements, since two threads that agree with different PEs must not get the same number; an agreement that is
//! refused tries again. Among several threads the agreement with the lowest rank has precedence. Ranks are the same on
//! all PEs, so the lowest agreement is refused nowhere.

use std::collections::BTreeSet;
use std::sync::Mutex;

use symrail_core::lock;

use crate::error::Result;

/// The bit that marks an offer. So number 0 cannot be taken.
const OFFERED: u64 = 1;

/// The numbers from 1 to 63, and the agreements about them.
pub(super) struct Claims(Mutex<State>);

struct State {
    free: u64,
    /// Ranks of the agreements that threads of this PE are in.
    wanted: BTreeSet<u64>,
    offered: bool,
}

/// A PE's parameters of an agreement.
pub(super) struct Claim {
    /// Different for agreements that may be in progress at once, and the same on all PEs of one.
    pub rank: u64,
    /// Bits of the acceptable numbers; the same on all PEs.
    pub among: u64,
    /// Whether this PE takes the number, or only takes part in the agreement.
    pub takes: bool,
}

impl Claims {
    pub fn new() -> Claims {
        Claims(Mutex::new(State { free: !OFFERED, wanted: BTreeSet::new(), offered: false }))
    }

    /// Agrees on a number; `None` if none is free on all PEs. `common` returns the bits that all PEs have passed to it.
    /// All PEs have arrived when it is called first: a PE that still waits for others to arrive must not withhold
    /// numbers from them.
    ///
    /// # Errors
    /// Those of `common`. Other PEs may have agreed nevertheless: then their team waits for this PE for ever, or until
    /// an error reports that a peer does not answer.
    pub fn agree(&self, claim: &Claim, mut common: impl FnMut(u64) -> Result<u64>) -> Result<Option<u32>> {
        lock(&self.0).wanted.insert(claim.rank);
        loop {
            let offer = self.offer(claim);
            let common = common(offer);
            let mut state = lock(&self.0);
            if offer != 0 {
                state.offered = false;
            }
            if matches!(common, Ok(bits) if bits & OFFERED == 0) {
                continue;
            }
            state.wanted.remove(&claim.rank);
            let numbers = common? & !OFFERED;
            if numbers == 0 {
                return Ok(None);
            }
            if claim.takes {
                state.free &= !(1 << numbers.trailing_zeros());
            }
            return Ok(Some(numbers.trailing_zeros()));
        }
    }

    /// This PE's offer: nothing while another offer is out, or has precedence.
    fn offer(&self, claim: &Claim) -> u64 {
        let mut state = lock(&self.0);
        if state.offered || state.wanted.first() != Some(&claim.rank) {
            return 0;
        }
        state.offered = true;
        state.free & claim.among | OFFERED
    }

    /// Frees a number.
    pub fn give_back(&self, number: u32) {
        lock(&self.0).free |= 1 << number;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Barrier, atomic::AtomicU64, atomic::Ordering};

    use super::*;

    fn claim(rank: u64) -> Claim {
        Claim { rank, among: !0, takes: true }
    }

    #[test]
    fn what_all_have_is_taken_once() {
        let claims = Claims::new();
        assert_eq!(claims.agree(&claim(0), |offer| Ok(offer & 0b1011)).unwrap(), Some(1));
        assert_eq!(claims.agree(&claim(0), |offer| Ok(offer & 0b1011)).unwrap(), Some(3));
        assert_eq!(claims.agree(&claim(0), |offer| Ok(offer & 0b1011)).unwrap(), None);
        assert_eq!(claims.agree(&Claim { takes: false, ..claim(0) }, |offer| Ok(offer & 0b101)).unwrap(), Some(2));
        assert_eq!(claims.agree(&Claim { among: 0b1110, ..claim(0) }, Ok).unwrap(), Some(2));
        claims.give_back(1);
        assert_eq!(claims.agree(&claim(0), Ok).unwrap(), Some(1));
    }

    /// Two PEs whose threads agree pairwise, many at once, in any order.
    #[test]
    fn threads_that_agree_at_once_get_different_numbers() {
        const THREADS: u64 = 6;
        let pes = [Claims::new(), Claims::new()];
        let taken = [Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new())];
        std::thread::scope(|scope| {
            for rank in 0..THREADS {
                let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
                let barrier = Arc::new(Barrier::new(2));
                for me in 0..2 {
                    let (words, barrier, pes, taken) = (Arc::clone(&words), Arc::clone(&barrier), &pes, &taken);
                    scope.spawn(move || {
                        barrier.wait();
                        let common = |offer| {
                            words[me].store(offer, Ordering::SeqCst);
                            barrier.wait();
                            let both = words[0].load(Ordering::SeqCst) & words[1].load(Ordering::SeqCst);
                            barrier.wait();
                            Ok(both)
                        };
                        let number = pes[me].agree(&claim(rank), common).unwrap().unwrap();
                        assert!(lock(&taken[me]).insert((number, rank)));
                    });
                }
            }
        });
        let [first, second] = taken.map(|taken| taken.into_inner().unwrap());
        assert_eq!(first, second, "both ends of an agreement have the same number");
        assert_eq!(first.iter().map(|(number, _)| number).collect::<BTreeSet<_>>().len(), THREADS as usize);
    }
}
