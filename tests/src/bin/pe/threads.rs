//! Devices and host threads move data through all proxy threads. The argument is the required number of these.
//!
//! With `rate` and a number of device threads instead, it measures how many puts of 8 B the device's threads perform in
//! a second, in windows of 64 with a quiet after each, and how many bytes by puts of 1 MiB.
use std::time::Instant;

use symrail::{Result, Runtime};
use symrail_kernels::cpu::{DeviceError, Grid, Symmetric, Thread};
use symrail_tests::pattern::mix;
use symrail_tests::{device, pe};
use symrail_transport::proxy_threads::Share;

/// Words of a block: so many that a host thread hands it to a proxy thread.
const WORDS: usize = (64 << 10) / 8;
/// Blocks of the host thread, and of each thread of the device.
const BLOCKS: usize = 8;
const DEVICE_THREADS: usize = 8;
const ROUNDS: u64 = 20;

pub fn main() -> std::process::ExitCode {
    if pe::args().nth(1).is_some_and(|word| word == "rate") {
        let device_threads = pe::arg(1, 8) as usize;
        return pe::run(|rt| {
            let small = rate(rt, device_threads, 1, 64, 4_000)? / 1e6;
            let large = rate(rt, device_threads, (1 << 20) / 8, 4, 100)? * f64::from(1 << 20) / 1e9;
            println!("PE {}: {} proxy threads: {small:.2} M puts/s, {large:.2} GB/s", rt.my_pe(), rt.proxy_threads());
            Ok(())
        });
    }
    let threads = pe::arg(0, 1) as usize;
    pe::run(|rt| {
        assert_eq!(rt.proxy_threads(), threads, "proxy threads");
        move_blocks(rt)?;
        let (counters, mut before) = (rt.counters(), 0);
        for thread in 0..threads {
            let lanes = Share::of(thread, threads, rt.rails().len()).rails.len();
            let moved: u64 = counters[before..before + lanes].iter().map(|lane| lane.bytes).sum();
            assert!(moved > ROUNDS * 8 * WORDS as u64, "proxy thread {thread} of {threads} moved {moved} bytes only");
            before += lanes;
        }
        Ok(())
    })
}

fn content(round: u64, pe: u32, block: usize, word: usize) -> u64 {
    mix(round << 32 | u64::from(pe), (block * WORDS + word) as u64)
}

fn move_blocks(rt: &Runtime) -> Result<()> {
    let (me, next) = (rt.my_pe(), pe::neighbour(rt, 1));
    let all = BLOCKS + DEVICE_THREADS;
    let (data, source) = (rt.alloc_slice::<u64>(all * WORDS)?, rt.alloc_slice::<u64>(all * WORDS)?);
    let view = device::view(rt);
    let [to, from] = [&data, &source].map(|slice| device::name::<u64, u64>(&view, rt, slice).unwrap());
    for round in 1..=ROUNDS {
        for word in 0..all * WORDS {
            source.write(word, content(round, me, word / WORDS, word % WORDS))?;
        }
        rt.barrier_all()?;
        for block in 0..BLOCKS {
            let at = block * WORDS;
            data.put_nbi(at, &source, at, WORDS, next)?;
        }
        let grid = Grid { blocks: DEVICE_THREADS, threads_per_block: 1 };
        let put = |thread: &Thread<'_>| put_block(thread, to, from, next);
        grid.launch(&view, put).unwrap_or_else(|error| panic!("PE {me}: device: {error}"));
        rt.barrier_all()?;
        let before = pe::neighbour(rt, rt.n_pes() - 1);
        for word in 0..all * WORDS {
            let expected = content(round, before, word / WORDS, word % WORDS);
            assert_eq!(data.read(word)?, expected, "round {round}, word {word}");
        }
    }
    rt.barrier_all()
}

fn put_block(
    thread: &Thread<'_>,
    to: Symmetric<u64>,
    from: Symmetric<u64>,
    next: u32,
) -> std::result::Result<(), DeviceError> {
    let at = ((BLOCKS + thread.thread_id()) * WORDS) as u64;
    thread.put_nbi(to.part(at, WORDS as u64)?, from.part(at, WORDS as u64)?, next)?;
    thread.quiet()
}

/// Puts in a second, of `words` words each, in `windows` windows with a quiet after each.
fn rate(rt: &Runtime, device_threads: usize, words: usize, window: usize, windows: usize) -> Result<f64> {
    let each = words * window;
    let (data, source) = (rt.alloc_slice::<u64>(device_threads * each)?, rt.alloc_slice::<u64>(words)?);
    let view = device::view(rt);
    let [to, from] = [&data, &source].map(|slice| device::name::<u64, u64>(&view, rt, slice).unwrap());
    let next = pe::neighbour(rt, 1);
    let grid = Grid { blocks: device_threads, threads_per_block: 1 };
    let run = |windows: usize| {
        let kernel = |thread: &Thread<'_>| {
            for _ in 0..windows {
                for put in 0..window {
                    let at = (thread.thread_id() * each + put * words) as u64;
                    thread.put_nbi(to.part(at, words as u64)?, from.part(0, words as u64)?, next)?;
                }
                thread.quiet()?;
            }
            Ok::<(), DeviceError>(())
        };
        grid.launch(&view, kernel).unwrap_or_else(|error| panic!("PE {}: device: {error}", rt.my_pe()));
    };
    run(windows / 10);
    rt.barrier_all()?;
    let begun = Instant::now();
    run(windows);
    let took = begun.elapsed().as_secs_f64();
    rt.barrier_all()?;
    Ok((device_threads * window * windows) as f64 / took)
}
