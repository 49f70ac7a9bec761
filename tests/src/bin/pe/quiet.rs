//! The promise of a quiet, checked without any messages: PE 0 reads PE 1's memory through `/proc/<pid>/mem` as soon as
//! its quiet returns. Arguments: `quiet` or `no-quiet` (a control), and the number of rounds. PE 0 prints `late: N` and
//! `cost: R`, the median time of a repeated quiet as a share of that of a put and its quiet.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use symrail::{Cmp, Result, Runtime, SignalUpdate, SymSlice};
use symrail_tests::pe;

const WORDS: usize = (256 << 10) / 8;

pub fn main() -> std::process::ExitCode {
    let (what, rounds) = (pe::arg(0, String::from("quiet")), pe::arg(1, 400u64));
    pe::run(|rt| {
        let block = rt.alloc_slice::<u64>(WORDS)?;
        let source = rt.alloc_slice::<u64>(WORDS)?;
        let about = rt.alloc_slice::<u64>(2)?;
        if rt.my_pe() == 1 {
            about.p(0, u64::from(std::process::id()), 0)?;
            about.p(1, block.as_ptr().addr() as u64, 0)?;
        }
        rt.barrier_all()?;
        if rt.my_pe() == 0 {
            about.wait_until(1, Cmp::Ne, 0)?;
            let memory = File::open(format!("/proc/{}/mem", about.read(0)?)).unwrap();
            let at = about.read(1)?;
            let late = (1..=rounds)
                .map(|round| is_late(&block, &source, round, what == "quiet", &memory, at))
                .sum::<Result<u64>>()?;
            println!("late: {late}");
            println!("cost: {}", cost(rt, &block)?);
        }
        rt.barrier_all()
    })
}

/// 1 if data of this round is missing in PE 1's memory after the quiet.
fn is_late(
    block: &SymSlice<u64>,
    source: &SymSlice<u64>,
    round: u64,
    quiet: bool,
    memory: &File,
    at: u64,
) -> Result<u64> {
    let rt = block.runtime();
    // The number of words, and of operations.
    let (count, operations): (usize, usize) = match round % 6 {
        0 => (1, 1),
        1 => (20, 20),
        2 => (WORDS, 1),
        3 => (2, 2),
        4 => (WORDS / 8, 1),
        _ => (64, 8),
    };
    source.write_slice(0, &vec![round; count])?;
    let each = count / operations;
    for i in 0..operations {
        match round % 6 {
            3 => block.atomic_set(i, round, 1)?,
            4 => {
                block.put_signal_nbi(1, source, 1, each - 1, SignalUpdate::set((block, 0), round), 1)?;
            }
            _ => block.put_nbi(i * each, source, i * each, each, 1)?,
        }
    }
    if quiet {
        rt.quiet()?;
    }
    let mut bytes = vec![0; count * 8];
    memory.read_exact_at(&mut bytes, at).unwrap();
    let late = bytes.chunks_exact(8).any(|word| word != round.to_ne_bytes());
    rt.quiet()?;
    Ok(late.into())
}

/// The cost of a repeated quiet, as a share of a put with its quiet.
fn cost(rt: &Runtime, block: &SymSlice<u64>) -> Result<f64> {
    let (mut with_put, mut repeated) = (Vec::new(), Vec::new());
    for i in 0..400 {
        let start = Instant::now();
        block.p(0, i, 1)?;
        rt.quiet()?;
        with_put.push(start.elapsed());
        let start = Instant::now();
        for _ in 0..10 {
            rt.quiet()?;
        }
        repeated.push(start.elapsed() / 10);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    Ok(median(&mut repeated) / median(&mut with_put))
}
