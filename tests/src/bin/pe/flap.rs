//! Two PEs that put, get, signal and add to each other while rails fail, and count exactly. Argument: a file, created
//! when both PEs have joined. Whoever removes it says that the outage is over; then the PEs go on until all of their
//! rails are used again.
//!
//! Each sends the other blocks whose signals are counted; it sends a block after a signal that the other has verified
//! the previous one in its slot. Each adds to a counter, which must hold the sum at the end; and fetches and adds,
//! which must return each value once, in order. So any loss or repetition is detected.
#![allow(clippy::needless_range_loop)] // a slot is an index of several things

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use symrail::{Result, Runtime, SignalOp, SignalUpdate, SymSlice};
use symrail_tests::pattern::mix;
use symrail_tests::pe;

const SLOTS: usize = 8;
/// A rail is used again when it has taken so many work requests after the outage.
const AGAIN: u64 = 16;
/// For how long after the outage that is waited for: a CPU may be emulated.
const LIMIT: Duration = Duration::from_secs(60);
/// Words of the largest block: so many that they go over several rails.
const WORDS: usize = (256 << 10) / 8;

pub fn main() -> std::process::ExitCode {
    let file = pe::args().nth(1).expect("a file's name");
    pe::run(|rt| exchange(rt, std::path::Path::new(&file)))
}

/// Words of block `number` in `slot`: from one word to all, each power of two with equal probability.
fn words(slot: usize, number: u64) -> usize {
    let random = mix(slot as u64, number);
    (1 + (random >> 8) as usize % (1 << (random % 16))).min(WORDS)
}

/// The block's value at `i`.
fn word(slot: usize, number: u64, i: usize) -> u64 {
    mix(number * SLOTS as u64 + slot as u64, i as u64)
}

fn verify(data: &SymSlice<u64>, slot: usize, number: u64) -> Result<()> {
    for i in 0..words(slot, number) {
        let (seen, expected) = (data.read(slot * WORDS + i)?, word(slot, number, i));
        assert_eq!(seen, expected, "word {i} of block {number} in slot {slot}");
    }
    Ok(())
}

fn exchange(rt: &Runtime, outage: &std::path::Path) -> Result<()> {
    let (me, peer) = (rt.my_pe(), pe::neighbour(rt, 1));
    let data = rt.alloc_slice::<u64>(SLOTS * WORDS)?;
    let source = rt.alloc_slice::<u64>(SLOTS * WORDS)?;
    // Blocks that have arrived, and own blocks that the peer has verified.
    let come = rt.alloc_slice::<u64>(SLOTS)?;
    let verified = rt.alloc_slice::<u64>(SLOTS)?;
    // Counters for adds without and with a result, and the peer's final report: its blocks, its additions.
    let counters = rt.alloc_slice::<u64>(2)?;
    let totals = rt.alloc_slice::<u64>(SLOTS + 2)?;
    // Whether the peer's rails are used again.
    let recovered = rt.alloc_slice::<u64>(1)?;
    let mut sent = [0u64; SLOTS];
    let mut seen = [0u64; SLOTS];
    let (mut added, mut fetched, mut longest) = (0u64, 0u64, Duration::ZERO);
    rt.barrier_all()?;
    if me == 0 {
        std::fs::write(outage, []).expect("the file can be written");
    }
    rt.barrier_all()?;
    let mut receive = |slot: usize| -> Result<()> {
        let now = come.read(slot)?;
        assert!(
            now <= seen[slot] + 1,
            "slot {slot} was signalled {now} times, {} blocks were expected",
            seen[slot] + 1
        );
        if now == seen[slot] + 1 {
            verify(&data, slot, now)?;
            seen[slot] = now;
            verified.signal_op(slot, 1, SignalOp::Add, peer)?;
        }
        Ok(())
    };
    let mut after_outage = None;
    let mut told = false;
    loop {
        if after_outage.is_none() && !outage.exists() {
            after_outage = Some((Instant::now(), use_of_rails(rt)));
        }
        if let Some((over, before)) = &after_outage {
            if !told && used_since(rt, before).all(|(_, count)| count >= AGAIN) {
                recovered.p(0, 1, peer)?;
                told = true;
            }
            if (told && recovered.read(0)? == 1) || over.elapsed() > LIMIT {
                break;
            }
        }
        let round = Instant::now();
        for slot in 0..SLOTS {
            receive(slot)?;
            let ready = verified.read(slot)?;
            assert!(ready <= sent[slot], "{ready} blocks of slot {slot} were verified, {} were sent", sent[slot]);
            if ready < sent[slot] {
                continue;
            }
            sent[slot] += 1;
            let number = sent[slot];
            let block: Vec<u64> = (0..words(slot, number)).map(|i| word(slot, number, i)).collect();
            source.write_slice(slot * WORDS, &block)?;
            let at = slot * WORDS;
            data.put_signal_nbi(at, &source, at, block.len(), SignalUpdate::add((&come, slot), 1), peer)?;
            counters.atomic_add(0, 1, peer)?;
            added += 1;
        }
        let value = counters.atomic_fetch_add(1, 1, peer)?;
        assert_eq!(value, fetched, "the value that was fetched");
        fetched += 1;
        rt.quiet()?;
        longest = longest.max(round.elapsed());
    }
    for (slot, number) in sent.iter().enumerate() {
        totals.p(slot, *number, peer)?;
    }
    totals.p(SLOTS, added, peer)?;
    totals.p(SLOTS + 1, fetched, peer)?;
    rt.barrier_all()?;
    for slot in 0..SLOTS {
        receive(slot)?;
    }
    rt.barrier_all()?;
    for slot in 0..SLOTS {
        assert_eq!(come.read(slot)?, totals.read(slot)?, "blocks of slot {slot} that came");
        assert_eq!(verified.read(slot)?, sent[slot], "blocks of slot {slot} that were verified");
    }
    assert_eq!(counters.read(0)?, totals.read(SLOTS)?, "additions");
    assert_eq!(counters.read(1)?, totals.read(SLOTS + 1)?, "additions with answers");
    let failed: u64 = rt.counters().iter().map(|c| c.failed).sum();
    println!(
        "PE {me}: {} blocks, {added} additions and {fetched} with answers, all of them once; {failed} failures; a round took \
         at most {} ms",
        sent.iter().sum::<u64>(),
        longest.as_millis()
    );
    for (rail, count) in after_outage.iter().flat_map(|(_, before)| used_since(rt, before)) {
        println!("PE {me}: {count} work requests over {rail} after the outage");
    }
    rt.barrier_all()
}

/// Work requests of every rail so far, of both endpoints.
fn use_of_rails(rt: &Runtime) -> BTreeMap<String, u64> {
    let (rails, mut used) = (rt.rails(), BTreeMap::new());
    for (lane, c) in rt.counters().iter().enumerate() {
        *used.entry(rails[lane % rails.len()].name.clone()).or_default() += c.writes + c.reads + c.messages;
    }
    used
}

/// The work requests of every rail that `before` does not have.
fn used_since(rt: &Runtime, before: &BTreeMap<String, u64>) -> impl Iterator<Item = (String, u64)> {
    use_of_rails(rt).into_iter().map(|(rail, count)| {
        let before = before.get(&rail).copied().unwrap_or(0);
        (rail, count - before)
    })
}
