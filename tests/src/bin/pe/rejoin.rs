//! Joins a job, works and leaves, repeatedly in one process. Argument: the number of times. Prints `grown: KIB`
//! (resident memory), `fds: N` and `threads: N`, second half against first.
use symrail::{Cmp, Runtime, SignalUpdate};
use symrail_tests::pe;
use symrail_tests::used::Used;

/// Words that each PE puts: small and large operations both.
const WORDS: usize = 20_000;

pub fn main() -> std::process::ExitCode {
    let rounds = pe::arg(0, 40u64);
    let mut used = Vec::new();
    for round in 0..rounds {
        let rt = Runtime::init().expect("joining");
        symrail_tests::path::check(&rt);
        work(&rt, round).expect("working");
        rt.finalize().expect("leaving");
        used.push(Used::now());
    }
    // The first rounds fill caches. Afterwards memory varies by what the allocator has just returned.
    let (early, late) = used[used.len() / 4..].split_at(used.len() * 3 / 8);
    let least = |of: &[Used]| of.iter().map(|used| used.kib).min().unwrap();
    println!("grown: {}", least(late) - least(early));
    println!("fds: {}", late.last().unwrap().fds as i64 - early[0].fds as i64);
    // The kernel lists a thread for a moment after it was joined.
    let fewest = |of: &[Used]| of.iter().map(|used| used.threads).min().unwrap() as i64;
    println!("threads: {}", fewest(late) - fewest(early));
    std::process::ExitCode::SUCCESS
}

/// Each PE puts a block and a signal to the next PE, and increments a counter there.
fn work(rt: &Runtime, round: u64) -> symrail::Result<()> {
    let (target, counters) = (rt.alloc_slice::<u64>(WORDS)?, rt.alloc_slice::<u64>(2)?);
    let (next, before) = (pe::neighbour(rt, 1), pe::before(rt, 1));
    let words = |pe: u32| -> Vec<u64> { (0..WORDS as u64).map(|i| u64::from(pe) << 48 | round << 24 | i).collect() };
    target.put_signal(0, &words(rt.my_pe()), SignalUpdate::set((&counters, 0), 1), next)?;
    assert_eq!(counters.atomic_fetch_add(1, 1, next)?, 0, "round {round}");
    counters.wait_until(0, Cmp::Eq, 1)?;
    assert!(target.to_vec()? == words(before), "round {round}: wrong data from PE {before}");
    rt.barrier_all()?;
    assert_eq!(counters.read(1)?, 1, "round {round}");
    Ok(())
}
