//! The throughput of a channel, and the latency of a flush.
//!
//! Two idle cores are enough: one for the producers, one for the consumer. On a busy machine the figures are
//! meaningless, because both ends spin.

#![allow(missing_docs, reason = "criterion's macro makes a function")]

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use symrail_proxy::channel::{Channel, Consumer, DEFAULT_SLOTS, Local, Producer, Refused, Request, Width};

/// Takes and completes all requests until `stop` is set.
fn drain(consumer: &mut Consumer, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        while let Some((position, _)) = consumer.next() {
            consumer.complete(position);
        }
        consumer.publish();
    }
}

fn push(producer: &Producer, request: &Request) -> u64 {
    let waited = || {
        thread::yield_now();
        Ok(())
    };
    producer.push::<Refused>(request, waited).unwrap_or(0)
}

/// The time that `threads` producers need until `count` requests in all are complete.
fn fill(producer: &Producer, threads: u64, count: u64, request: &Request) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let share = count / threads + u64::from(thread < count % threads);
            scope.spawn(move || {
                for _ in 0..share {
                    push(producer, request);
                }
            });
        }
    });
    let pushed = producer.pushed();
    while producer.completed() < pushed {
        spin_loop();
    }
    start.elapsed()
}

fn with_engine(work: impl FnOnce(&Producer)) {
    let Ok((producer, mut consumer)) = Channel::new(DEFAULT_SLOTS, 0) else { return };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| drain(&mut consumer, &stop));
        work(&producer);
        stop.store(true, Ordering::Relaxed);
    });
}

fn channel(criterion: &mut Criterion) {
    let p = Request::P { pe: 1, offset: 4096, width: Width::W8, value: 7 };
    let put = Request::Put { pe: 1, offset: 4096, local: Local::Address(1 << 40), size: 64, reply: None };
    let mut group = criterion.benchmark_group("channel");
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    group.throughput(Throughput::Elements(1));
    for (name, request) in [("nop", Request::Nop), ("p", p), ("put", put)] {
        for threads in [1, 4] {
            with_engine(|producer| {
                group.bench_function(format!("push {name}, {threads} producers"), |bencher| {
                    bencher.iter_custom(|count| fill(producer, threads, count, &request));
                });
            });
        }
    }
    with_engine(|producer| {
        group.bench_function("flush: nop until complete", |bencher| {
            bencher.iter(|| {
                let position = push(producer, &Request::Nop);
                while producer.completed() <= position {
                    spin_loop();
                }
            });
        });
    });
    group.finish();
}

criterion_group!(benches, channel);
criterion_main!(benches);
