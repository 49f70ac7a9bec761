//! How PEs agree on a number that is free on all of them, for a new team's area.
//!
//! Each PE offers what is free on it, as bits, and what all have in common may be taken. To others a PE offers nothing
//! meanwhile, since two threads that agree with different PEs must not get the same number; who is refused tries again.
//! Of several threads the one comes first whose agreement has the lowest rank, which is the same on all PEs, so one of
//! them is refused nowhere.

use std::collections::BTreeSet;
use std::sync::Mutex;

use symrail_core::lock;

use crate::error::Result;

/// The bit that says that a PE does offer what it has. There is no number 0 to be had.
const OFFERED: u64 = 1;

/// The numbers from 1 to 63, and who wants one.
pub(super) struct Claims(Mutex<State>);

struct State {
    free: u64,
    /// Ranks of the agreements that threads of this PE are in.
    wanted: BTreeSet<u64>,
    offered: bool,
}

/// What a PE wants of an agreement.
pub(super) struct Claim {
    /// Different for agreements that may be under way at once, and the same on all PEs of one.
    pub rank: u64,
    /// Bits of the numbers that will do; the same on all PEs.
    pub among: u64,
    /// Whether this PE takes the number, or only lets others have it.
    pub takes: bool,
}

impl Claims {
    pub fn new() -> Claims {
        Claims(Mutex::new(State { free: !OFFERED, wanted: BTreeSet::new(), offered: false }))
    }

    /// Agrees on a number; `None` if there is none that is free on all PEs. `common` tells what all have in common of
    /// what they pass to it. All have arrived when it is called first: who waits for others to come must not keep any
    /// number from them.
    ///
    /// # Errors
    /// Those of `common`. Others may have agreed nevertheless: then a team of theirs waits for this PE for ever, or
    /// until it is told that a peer does not answer.
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

    /// What this PE offers now: nothing while another offer is out, or has to come first.
    fn offer(&self, claim: &Claim) -> u64 {
        let mut state = lock(&self.0);
        if state.offered || state.wanted.first() != Some(&claim.rank) {
            return 0;
        }
        state.offered = true;
        state.free & claim.among | OFFERED
    }

    /// Gives a number back.
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

    /// Two PEs whose threads agree pairwise, many at once, in whatever order they come.
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
