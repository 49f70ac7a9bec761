//! Ranks of one job in this process, which leave together: programs end their communicators one after the other in one
//! thread, where a rank that waited for all others would wait for ever for the next one of that thread.

use std::collections::BTreeMap;
use std::sync::Mutex;

use symrail_core::lock;

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
    pub fn leave(self, left: T) -> Vec<T> {
        let place = std::mem::ManuallyDrop::new(self);
        place.all.leave(place.job, Some(left))
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
    use symrail::with_timeout;

    use super::*;
    use crate::ids::tests::{Rank, job};
    use crate::threads::on_each;

    #[test]
    fn the_last_rank_of_a_thread_leaves_with_all_of_them() {
        static ALL: Together<u32, Rank> = Together::new();
        let mut ranks = job(3, 30);
        let elsewhere = ranks.remove(1);
        let places = [(); 2].map(|()| ALL.enter(1));
        let _other_job = ALL.enter(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| elsewhere.runtime.barrier_all());
            let mut ended = Vec::new();
            for (place, rank) in places.into_iter().zip(ranks) {
                let all = place.leave(rank);
                ended.push(all.len());
                on_each(all, |rank| Ok(with_timeout(rank.runtime.timeout(), || rank.runtime.barrier_all())?)).unwrap();
            }
            assert_eq!(ended, [0, 2]);
            other.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_rank_that_leaves_on_its_own_ends_those_that_were_kept() {
        static ALL: Together<u32, std::sync::Arc<()>> = Together::new();
        let kept = std::sync::Arc::new(());
        let [one, other, last] = [(); 3].map(|()| ALL.enter(1));
        assert!(one.leave(kept.clone()).is_empty());
        drop(other);
        assert_eq!(std::sync::Arc::strong_count(&kept), 2, "another rank is there");
        drop(last);
        assert_eq!((std::sync::Arc::strong_count(&kept), lock(&ALL.0).len()), (1, 0));
        assert_eq!(ALL.enter(1).leave(kept).len(), 1);
    }
}
