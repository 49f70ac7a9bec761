//! The cost of calls on the wire.

use symrail::Runtime;
use symrail_ep::high_throughput::{Parts, Tokens};
use symrail_ep::low_latency::Shape;
use symrail_ep::plan::sizes;
use symrail_ep::{DataType, HighThroughput, Layout, LowLatency, TopK, WaitLimit};
use symrail_kernels::cpu::{Cmp, DeviceError, Grid, SignalUpdate, Thread};
use symrail_tests::device;
use symrail_transport::endpoint::LaneCounters;

use super::case::rows;
use super::high::hosts;

/// Prints how often tokens for all ranks cross to each other host, from the bytes sent over rails.
pub fn cross(rt: &Runtime) -> symrail_ep::Result<()> {
    let (tokens, bytes, ranks) = (200, 4096, rt.n_pes() as usize);
    let mut buffers =
        HighThroughput::new(rt, sizes::high_throughput(ranks, 16, sizes::largest_row(bytes)), WaitLimit::of(rt))?;
    let (data, slots) = (vec![1; tokens * bytes], (0..ranks as i64).collect::<Vec<_>>().repeat(tokens));
    let weights = vec![1.0; slots.len()];
    let topk = TopK::new(&slots, ranks)?;
    let layout = Layout::of(&topk, ranks, ranks)?;
    let tokens_of = Tokens { rows: rows(&data, bytes), scales: None, topk: Some((topk, &weights)) };
    let sent = |before: &[LaneCounters]| {
        let sum = |counters: &[LaneCounters]| counters.iter().map(|lane| lane.bytes).sum::<u64>();
        (sum(&rt.counters()) - sum(before)) as f64 / (tokens * bytes * (hosts(rt).len() - 1)) as f64
    };
    rt.barrier_all()?;
    let before = rt.counters();
    let (received, handle) = buffers.dispatch(&tokens_of, &layout)?;
    rt.quiet()?;
    let dispatched = sent(&before);
    rt.barrier_all()?;
    let before = rt.counters();
    let parts =
        Parts { rows: rows(&received.rows, bytes), element: DataType::Float32, weights: None, biases: [None, None] };
    buffers.combine(&parts, &handle)?;
    rt.quiet()?;
    println!("crossings {dispatched:.3} back {:.3}", sent(&before));
    rt.barrier_all()?;
    buffers.free()
}

/// The tokens of each rank, and the number of rounds.
const TOKENS: usize = 128;
const ROUNDS: usize = 20;

/// The number of writes, of requests in messages, of acknowledgements and of fences of this PE.
fn costs(rt: &Runtime) -> symrail_ep::Result<[u64; 4]> {
    rt.quiet()?;
    let counters = rt.counters();
    let sum = |of: fn(&LaneCounters) -> u64| counters.iter().map(of).sum();
    Ok([sum(|lane| lane.writes), sum(|lane| lane.requests), sum(|lane| lane.acknowledgements), rt.fences()])
}

/// Prints the cost of rounds since `before`, and how often a token crossed to another rank or returned from there.
fn print(rt: &Runtime, before: [u64; 4]) -> symrail_ep::Result<()> {
    let now = costs(rt)?;
    let [writes, requests, acknowledgements, fences] = std::array::from_fn(|i| now[i] - before[i]);
    let crossings = 2 * ROUNDS * TOKENS * (rt.n_pes() as usize - 1);
    println!(
        "crossings {crossings} writes {writes} requests {requests} acknowledgements {acknowledgements} fences {fences}"
    );
    Ok(rt.barrier_all()?)
}

/// Prints the cost on the wire of low-latency rounds with 128 tokens, each for every rank. Checks that they cost
/// nothing if all other ranks are masked.
pub fn count(rt: &Runtime) -> symrail_ep::Result<()> {
    let (bytes, ranks) = (256, rt.n_pes() as usize);
    let shape = Shape { most_tokens: TOKENS, token: bytes, scales: 0, experts: ranks, k: ranks };
    let mut buffers = LowLatency::new(rt, shape, WaitLimit::of(rt))?;
    let (data, slots) = (vec![0; TOKENS * bytes], (0..ranks as i64).collect::<Vec<_>>().repeat(TOKENS));
    let topk = TopK::new(&slots, ranks)?;
    let rounds = |buffers: &mut LowLatency| -> symrail_ep::Result<()> {
        for _ in 0..ROUNDS {
            let sent = buffers.send_dispatch(rows(&data, bytes), None, topk)?;
            let found = buffers.receive_dispatch(&sent)?;
            let sent = buffers.send_combine(rows(&found.rows, bytes), DataType::Float32, &found.ranges)?;
            buffers.receive_combine(&sent, topk, &vec![1.0; slots.len()])?;
        }
        Ok(())
    };
    rt.barrier_all()?;
    let before = costs(rt)?;
    rounds(&mut buffers)?;
    print(rt, before)?;
    (0..rt.n_pes()).filter(|&rank| rank != rt.my_pe()).try_for_each(|rank| buffers.mask(rank, true))?;
    let [writes, ..] = costs(rt)?;
    rounds(&mut buffers)?;
    assert_eq!(costs(rt)?[0], writes, "something goes to masked ranks");
    rt.barrier_all()?;
    buffers.free()
}

/// The parts of a GPU's dispatch to a rank behind the proxy, and of its returning rows: `PARTS` of
/// ep/src/cuda/low_latency.rs.
const PARTS: usize = 16;

/// Prints the same cost for requests as a GPU's kernels make them, by threads of the CPU device. A block's tokens for a
/// rank are one put-with-signal, and so are the rows that return for them.
pub fn count_parts(rt: &Runtime) -> symrail_ep::Result<()> {
    let (me, ranks, part) = (rt.my_pe(), rt.n_pes() as usize, TOKENS / PARTS * 7168);
    // For both directions and each rank, its parts, at the source and at the target.
    let all = 2 * ranks * PARTS;
    let (inbox, outbox, words) =
        (rt.alloc_slice::<u8>(all * part)?, rt.alloc_slice::<u8>(all * part)?, rt.alloc_slice::<u64>(all)?);
    let view = device::view(rt);
    let [to, from] = [&inbox, &outbox].map(|slice| device::name::<u8, u8>(&view, rt, slice).unwrap());
    let words_of = device::name::<u64, u64>(&view, rt, &words).unwrap();
    let round = |thread: &Thread<'_>, round: usize| -> Result<(), DeviceError> {
        for way in 0..2 {
            let at = |rank: u32| ((way * ranks + rank as usize) * PARTS + thread.block_id()) as u64;
            let bytes = |rank: u32| at(rank) * part as u64;
            let others = || (0..rt.n_pes()).filter(|&rank| rank != me);
            for rank in others() {
                let (dest, source) = (to.part(bytes(me), part as u64)?, from.part(bytes(rank), part as u64)?);
                thread.put_signal_nbi(dest, source, SignalUpdate::set(words_of.at(at(me))?, round as u64), rank)?;
            }
            for rank in others() {
                thread.signal_wait_until(words_of.at(at(rank))?, Cmp::Ge, round as u64)?;
            }
        }
        // As at the end of a round, the sources of the puts become reusable.
        thread.quiet()
    };
    rt.barrier_all()?;
    let before = costs(rt)?;
    for number in 1..=ROUNDS {
        let grid = Grid { blocks: PARTS, threads_per_block: 1 };
        grid.launch(&view, |thread| round(thread, number)).unwrap_or_else(|error| panic!("PE {me}: device: {error}"));
    }
    print(rt, before)?;
    words.free()?;
    outbox.free()?;
    Ok(inbox.free()?)
}
