//! PE 0 puts 4 KiB at a time to PE 1 and waits for each: alone, and beside large puts of another of its contexts.
//! Arguments: the number of such puts; `bulk`, or `urgent` if the large puts are not bulk; the seconds for which
//! these are measured alone. Prints the times in microseconds, and MB/s of the large puts alone and beside the small
//! ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail::{Context, Priority, Result, Runtime, SymSlice};
use symrail_tests::pe;

/// Words of a small put, and of a large one, of which so many are under way at a time.
const SMALL: usize = 4096 / 8;
const LARGE: usize = (1 << 20) / 8;
const WINDOW: usize = 32;
/// The time of large puts before they are measured.
const BEFORE: Duration = Duration::from_secs(1);

pub fn main() -> std::process::ExitCode {
    let count = pe::arg(0, 300) as usize;
    let priority = if pe::args().nth(2).as_deref() == Some("urgent") { Priority::Urgent } else { Priority::Bulk };
    let alone = Duration::from_secs(pe::arg(2, 3));
    pe::run(|rt| measure(rt, count, priority, alone))
}

fn measure(rt: &Runtime, count: usize, priority: Priority, alone: Duration) -> Result<()> {
    let target = rt.alloc_slice::<u64>(SMALL + WINDOW * LARGE)?;
    let source = rt.alloc_slice::<u64>(SMALL + WINDOW * LARGE)?;
    rt.barrier_all()?;
    if rt.my_pe() == 0 {
        let small = rt.create_context()?;
        let large = rt.create_context()?;
        large.set_priority(priority);
        put_many(&small, &target, &source, count / 10)?;
        let idle = put_many(&small, &target, &source, count)?;
        let (ends, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        let (alone, beside, rate) = std::thread::scope(|threads| {
            let bulk = threads.spawn(|| stream(&large, &target, &source, (&ends, &moved)));
            std::thread::sleep(BEFORE);
            let rate_over = |act: &mut dyn FnMut() -> Result<()>| {
                let (from, begun) = (moved.load(Ordering::Relaxed), Instant::now());
                act().map(|()| (moved.load(Ordering::Relaxed) - from) as f64 / begun.elapsed().as_secs_f64() / 1e6)
            };
            let alone = rate_over(&mut || {
                std::thread::sleep(alone);
                Ok(())
            });
            let mut times = Vec::new();
            let rate = rate_over(&mut || {
                times = put_many(&small, &target, &source, count)?;
                Ok(())
            });
            ends.store(true, Ordering::Relaxed);
            bulk.join().expect("the thread of large puts panicked")?;
            Ok::<_, symrail::Error>((alone?, times, rate?))
        })?;
        let of = |times: &[u64], part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
        println!(
            "idle_p50 {} idle_p99 {} beside_p50 {} beside_p99 {} ratio {:.2} alone_mbs {alone:.1} beside_mbs {rate:.1}",
            of(&idle, 50),
            of(&idle, 99),
            of(&beside, 50),
            of(&beside, 99),
            of(&beside, 99) as f64 / of(&idle, 99) as f64
        );
        small.destroy()?;
        large.destroy()?;
    }
    rt.barrier_all()
}

/// The times of so many small puts, sorted.
fn put_many(context: &Context, target: &SymSlice<u64>, source: &SymSlice<u64>, count: usize) -> Result<Vec<u64>> {
    let view = target.on(context)?;
    let one = || {
        let begun = Instant::now();
        view.put_nbi(0, source, 0, SMALL, 1)?;
        context.quiet()?;
        Ok(begun.elapsed().as_micros() as u64)
    };
    let mut times = (0..count).map(|_| one()).collect::<Result<Vec<u64>>>()?;
    times.sort_unstable();
    Ok(times)
}

/// Large puts until the end, with the count of their bytes.
fn stream(
    context: &Context,
    target: &SymSlice<u64>,
    source: &SymSlice<u64>,
    (ends, moved): (&AtomicBool, &AtomicU64),
) -> Result<()> {
    let view = target.on(context)?;
    while !ends.load(Ordering::Relaxed) {
        for at in 0..WINDOW {
            let place = SMALL + at * LARGE;
            view.put_nbi(place, source, place, LARGE, 1)?;
        }
        context.quiet()?;
        moved.fetch_add((WINDOW * LARGE * 8) as u64, Ordering::Relaxed);
    }
    Ok(())
}
