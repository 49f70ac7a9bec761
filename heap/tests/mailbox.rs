//! Writes that a temporary reader may take: each is done once, in order, by the reader or by the copy engine.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use symrail_heap::CopyEngine;
use symrail_heap::copy_engine::{Copy, CopyCompletion};
use symrail_heap::guarded::{GuardedCopyEngine, GuardedMemory};
use symrail_heap::mailbox::{ENTRIES, Reader, pair};
use symrail_heap::mailbox_copy_engine::MailboxCopyEngine;

const LIMIT: Duration = Duration::from_secs(60);

struct Parts {
    memory: Arc<GuardedMemory>,
    copy_engine: MailboxCopyEngine<GuardedCopyEngine>,
    reader: Reader,
}

fn parts(seed: u64) -> Parts {
    let memory = GuardedMemory::new(1 << 16).unwrap();
    let copy_engine = GuardedCopyEngine::new(Arc::clone(&memory), 1 << 16, seed).unwrap();
    let (mailbox, reader) = pair();
    Parts { memory, copy_engine: MailboxCopyEngine::new(copy_engine, mailbox), reader }
}

fn word(memory: &GuardedMemory, address: usize) -> &AtomicU64 {
    // SAFETY: an aligned word of the memory, accessed by atomics.
    unsafe { AtomicU64::from_ptr(memory.reachable(address, 8).unwrap().cast()) }
}

/// Starts to write `value` to the memory's word `index`, from a place of its own in the staging buffer.
fn write(copy_engine: &mut impl CopyEngine, base: usize, index: usize, value: u64, ticket: u64) {
    let place = (ticket as usize % 1024) * 64;
    let host = copy_engine.staging_buffer().0.as_ptr().wrapping_add(place);
    // SAFETY: inside of the staging buffer; the place is free again after so many tickets.
    unsafe {
        host.cast::<u64>().write(value);
        copy_engine.start(Copy { memory: base + index * 8, host, len: 8, to_memory: true }, ticket).unwrap();
    }
}

fn polled(copy_engine: &mut impl CopyEngine) -> Vec<u64> {
    let mut ended = Vec::new();
    copy_engine.poll(&mut |CopyCompletion { ticket, result }| {
        result.unwrap();
        ended.push(ticket);
    });
    ended
}

#[test]
fn a_waiting_reader_writes_and_returns_the_rest() {
    let Parts { memory, mut copy_engine, mut reader } = parts(1);
    let base = memory.base().addr().get();
    let stored = |address: usize, bytes: &[u8]| {
        word(&memory, address).store(u64::from_le_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
    };
    reader.set_present(true);
    for i in 0..3 {
        write(&mut copy_engine, base, i, 10 + i as u64, i as u64);
    }
    assert_eq!((polled(&mut copy_engine), copy_engine.pending()), (vec![], 3), "nobody has taken anything");
    assert!(reader.take(stored) && reader.take(stored));
    assert_eq!(polled(&mut copy_engine), [0, 1]);
    // The leaving reader has taken two: the third is the copy engine's, and never the next reader's.
    reader.set_present(false);
    reader.set_present(true);
    let started = Instant::now();
    let mut ended = Vec::new();
    while ended.is_empty() && started.elapsed() < LIMIT {
        assert!(!reader.take(stored), "an entry for an earlier reader");
        ended = polled(&mut copy_engine);
    }
    assert_eq!(ended, [2]);
    assert_eq!([0, 1, 2].map(|i| word(&memory, base + i * 8).load(Ordering::Relaxed)), [10, 11, 12]);
    assert_eq!(copy_engine.pending(), 0);
}

#[test]
fn what_is_large_stays_behind_what_a_reader_has_to_write() {
    let Parts { memory, mut copy_engine, mut reader } = parts(2);
    let base = memory.base().addr().get();
    reader.set_present(true);
    write(&mut copy_engine, base, 0, 1, 0);
    let host = copy_engine.staging_buffer().0.as_ptr().wrapping_add(32 << 10);
    // SAFETY: inside of the staging buffer.
    unsafe { copy_engine.start(Copy { memory: base, host, len: 4096, to_memory: true }, 1) }.unwrap();
    write(&mut copy_engine, base, 1, 2, 2);
    for _ in 0..100 {
        assert_eq!(polled(&mut copy_engine), [0; 0], "the reader has not written yet");
    }
    assert_eq!(copy_engine.writing(), 3);
    assert!(reader.take(|address, bytes| assert_eq!((address, bytes[0]), (base, 1))));
    assert!(!reader.take(|_, _| {}), "behind a copy of the copy_engine's nothing is left to the reader");
    let mut ended = Vec::new();
    for _ in 0..100 {
        ended.extend(polled(&mut copy_engine));
    }
    assert_eq!(ended, [0, 1, 2]);
    assert_eq!((word(&memory, base + 8).load(Ordering::Relaxed), word(&memory, base).load(Ordering::Relaxed)), (2, 0));
}

#[test]
fn a_full_mailbox_and_odd_sizes_are_the_movers() {
    let Parts { memory, mut copy_engine, mut reader } = parts(3);
    let base = memory.base().addr().get();
    reader.set_present(true);
    for (len, at) in [(3, 0), (16, 0), (8, 4), (4, 2)] {
        let host = copy_engine.staging_buffer().0.as_ptr();
        // SAFETY: inside of the staging buffer.
        unsafe { copy_engine.start(Copy { memory: base + at, host, len, to_memory: true }, 99) }.unwrap();
        while polled(&mut copy_engine).is_empty() {}
        assert!(!reader.take(|_, _| {}), "{len} bytes at {at}");
    }
    for i in 0..=ENTRIES as u64 {
        write(&mut copy_engine, base, i as usize, i, i);
    }
    let mut taken = 0;
    while reader.take(|address, _| assert_eq!(address, base + taken * 8)) {
        taken += 1;
    }
    assert_eq!(taken, ENTRIES);
    let mut ended = Vec::new();
    for _ in 0..100 {
        ended.extend(polled(&mut copy_engine));
    }
    assert_eq!(ended, (0..=ENTRIES as u64).collect::<Vec<_>>());
    assert_eq!(word(&memory, base + ENTRIES * 8).load(Ordering::Relaxed), ENTRIES as u64);
}

/// One thread appears, takes entries and leaves, one writes, and one reads: data is never older than the flag behind
/// it.
#[test]
fn each_write_is_done_once_and_in_order_whoever_comes_and_goes() {
    const ROUNDS: u64 = 5_000;
    let Parts { memory, mut copy_engine, mut reader } = parts(4);
    let base = memory.base().addr().get();
    let over = AtomicBool::new(false);
    let by_reader = std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let (mut count, mut random) = (0u64, 88_172_645_463_325_252u64);
            while !over.load(Ordering::Acquire) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                reader.set_present(true);
                for _ in 0..random % 64 {
                    std::thread::yield_now();
                    let taken = reader.take(|address, bytes| {
                        let value = u64::from_le_bytes(bytes.try_into().unwrap());
                        let before = word(&memory, address).swap(value, Ordering::Release);
                        assert_eq!(before + 1, value, "each value comes once, one behind the other");
                    });
                    count += u64::from(taken);
                }
                reader.set_present(false);
            }
            count
        });
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let flag = word(&memory, base + 8).load(Ordering::Acquire);
                let data = word(&memory, base).load(Ordering::Acquire);
                assert!(data >= flag, "data {data} behind flag {flag}");
                std::thread::yield_now();
            }
        });
        let (started, mut next, mut due) = (Instant::now(), 0, 0);
        while due < 2 * ROUNDS {
            assert!(started.elapsed() < LIMIT, "{due} of {next} came back");
            // Writes come in bursts: behind copies of the copy engine nothing would be left to the reader.
            for _ in 0..if copy_engine.pending() == 0 { 1 + next % 5 } else { 0 } {
                write(&mut copy_engine, base, (next & 1) as usize, next / 2 + 1, next);
                next += 1;
            }
            for ticket in polled(&mut copy_engine) {
                assert_eq!(ticket, due);
                due += 1;
            }
            std::thread::yield_now();
        }
        over.store(true, Ordering::Release);
        taking.join().unwrap()
    });
    let last = [0, 8].map(|at| word(&memory, base + at).load(Ordering::Relaxed));
    assert!(last.iter().all(|&value| (ROUNDS..ROUNDS + 3).contains(&value)), "{last:?}");
    assert!(by_reader > 0 && by_reader < 2 * ROUNDS, "both sides write: the reader {by_reader}");
}
