//! Channels between real threads: wrap-around, back-pressure, completion order, hostile slots, sleep.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use symrail_proxy::channel::layout::{HEADER_BYTES, SLOT_BYTES};
use symrail_proxy::channel::{Channel, Consumer, Local, Producer, PushError, Refused, Request, Width};
use symrail_transport::amo::{AmoOp, AmoType};

const LIMIT: Duration = Duration::from_secs(30);

fn p(value: u64) -> Request {
    Request::P { pe: 1, offset: 8, width: Width::W8, value }
}

/// The `index`-th request of `thread`. Each carries both numbers, in a different chunk each time.
fn numbered(thread: u64, index: u64) -> Request {
    let word = thread << 32 | index;
    match index % 4 {
        0 => Request::P { pe: 0, offset: word, width: Width::W4, value: word },
        1 => Request::Put { pe: 0, offset: word, local: Local::Address(word), size: word, reply: None },
        2 => {
            Request::Amo { pe: 0, offset: word, ty: AmoType::U64, op: AmoOp::CompareSwap, operand: word, compare: word }
        }
        _ => Request::Nop,
    }
}

fn word_of(request: Request) -> Option<u64> {
    match request {
        Request::P { offset, value, width: Width::W4, pe: 0 } if offset == value => Some(offset),
        Request::Put { offset, local: Local::Address(a), size, .. } if offset == a && a == size => Some(offset),
        Request::Amo { offset, operand, compare, .. } if offset == operand && operand == compare => Some(offset),
        _ => None,
    }
}

/// Set when the consumer has ended. If a producer still waits then, a check has failed.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn give_way(ended: &AtomicBool) {
    assert!(!ended.load(Ordering::Relaxed), "nobody reads any more");
    thread::yield_now();
}

#[test]
fn eight_producers_share_four_slots() {
    const EACH: u64 = 5_000;
    for as_gpu in [false, true] {
        let (producer, mut consumer) = Channel::new(4, 0).unwrap();
        let ended = &AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..8 {
                let producer = producer.clone();
                scope.spawn(move || {
                    for index in 0..EACH {
                        let request = numbered(thread, index);
                        let position = if as_gpu {
                            producer.push_as_gpu(&request, || give_way(ended))
                        } else {
                            producer.push::<Refused>(&request, || {
                                give_way(ended);
                                Ok(())
                            })
                        };
                        let position = position.unwrap();
                        assert!(position < producer.pushed());
                        // The producer is never more than the ring's slots ahead of taken requests, and so of completed
                        // ones.
                    }
                });
            }
            // Producers without a consumer would wait for ever.
            let _ended = Ended(ended);
            let mut seen: HashMap<u64, u64> = HashMap::new();
            let (mut taken, mut nops, mut since) = (0, 0, Instant::now());
            while taken < 8 * EACH {
                assert!(since.elapsed() < LIMIT, "stuck after {taken}");
                let Some((position, request)) = consumer.next() else {
                    thread::yield_now();
                    continue;
                };
                assert_eq!(position, taken, "positions come in order");
                (taken, since) = (taken + 1, Instant::now());
                if request == Request::Nop {
                    nops += 1;
                } else {
                    let word = word_of(request).unwrap();
                    let (thread, index) = (word >> 32, word & 0xffff_ffff);
                    let expected = seen.entry(thread).or_insert(0);
                    if *expected % 4 == 3 {
                        *expected += 1;
                    }
                    assert_eq!(index, *expected, "requests of one thread keep their order");
                    *expected += 1;
                }
                assert!(consumer.complete(position));
            }
            assert_eq!(nops, 2 * EACH);
            assert_eq!(consumer.next(), None);
        });
        assert_eq!(producer.completed(), 8 * EACH);
        assert_eq!(producer.errors(), 0);
    }
}

#[test]
fn a_full_ring_refuses_and_overwrites_nothing() {
    let (producer, mut consumer) = Channel::new(4, 0).unwrap();
    for value in 0..4 {
        assert_eq!(producer.try_push(&p(value)), Ok(value));
    }
    assert_eq!(producer.try_push(&p(4)), Err(PushError::Full { slots: 4 }));
    let mut refusals = 3;
    let gave_up = producer.push(&p(4), || {
        refusals -= 1;
        if refusals == 0 { Err(PushError::Full { slots: 0 }) } else { Ok(()) }
    });
    assert_eq!(gave_up, Err(PushError::Full { slots: 0 }), "the caller decides how long to wait");
    assert_eq!(producer.pushed(), 4, "nothing was reserved");
    for value in 0..4 {
        assert_eq!(consumer.next(), Some((value, p(value))));
    }
    assert_eq!(producer.try_push(&p(4)), Ok(4), "half a ring taken is published without a call to publish");
}

#[test]
fn the_flush_word_is_the_completed_prefix() {
    let (producer, mut consumer) = Channel::new(8, 0).unwrap();
    for value in 0..6 {
        producer.try_push(&p(value)).unwrap();
    }
    while consumer.next().is_some() {}
    assert!(!consumer.complete(6), "not a request yet");
    for (position, prefix) in [(3, 0), (1, 0), (0, 2), (2, 4), (5, 4), (4, 6)] {
        if position == 1 {
            assert!(consumer.fail(position));
        } else {
            assert!(consumer.complete(position));
        }
        assert!(!consumer.fail(position), "once only");
        consumer.publish();
        assert_eq!(producer.completed(), prefix);
        assert_eq!(producer.errors(), u64::from(prefix > 0));
    }
    assert_eq!(consumer.incomplete(), 0);
}

#[test]
fn too_many_incomplete_requests_hold_the_ring_back() {
    let (producer, mut consumer) = Channel::new(4, 0).unwrap();
    let mut taken = 0;
    loop {
        while producer.try_push(&p(0)).is_ok() {}
        let before = taken;
        while consumer.next().is_some() {
            taken += 1;
        }
        if taken == before {
            break;
        }
    }
    assert_eq!(consumer.incomplete(), taken);
    assert!((4096..=8192).contains(&taken), "bounded: {taken}");
    assert!(consumer.complete(0));
    assert!(consumer.next().is_some(), "one done, one more taken");
}

/// Writes words into a slot as a device that follows no protocol.
fn scribble(producer: &Producer, slot: usize, words: [u64; 8]) {
    let base = producer.memory().base().as_ptr();
    for (index, word) in words.into_iter().enumerate().rev() {
        // SAFETY: inside the ring, aligned, and accessed by everyone through atomics.
        let at = unsafe { AtomicU64::from_ptr(base.add(HEADER_BYTES + slot * SLOT_BYTES + index * 8).cast()) };
        at.store(word, Ordering::Release);
    }
}

#[test]
fn hostile_slots_are_invalid_requests_and_the_ring_goes_on() {
    const NOW: u64 = 1 << 63;
    let hostile: [[u64; 8]; 6] = [
        [u64::MAX; 8],
        [NOW, 0, 0, 0, 0, 0, 0, 0],
        [NOW | 1 << 24 | 2, 0, 0, 0, 0, 0, 0, 0],
        [NOW | 0b101 << 24 | 9 << 16 | 3, 0, 0, 0, NOW, 0, 0, 0],
        [NOW | 0b0111 << 24 | 6 << 8 | 6, 0, NOW, 0, NOW, 0, 0, 0],
        [NOW | 0b0011 << 24 | 2, u64::MAX, NOW, 0, 0, 0, 0, 0],
    ];
    for words in hostile {
        let (producer, mut consumer) = Channel::new(2, 1).unwrap();
        scribble(&producer, 0, words);
        let (position, request) = consumer.next().unwrap();
        assert!(matches!(request, Request::Invalid { w0, .. } if w0 == words[0]), "{request:?} from {words:x?}");
        assert!(consumer.fail(position));
        assert_eq!(consumer.next(), None);
        assert_eq!((producer.completed(), producer.errors()), (1, 1));
        // The head did not take part. Set it to the position of the ring, and check several laps.
        // SAFETY: the head word, accessed by everyone through atomics.
        unsafe { AtomicU64::from_ptr(producer.memory().base().as_ptr().cast()) }.store(1, Ordering::Relaxed);
        for value in 1..9 {
            assert_eq!(producer.try_push(&numbered(0, value)), Ok(value));
            assert_eq!(consumer.next(), Some((value, numbered(0, value))));
            assert_eq!(consumer.next(), None);
        }
    }
}

#[test]
fn half_a_request_waits_for_its_other_half() {
    let (producer, mut consumer) = Channel::new(2, 1).unwrap();
    let put = Request::Put { pe: 3, offset: 64, local: Local::Symmetric(128), size: 4096, reply: None };
    let chunks = put.encode().unwrap().chunks;
    let now = 1 << 63;
    scribble(&producer, 0, [chunks[0][0] | now, chunks[0][1], 0, 0, 0, 0, 0, 0]);
    assert_eq!(consumer.next(), None);
    assert!(consumer.is_ready(), "the engine must not sleep over it");
    scribble(&producer, 0, [chunks[0][0] | now, chunks[0][1], chunks[1][0] | now, chunks[1][1], 0, 0, 0, 0]);
    assert_eq!(consumer.next(), Some((0, put)));
}

#[test]
fn replies_reach_their_requester() {
    let (producer, mut consumer) = Channel::new(4, 2).unwrap();
    let mut slots = [producer.reply_slot().unwrap(), producer.reply_slot().unwrap()];
    assert!(producer.reply_slot().is_none());
    for round in 0..4u64 {
        for slot in &mut slots {
            let reply = slot.begin().unwrap();
            let fetch = Request::G { pe: 0, offset: round, width: Width::W8, reply };
            producer.try_push(&fetch).unwrap();
        }
        let mut asked = || {
            let Some((_, Request::G { reply, .. })) = consumer.next() else { unreachable!("only these were pushed") };
            reply
        };
        let (first, second) = (asked(), asked());
        assert!(consumer.reply(second, round + 100, false));
        assert_eq!(slots[0].poll(), None);
        assert_eq!(slots[1].poll().unwrap().value, round + 100);
        assert!(consumer.reply(first, 0, true));
        assert!(slots[0].poll().unwrap().failed);
    }
}

fn sleep(consumer: &Consumer) {
    let mut fds = [PollFd::new(consumer.doorbell().fd(), PollFlags::POLLIN)];
    let rang = poll(&mut fds, PollTimeout::try_from(LIMIT).unwrap()).unwrap();
    assert_eq!(rang, 1, "nobody rang");
}

#[test]
fn a_sleeping_consumer_is_woken_by_every_push() {
    const ROUNDS: u64 = 20_000;
    let (producer, mut consumer) = Channel::new(4, 0).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let mut slept = 0;
            while !done.load(Ordering::Acquire) {
                while let Some((position, _)) = consumer.next() {
                    consumer.complete(position);
                }
                if consumer.prepare_sleep() {
                    sleep(&consumer);
                    slept += 1;
                }
                consumer.wake();
            }
            slept
        });
        for round in 0..ROUNDS {
            let start = Instant::now();
            let position = producer.try_push(&p(round)).unwrap();
            while producer.completed() <= position {
                assert!(start.elapsed() < LIMIT, "lost at {round}");
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        producer.try_push(&Request::Nop).unwrap();
        assert!(engine.join().unwrap() > 0, "it never slept: nothing was tested");
    });
}

#[test]
fn the_doorbell_is_quiet_after_waking_and_rings_only_for_sleepers() {
    let (producer, mut consumer) = Channel::new(4, 0).unwrap();
    let rung = |consumer: &Consumer| {
        poll(&mut [PollFd::new(consumer.doorbell().fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap()
    };
    producer.try_push(&Request::Nop).unwrap();
    assert_eq!(rung(&consumer), 0, "nobody sleeps");
    assert!(!consumer.prepare_sleep(), "a request waits");
    consumer.wake();
    consumer.next().unwrap();
    assert!(consumer.prepare_sleep());
    producer.try_push(&Request::Nop).unwrap();
    producer.try_push(&Request::Nop).unwrap();
    assert_eq!(rung(&consumer), 1);
    consumer.wake();
    assert_eq!(rung(&consumer), 0);
}

#[test]
fn capacities_out_of_range_are_errors() {
    for (slots, replies) in [(0, 0), (1, 0), (3, 0), (1 << 21, 0), (4, 1 << 21)] {
        let error = Channel::new(slots, replies).unwrap_err().to_string();
        assert!(error.contains("cannot be made"), "{error}");
    }
}
