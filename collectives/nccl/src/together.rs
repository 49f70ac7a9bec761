//! Ranks of one job in this process, which leave together: programs end their communicators one after the other in one
//! thread, where a rank that waited for all others would wait for ever for the next one of that thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use symrail::{Runtime, SymSlice, with_timeout};
use symrail_core::lock;

use crate::guard::Failure;
use crate::ids::Ranks;
use crate::threads::on_each;

/// The ranks of this process, by their jobs.
pub struct Together<J, T>(Mutex<BTreeMap<J, Here<T>>>);

/// The ranks of a job.
struct Here<T> {
    /// How many have not left yet.
    staying: usize,
    left: Vec<T>,
}

impl<J: Ord + Copy, T> Together<J, T> {
    /// Without ranks.
    pub const fn new() -> Together<J, T> {
        Together(Mutex::new(BTreeMap::new()))
    }

    /// Another rank of a job.
    pub fn enter(&'static self, job: J) -> Place<J, T> {
        lock(&self.0).entry(job).or_insert_with(|| Here { staying: 0, left: Vec::new() }).staying += 1;
        Place { all: self, job }
    }

    /// A rank leaves, with what it leaves behind. Returns what all have left behind if it was the last one.
    fn leave(&self, job: J, left: Option<T>) -> Vec<T> {
        let mut all = lock(&self.0);
        let Some(here) = all.get_mut(&job) else { return Vec::new() };
        here.left.extend(left);
        here.staying -= 1;
        if here.staying > 0 {
            return Vec::new();
        }
        all.remove(&job).map_or_else(Vec::new, |here| here.left)
    }
}

/// A rank among those of its job. If it is dropped, the rank has left on its own, and the others do not wait for all.
pub struct Place<J: Ord + Copy + 'static, T: 'static> {
    all: &'static Together<J, T>,
    job: J,
}

impl<J: Ord + Copy, T> Place<J, T> {
    /// Leaves with `left`, which is kept until the last rank leaves: that one gets what all have left behind.
    fn leave(self, left: T) -> Vec<T> {
        let place = std::mem::ManuallyDrop::new(self);
        place.all.leave(place.job, Some(left))
    }
}

/// A rank that leaves.
pub struct Leaving<T> {
    pub runtime: Runtime,
    /// See [`Ranks`].
    pub board: Arc<SymSlice<u64>>,
    /// Ends its waits unless it is 0.
    pub ended: Arc<AtomicU32>,
    /// What stays until all ranks of the job have left.
    pub keeps: T,
}

impl<J: Ord + Copy, T: Send> Place<J, Leaving<T>> {
    /// Leaves. The last rank of this process waits for all ranks of the job, for each that has left before.
    ///
    /// # Errors
    /// Names ranks that have not come within `SYMRAIL_TIMEOUT_S`. All have left in any case. A rank that has left
    /// alone, or died, is no error: nothing is awaited from it.
    pub fn leave_with_all(self, leaving: Leaving<T>) -> Result<(), Failure> {
        let all = self.leave(leaving).into_iter().map(|one| ((one.runtime, one.board, one.ended), one.keeps));
        let (waiting, kept): (Vec<_>, Vec<_>) = all.unzip();
        let ends: Vec<_> = waiting.iter().map(|(.., ended)| Arc::clone(ended)).collect();
        let left = on_each(waiting, |(runtime, board, _)| {
            let ranks = Ranks { runtime: &runtime, board: &board };
            let left = with_timeout(runtime.timeout(), || ranks.leave());
            if left.is_err() {
                // The others would wait for this rank, which will not come.
                for ended in &ends {
                    ended.fetch_add(1, Ordering::AcqRel);
                }
            }
            Ok(left?)
        });
        // Not before: errors name the ranks that have not come, and not those that have left after an error.
        drop(kept);
        left
    }
}

impl<J: Ord + Copy, T> Drop for Place<J, T> {
    fn drop(&mut self) {
        drop(self.all.leave(self.job, None));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::ids::tests::{Rank, job, text};

    /// A rank whose waits can be ended.
    fn leaving(rank: Rank) -> Leaving<Rank> {
        let ended = Arc::new(AtomicU32::new(0));
        let (waits, poll) = (Arc::clone(&ended), Duration::from_millis(20));
        rank.runtime.set_interrupt(move || (waits.load(Ordering::Acquire) == 0).then_some(poll));
        Leaving { runtime: rank.runtime.clone(), board: Arc::clone(&rank.board), ended, keeps: rank }
    }

    #[test]
    fn ranks_of_a_thread_leave_one_after_the_other() {
        static ALL: Together<u32, Leaving<Rank>> = Together::new();
        let mut ranks = job(3, 30);
        let elsewhere = ranks.remove(1);
        let places = [(); 2].map(|()| ALL.enter(1));
        let _other_job = ALL.enter(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| elsewhere.runtime.barrier_all());
            for (place, rank) in places.into_iter().zip(ranks) {
                place.leave_with_all(leaving(rank)).unwrap();
            }
            other.join().unwrap().unwrap();
        });
    }

    #[test]
    fn ranks_that_leave_name_one_that_does_not() {
        static ALL: Together<u32, Leaving<Rank>> = Together::new();
        let mut ranks = job(3, 2);
        let _elsewhere = ranks.remove(1);
        let [first, last] = [(); 2].map(|()| ALL.enter(1));
        first.leave_with_all(leaving(ranks.remove(0))).unwrap();
        let error = text(last.leave_with_all(leaving(ranks.remove(0))));
        assert!(error.contains("missing there: PE 1"), "{error}");
    }

    #[test]
    fn a_rank_leaves_after_one_that_left_on_its_own() {
        static ALL: Together<u32, Leaving<Rank>> = Together::new();
        for same_process in [true, false] {
            let mut ranks = job(2, 30);
            let revoked = (ranks.remove(0), same_process.then(|| ALL.enter(1)));
            let excluded = ALL.enter(1);
            drop(revoked);
            excluded.leave_with_all(leaving(ranks.remove(0))).unwrap();
        }
    }

    /// PE 1 is gone. PE 2's proxy may write to PE 0 until it leaves, too.
    #[test]
    fn a_rank_that_is_gone_is_no_reason_not_to_wait_for_another_one() {
        static ALL: Together<u32, Leaving<Rank>> = Together::new();
        for comes in [true, false] {
            let mut ranks = job(3, if comes { 30 } else { 3 });
            drop(ranks.remove(1));
            let (place, mine, other) = (ALL.enter(1), ranks.remove(0), leaving(ranks.remove(0)));
            std::thread::scope(|scope| {
                let elsewhere = scope.spawn(|| {
                    static ELSEWHERE: Together<u32, Leaving<Rank>> = Together::new();
                    if comes { ELSEWHERE.enter(1).leave_with_all(other).map(|()| None) } else { Ok(Some(other)) }
                });
                let left = place.leave_with_all(leaving(mine));
                let stayed = elsewhere.join().unwrap().unwrap();
                match stayed {
                    None => left.unwrap(),
                    Some(_) => {
                        let why = text(left);
                        assert!(why.contains("PE 2"), "{why}");
                    }
                }
            });
        }
    }

    /// PE 2 has come into the barrier, and is lost there: PE 0 may have left it, when PE 1 learns of the loss.
    #[test]
    fn ranks_of_which_one_has_left_a_barrier_do_not_wait_for_it() {
        static ALL: Together<u32, Leaving<Rank>> = Together::new();
        let limit = 30;
        let mut ranks = job(3, limit);
        let lost = ranks.remove(2);
        let _ = with_timeout(Duration::from_millis(100), || lost.runtime.barrier_all());
        drop(lost);
        let places = [(); 2].map(|()| ALL.enter(1));
        let begun = Instant::now();
        for (place, rank) in places.into_iter().zip(ranks) {
            place.leave_with_all(leaving(rank)).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(limit), "one waited for the other");
    }

    #[test]
    fn a_rank_that_is_aborted_after_it_has_left_ends_the_others_waits() {
        static ALL: Together<u32, Leaving<Rank>> = Together::new();
        let limit = 40;
        let mut ranks = job(3, limit);
        let _elsewhere = ranks.remove(1);
        let [first, last] = [(); 2].map(|()| ALL.enter(1));
        let (one, other) = (leaving(ranks.remove(0)), leaving(ranks.remove(0)));
        one.ended.store(1, Ordering::Release);
        let begun = Instant::now();
        first.leave_with_all(one).unwrap();
        let error = text(last.leave_with_all(other));
        assert!(error.contains("PE 0 stopped waiting in a barrier"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(limit), "it had a limit, too");
    }

    #[test]
    fn a_rank_that_leaves_on_its_own_ends_those_that_were_kept() {
        static ALL: Together<u32, Arc<()>> = Together::new();
        let kept = Arc::new(());
        let [one, other, last] = [(); 3].map(|()| ALL.enter(1));
        assert!(one.leave(kept.clone()).is_empty());
        drop(other);
        assert_eq!(Arc::strong_count(&kept), 2, "another rank is there");
        drop(last);
        assert_eq!((Arc::strong_count(&kept), lock(&ALL.0).len()), (1, 0));
        assert_eq!(ALL.enter(1).leave(kept).len(), 1);
    }
}
