//! Models of the channel: every interleaving (up to a bound on preemptions) and every value that the memory model
//! lets a load return. Run with `RUSTFLAGS="--cfg loom" cargo test -p symrail-proxy-model --release --test loom_channel`.
//!
//! The ring has two slots. Producers push requests that use different chunks. So a slot's unused chunks would be read
//! as new ones two laps later if the consumer did not write the parity to them.
#![cfg(loom)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use symrail_proxy_model::channel::{Channel, ChannelMemory, Consumer, Doorbell, Local, Producer, Request, Width};

const SLOTS: usize = 2;

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

fn channel(replies: usize) -> (Producer, Consumer) {
    Channel::over(ChannelMemory::new(SLOTS, replies).unwrap(), Arc::new(Doorbell::new().unwrap())).unwrap()
}

/// A request that uses chunk 0 alone, or chunks 0 and 1, or 0 and 2, and carries `word` in all of them.
fn carrying(word: u64) -> Request {
    match word % 3 {
        0 => Request::Put { pe: 1, offset: word, local: Local::Address(word), size: word, reply: None },
        1 => Request::P { pe: 1, offset: word, width: Width::W8, value: word },
        _ => Request::Nop,
    }
}

fn take(consumer: &mut Consumer) -> (u64, Request) {
    loop {
        if let Some(taken) = consumer.next() {
            return taken;
        }
        thread::yield_now();
    }
}

fn push(producer: &Producer, request: &Request) -> u64 {
    producer
        .push::<symrail_proxy_model::channel::Refused>(request, || {
            thread::yield_now();
            Ok(())
        })
        .unwrap()
}

fn push_as_gpu(producer: &Producer, request: &Request) -> u64 {
    producer.push_as_gpu(request, thread::yield_now).unwrap()
}

/// Takes the next request and checks that it is the next one of a producer: not torn, not stale, not repeated.
fn take_one_of(consumer: &mut Consumer, left: &mut [Vec<Request>]) {
    let (position, request) = take(consumer);
    let owner = left.iter().position(|requests| requests.first() == Some(&request));
    left[owner.expect("torn, stale, doubled or out of order")].remove(0);
    assert!(consumer.complete(position));
}

/// The first lap is over and the second one waits to be taken, while two producers write the third one. They learn of
/// free slots from the consumer or from each other.
fn two_producers_reach_the_third_lap(push: fn(&Producer, &Request) -> u64, preemptions: usize) {
    explore(preemptions, move || {
        let (producer, mut consumer) = channel(0);
        // Lap 0 uses chunk 1 of one slot and chunk 2 of the other, lap 1 uses none of them, lap 2 others than lap 0.
        for (words, taken) in [([3, 4], true), ([5, 8], false)] {
            for word in words {
                push(&producer, &carrying(word));
            }
            while taken && consumer.next().is_some() {}
        }
        let mut left = [5, 8].map(carrying).map(|request| vec![request]).to_vec();
        let producers = [7, 6].map(|word| {
            left.push(vec![carrying(word)]);
            let producer = producer.clone();
            thread::spawn(move || push(&producer, &carrying(word)))
        });
        assert_eq!(take(&mut consumer), (2, left.remove(0).remove(0)));
        assert_eq!(take(&mut consumer), (3, left.remove(0).remove(0)));
        for _ in 0..2 {
            let (position, request) = take(&mut consumer);
            let owner = left.iter().position(|requests| requests.first() == Some(&request));
            left.remove(owner.expect("torn, stale or doubled"));
            assert!(position >= 4);
        }
        for producer in producers {
            producer.join().unwrap();
        }
        assert!(!consumer.is_ready(), "nothing is left");
    });
}

#[test]
fn two_cpu_producers_reach_the_third_lap() {
    two_producers_reach_the_third_lap(push, 1);
}

#[test]
fn two_gpu_like_producers_reach_the_third_lap() {
    two_producers_reach_the_third_lap(push_as_gpu, 1);
}

/// Three whole laps of two producers, one of which drives the consumer whenever the ring is full.
#[test]
fn a_producer_lends_itself_to_the_consumer_for_three_laps() {
    explore(2, || {
        let (producer, mut consumer) = channel(0);
        let other = producer.clone();
        let words: [&[u64]; 2] = [&[3, 4, 6], &[5, 9, 7]];
        let second = thread::spawn(move || {
            for word in words[1] {
                push_as_gpu(&other, &carrying(*word));
            }
        });
        let mut left = words.map(|words| words.iter().map(|word| carrying(*word)).collect::<Vec<_>>());
        let mut taken = 0;
        for word in words[0] {
            while producer.try_push(&carrying(*word)).is_err() {
                take_one_of(&mut consumer, &mut left);
                taken += 1;
            }
        }
        for _ in taken..6 {
            take_one_of(&mut consumer, &mut left);
        }
        second.join().unwrap();
        assert!(!consumer.is_ready(), "nothing is left");
    });
}

/// One producer, chosen masks, no bound: only the parity of unused chunks. Lap 0 uses chunk 1, lap 1 does not, lap 2
/// does.
#[test]
fn an_unused_chunk_is_not_taken_two_laps_later() {
    explore(3, || {
        let (producer, mut consumer) = channel(0);
        let words = [3u64, 3, 5, 5, 6, 6];
        let device = thread::spawn(move || {
            for word in words {
                push_as_gpu(&producer, &carrying(word));
            }
        });
        for word in words {
            assert_eq!(take(&mut consumer).1, carrying(word));
        }
        device.join().unwrap();
    });
}

/// The engine's writes before it completed a request are visible to a thread that observes the flush word behind it,
/// and so is the count of failures, whatever the order of completion.
#[test]
fn the_flush_word_publishes_what_was_delivered() {
    explore(3, || {
        let (producer, mut consumer) = channel(0);
        let delivered = Arc::new([UnsafeCell::new(0u64), UnsafeCell::new(0u64)]);
        let memory = Arc::clone(&delivered);
        let engine = thread::spawn(move || {
            let taken = [take(&mut consumer).0, take(&mut consumer).0];
            for position in [taken[1], taken[0]] {
                memory[position as usize].with_mut(|word| unsafe { *word = position + 10 });
                assert!(if position == 0 { consumer.fail(0) } else { consumer.complete(position) });
                consumer.publish();
            }
        });
        let last = [push(&producer, &Request::Nop), push(&producer, &Request::Nop)][1];
        loop {
            let completed = producer.completed();
            assert!(completed == 0 || completed == 2, "the prefix, not the number");
            if completed > last {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(producer.errors(), 1);
        for (position, word) in delivered.iter().enumerate() {
            word.with(|word| assert_eq!(unsafe { *word }, position as u64 + 10));
        }
        engine.join().unwrap();
    });
}

/// A quiet covers a request that another producer has pushed, and observes its failure.
#[test]
fn a_quiet_covers_what_others_pushed_before() {
    explore(2, || {
        let (producer, mut consumer) = channel(0);
        let delivered = Arc::new(UnsafeCell::new(0u64));
        let (memory, other) = (Arc::clone(&delivered), producer.clone());
        let pushes = thread::spawn(move || push(&other, &Request::Nop));
        let engine = thread::spawn(move || {
            let position = take(&mut consumer).0;
            memory.with_mut(|word| unsafe { *word = 10 });
            assert!(consumer.fail(position));
            consumer.publish();
        });
        pushes.join().unwrap();
        let pushed = producer.pushed();
        assert_eq!(pushed, 1, "it was told of one");
        while producer.completed() < pushed {
            thread::yield_now();
        }
        assert_eq!(producer.errors(), 1);
        delivered.with(|word| assert_eq!(unsafe { *word }, 10));
        engine.join().unwrap();
    });
}

/// The value of a reply is never older than its state.
#[test]
fn a_reply_is_whole() {
    explore(3, || {
        let (producer, mut consumer) = channel(1);
        let engine = thread::spawn(move || {
            for value in 7..9 {
                let (position, request) = take(&mut consumer);
                let Request::G { reply, .. } = request else { panic!("{request:?}") };
                assert!(consumer.reply(reply, value, value == 8));
                consumer.complete(position);
            }
        });
        let mut slot = producer.reply_slot().unwrap();
        for value in 7..9 {
            let reply = slot.begin().unwrap();
            push(&producer, &Request::G { pe: 0, offset: 0, width: Width::W8, reply });
            let reply = loop {
                match slot.poll() {
                    Some(reply) => break reply,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((reply.value, reply.failed), (value, value == 8));
        }
        engine.join().unwrap();
    });
}

/// A push wakes a sleeping consumer: loom reports a lost wake-up as a deadlock.
fn sleep_and_wake(producers: usize, preemptions: usize) {
    explore(preemptions, move || {
        let (producer, mut consumer) = channel(0);
        let bell = Arc::clone(consumer.doorbell());
        let threads: Vec<_> = (0..producers)
            .map(|_| {
                let producer = producer.clone();
                thread::spawn(move || push(&producer, &carrying(4)))
            })
            .collect();
        for _ in 0..producers {
            while consumer.next().is_none() {
                if consumer.prepare_sleep() {
                    bell.wait();
                } else {
                    thread::yield_now();
                }
                consumer.wake();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn one_push_wakes_the_consumer() {
    sleep_and_wake(1, 5);
}

#[test]
fn two_pushes_wake_the_consumer() {
    sleep_and_wake(2, 2);
}

/// An answer wakes its sleeping requester.
#[test]
fn an_answer_wakes_its_requester() {
    explore(3, || {
        let (producer, mut consumer) = channel(1);
        let engine = thread::spawn(move || {
            let (position, request) = take(&mut consumer);
            let Request::G { reply, .. } = request else { panic!("{request:?}") };
            assert!(consumer.reply(reply, 7, false));
            consumer.complete(position);
            consumer.publish();
        });
        let mut slot = producer.reply_slot().unwrap();
        let reply = slot.begin().unwrap();
        push(&producer, &Request::G { pe: 0, offset: 0, width: Width::W8, reply });
        while slot.poll().is_none() {
            slot.sleep(Duration::MAX, || true);
        }
        engine.join().unwrap();
    });
}

/// A thread that stops driving the engine wakes one that sleeps because of it.
#[test]
fn the_engine_is_handed_over() {
    explore(3, || {
        let (producer, _consumer) = channel(1);
        let driven = Arc::new(AtomicBool::new(true));
        let leaves = thread::spawn({
            let (producer, driven) = (producer.clone(), Arc::clone(&driven));
            move || {
                driven.store(false, Ordering::Relaxed);
                producer.wake_one();
            }
        });
        let mut slot = producer.reply_slot().unwrap();
        let _ = slot.begin().unwrap();
        while driven.load(Ordering::Relaxed) {
            slot.sleep(Duration::MAX, || driven.load(Ordering::Relaxed));
        }
        leaves.join().unwrap();
    });
}
