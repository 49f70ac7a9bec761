//! Two processes that are PEs of several jobs at once, which they leave in different orders and without waiting.
//! Started without a launcher.

use std::process::ExitCode;

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::{Cmp, Runtime, SignalUpdate};
use symrail_tests::unlaunched::{self, Other};

const JOBS: usize = 4;
const WORDS: usize = 20_000;

pub fn main() -> ExitCode {
    let Some((id, me)) = unlaunched::started() else {
        let id = uid::create(None).unwrap();
        let other = Other::start(unlaunched::this_program(), id, 1, 2);
        work(id, 0);
        Other::end_well([other]);
        return ExitCode::SUCCESS;
    };
    work(id, me);
    ExitCode::SUCCESS
}

fn work(id: UniqueId, me: u32) {
    let first = unlaunched::join(id, me, 2);
    let mut jobs: Vec<Runtime> = (0..JOBS).map(|_| unlaunched::join(next_id(&first), me, 2)).collect();
    for (number, job) in jobs.iter().enumerate() {
        let (words, ready) = (job.alloc_slice::<u64>(WORDS).unwrap(), job.alloc_slice::<u64>(1).unwrap());
        let of = |pe: u32| vec![u64::from(pe) << 32 | number as u64; WORDS];
        words.put_signal(0, &of(me), SignalUpdate::set((&ready, 0), 1), 1 - me).unwrap();
        ready.wait_until(0, Cmp::Eq, 1).unwrap();
        assert!(words.to_vec().unwrap() == of(1 - me), "PE {me}, job {number}");
        job.barrier_all().unwrap();
    }
    if me == 1 {
        jobs.reverse();
    }
    drop(jobs);
    first.barrier_all().unwrap();
    first.finalize().unwrap();
}

/// The id of a further job, created by PE 0.
fn next_id(first: &Runtime) -> UniqueId {
    let bytes = first.alloc_slice::<u8>(UniqueId::LEN).unwrap();
    if first.my_pe() == 0 {
        let id = uid::create(None).unwrap().to_bytes();
        (0..2).for_each(|pe| bytes.put(0, &id, pe).unwrap());
    }
    first.barrier_all().unwrap();
    let id = UniqueId::from_bytes(&bytes.to_vec().unwrap()).unwrap();
    first.barrier_all().unwrap();
    bytes.free().unwrap();
    id
}
