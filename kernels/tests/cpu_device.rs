//! The CPU device's operations, through channels to an engine that delays and reorders, and on mapped peers.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::fake::{HEAP, Reach, Shape, World};
use symrail_kernels::cpu::{
    Cmp, DeviceError, Grid, LaunchError, LocalMemory, SignalOp, SignalUpdate, Symmetric, Thread,
};
use symrail_proxy::channel::Request;

type Outcome<T = ()> = Result<T, DeviceError>;

const ONE: Grid = Grid { blocks: 1, threads_per_block: 1 };
const REACHES: [Reach; 3] = [Reach::Channels, Reach::Mapped, Reach::MappedForData];

fn run<R: Send>(world: &World, pe: usize, grid: Grid, kernel: impl Fn(&Thread<'_>) -> Outcome<R> + Sync) -> Vec<R> {
    grid.launch(&world.views[pe], kernel).unwrap()
}

#[test]
fn single_values_and_blocks_come_back_as_they_went() {
    for reach in REACHES {
        let world = World::new(Shape { reach, ..Shape::default() });
        let view = &world.views[0];
        let numbers: Symmetric<i32> = view.symmetric(1024, 1000).unwrap();
        let copy: Symmetric<i32> = view.symmetric(8192, 1000).unwrap();
        let single: Symmetric<f64> = view.symmetric(16384, 4).unwrap();
        let bytes: Symmetric<u8> = view.symmetric(20001, 7).unwrap();
        run(&world, 0, ONE, |me| {
            assert_eq!((me.my_pe(), me.n_pes()), (0, 2));
            me.store_local(numbers, &(0..1000).map(|i| i * 7 - 3).collect::<Vec<_>>())?;
            me.put(numbers, numbers, 1)?;
            me.quiet()?;
            me.get(copy, numbers, 1)?;
            let mut back = vec![0; 1000];
            me.load_local(&mut back, copy)?;
            assert!(back.iter().enumerate().all(|(i, value)| *value == i as i32 * 7 - 3));

            me.p(single.at(2)?, -2.5, 1)?;
            me.p(bytes.at(6)?, 0xab, 1)?;
            me.quiet()?;
            assert_eq!(me.g(single.at(2)?, 1)?, -2.5);
            assert_eq!((me.g(bytes.at(6)?, 1)?, me.g(bytes.at(5)?, 1)?), (0xab, 0));

            // A put of one value travels in the slot, so its source may change at once.
            me.store_local(single, &[1.0])?;
            me.put_nbi(single.at(3)?, single.at(0)?, 1)?;
            me.store_local(single, &[9.0])?;
            me.quiet()?;
            assert_eq!(me.g(single.at(3)?, 1)?, 1.0);

            me.get_nbi(bytes, bytes, 1)?;
            me.quiet()?;
            let mut seven = [1; 7];
            me.load_local(&mut seven, bytes)?;
            assert_eq!(seven, [0, 0, 0, 0, 0, 0, 0xab]);
            assert_eq!(me.peer_ptr(single, 1)?.is_some(), reach != Reach::Channels);
            Ok(())
        });
        assert_eq!(world.heaps[1].read(numbers, 999), 999 * 7 - 3, "{reach:?}");
    }
}

#[test]
fn atomics_do_what_they_say() {
    for reach in REACHES {
        let world = World::new(Shape { reach, ..Shape::default() });
        let view = &world.views[0];
        let word: Symmetric<u32> = view.symmetric(4, 1).unwrap();
        let long: Symmetric<i64> = view.symmetric(64, 1).unwrap();
        let real: Symmetric<f32> = view.symmetric(128, 1).unwrap();
        run(&world, 0, ONE, |me| {
            me.atomic_set(word, 0b1100, 1)?;
            me.quiet()?;
            assert_eq!(me.atomic_fetch_and(word, 0b0110, 1)?, 0b1100);
            assert_eq!(me.atomic_fetch_or(word, 0b0001, 1)?, 0b0100);
            assert_eq!(me.atomic_fetch_xor(word, 0b1111, 1)?, 0b0101);
            assert_eq!(me.atomic_fetch_add(word, u32::MAX, 1)?, 0b1010);
            assert_eq!(me.atomic_compare_swap(word, 3, 7, 1)?, 9, "not equal: left alone");
            assert_eq!(me.atomic_compare_swap(word, 9, 7, 1)?, 9);
            assert_eq!(me.atomic_swap(word, 70, 1)?, 7);
            me.atomic_inc(word, 1)?;
            me.quiet()?;
            me.atomic_and(word, 0xff, 1)?;
            me.atomic_or(word, 0x100, 1)?;
            me.quiet()?;
            assert_eq!(me.atomic_fetch(word, 1)?, 71 | 0x100);
            assert_eq!(me.atomic_fetch_inc(long, 1)?, 0);
            me.atomic_add(long, -5, 1)?;
            me.quiet()?;
            assert_eq!(me.atomic_fetch(long, 1)?, -4);
            me.atomic_add(real, 1.5, 1)?;
            me.quiet()?;
            assert_eq!(me.atomic_fetch_add(real, 1.0, 1)?, 1.5);
            Ok(())
        });
        assert_eq!(world.heaps[1].read(real, 0), 2.5, "{reach:?}");
    }
}

#[test]
fn many_threads_share_rings_of_four_slots() {
    const ROUNDS: u64 = 40;
    let grid = Grid { blocks: 2, threads_per_block: 4 };
    let world = World::new(Shape { slots: 4, ..Shape::default() });
    let view = &world.views[0];
    let areas: Symmetric<u64> = view.symmetric(4096, 8 * 16).unwrap();
    let mirror: Symmetric<u64> = view.symmetric(16384, 8 * 16).unwrap();
    let counter: Symmetric<u64> = view.symmetric(0, 1).unwrap();
    let sums = run(&world, 0, grid, |me| {
        let id = me.thread_id() as u64;
        let (mine, back) = (areas.part(id * 16, 16)?, mirror.part(id * 16, 16)?);
        let mut tickets = 0;
        for round in 0..ROUNDS {
            let values: Vec<u64> = (0..16).map(|i| id << 32 | round << 8 | i).collect();
            me.store_local(mine, &values)?;
            match round % 3 {
                0 => me.put(mine, mine, 1)?,
                1 => me.put_nbi(mine, mine, 1)?,
                _ => (0..16).try_for_each(|i| me.p(mine.at(i)?, values[i as usize], 1))?,
            }
            me.quiet()?;
            let mut seen = vec![0; 16];
            if round % 2 == 0 {
                me.get(back, mine, 1)?;
            } else {
                me.get_nbi(back, mine, 1)?;
            }
            me.quiet()?;
            me.load_local(&mut seen, back)?;
            assert_eq!(seen, values);
            tickets += me.atomic_fetch_add(counter, 1, 1)?;
        }
        Ok(tickets)
    });
    let all = 8 * ROUNDS;
    assert_eq!(world.heaps[1].read(counter, 0), all);
    assert_eq!(sums.iter().sum::<u64>(), all * (all - 1) / 2, "every ticket was drawn once");
}

/// PE 0 produces and PE 1 consumes at the same time. `send` sends a round's data and its flag.
fn producer_and_consumer(
    reach: Reach,
    send: impl Fn(&Thread<'_>, Symmetric<u64>, Symmetric<u64>, u64) -> Outcome + Sync,
) {
    let world = World::new(Shape { reach, ..Shape::default() });
    let data: Symmetric<u64> = world.views[0].symmetric(4096, 200).unwrap();
    let flag: Symmetric<u64> = world.views[0].symmetric(64, 1).unwrap();
    let taken: Symmetric<u64> = world.views[0].symmetric(128, 1).unwrap();
    thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            run(&world, 1, ONE, |me| {
                for round in 1..=60 {
                    assert_eq!(me.signal_wait_until(flag, Cmp::Ge, round)?, round);
                    let mut values = [0; 200];
                    me.load_local(&mut values, data)?;
                    assert_eq!(values, [round; 200], "the flag overtook the data");
                    me.signal_op(taken, round, SignalOp::Set, 0)?;
                    me.quiet()?;
                }
                Ok(())
            })
        });
        run(&world, 0, ONE, |me| {
            for round in 1..=60 {
                me.store_local(data, &[round; 200])?;
                send(me, data, flag, round)?;
                me.wait_until(taken, Cmp::Eq, round)?;
                assert!(me.test(taken, Cmp::Gt, round - 1)?);
                me.quiet()?;
            }
            Ok(())
        });
        consumer.join().unwrap();
    });
}

#[test]
fn a_signal_never_overtakes_its_data() {
    for reach in REACHES {
        producer_and_consumer(reach, |me, data, flag, round| match round % 2 {
            0 => me.put_signal(data, data, SignalUpdate::set(flag, round), 1),
            _ => me.put_signal_nbi(data, data, SignalUpdate::add(flag, 1), 1),
        });
    }
}

#[test]
fn a_fence_keeps_a_flag_behind_the_data() {
    for reach in REACHES {
        producer_and_consumer(reach, |me, data, flag, round| {
            me.put_nbi(data.part(0, 100)?, data.part(0, 100)?, 1)?;
            (100..200).try_for_each(|i| me.p(data.at(i)?, round, 1))?;
            me.fence()?;
            me.p(flag, round, 1)
        });
    }
}

#[test]
fn the_engine_is_told_of_a_fence_once_and_in_its_place() {
    let world = World::new(Shape { slots: 64, channels: 1, ..Shape::default() });
    let words: Symmetric<u64> = world.views[0].symmetric(0, 64).unwrap();
    run(&world, 0, ONE, |me| {
        for step in 0..10 {
            (0..5).try_for_each(|i| me.p(words.at(step * 6 + i)?, step, 1))?;
            me.fence()?;
            me.fence()?;
        }
        me.quiet()
    });
    let applied = std::mem::take(&mut world.engines[0].lock().unwrap().applied);
    assert_eq!(applied.iter().filter(|request| **request == Request::Fence).count(), 10);
    let steps: Vec<u64> =
        applied.iter().filter_map(|r| if let Request::P { value, .. } = r { Some(*value) } else { None }).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    assert_eq!(steps.len(), 50);
}

/// A fence behind a quiet has nothing to order, and sends no request.
#[test]
fn a_fence_behind_a_quiet_asks_for_nothing() {
    let world = World::new(Shape { channels: 1, ..Shape::default() });
    let words: Symmetric<u64> = world.views[0].symmetric(0, 2).unwrap();
    run(&world, 0, ONE, |me| {
        for round in 0..10 {
            me.p(words, round, 1)?;
            me.quiet()?;
            me.fence()?;
        }
        me.p(words, 10, 1)
    });
    // Another thread's operation may be under way, and the fence covers that one, too.
    run(&world, 0, ONE, |me| {
        me.fence()?;
        me.quiet()
    });
    let applied = std::mem::take(&mut world.engines[0].lock().unwrap().applied);
    assert_eq!(applied.iter().filter(|request| **request == Request::Fence).count(), 1, "{applied:?}");
}

#[test]
fn atomics_and_signals_take_one_path() {
    for (reach, expected) in REACHES.into_iter().zip([4, 0, 4]) {
        let world = World::new(Shape { reach, ..Shape::default() });
        let words: Symmetric<u64> = world.views[0].symmetric(0, 8).unwrap();
        run(&world, 0, ONE, |me| {
            me.atomic_add(words, 1, 1)?;
            me.atomic_fetch_add(words, 1, 1)?;
            me.signal_op(words, 1, SignalOp::Add, 1)?;
            me.put_signal(words.at(4)?, words.at(5)?, SignalUpdate::add(words, 1), 1)?;
            me.quiet()
        });
        assert_eq!(world.engines[0].lock().unwrap().applied.len(), expected, "{reach:?}");
        assert_eq!(world.heaps[1].read(words, 0), 4);
    }
}

#[test]
fn one_thread_is_quiet_for_its_block() {
    // The threads of the block wait for each other with it, too.
    let timeout = Duration::from_secs(2);
    let world = World::new(Shape { lend: false, timeout, ..Shape::default() });
    let word: Symmetric<u64> = world.views[0].symmetric(0, 1).unwrap();
    let quiet = |me: &Thread<'_>| {
        // Thread 1 uses the second channel.
        if me.thread_in_block() == 1 {
            me.p(word, 5, 1)?;
        }
        me.sync_block()?;
        Ok((me.thread_in_block() == 0).then(|| me.quiet()))
    };
    let outcome = run(&world, 0, Grid { blocks: 1, threads_per_block: 2 }, quiet).remove(0).unwrap();
    assert!(matches!(outcome, Err(DeviceError::WaitTimeout { .. })), "the other thread's put is not delivered");
    while world.heaps[1].read(word, 0) != 5 {
        world.engines[0].lock().unwrap().poll();
    }
    assert_eq!(run(&world, 0, ONE, |me| Ok(me.quiet())), [Ok(())]);
}

#[test]
fn no_pe_leaves_a_barrier_before_all_have_arrived() {
    const ROUNDS: u64 = 400;
    for reach in REACHES {
        for pes in [1, 2, 3, 6] {
            let world = World::new(Shape { pes, reach, timeout: Duration::from_secs(60), ..Shape::default() });
            let from: Symmetric<u64> = world.views[0].symmetric(4096, 6).unwrap();
            let come: Vec<AtomicU64> = (0..pes).map(|_| AtomicU64::new(0)).collect();
            let all_have_arrived = |round| come.iter().all(|pe| pe.load(Ordering::Relaxed) >= round);
            let kernel = |me: &Thread<'_>| {
                for round in 1..=ROUNDS {
                    come[me.my_pe() as usize].store(round, Ordering::Relaxed);
                    me.sync_all()?;
                    assert!(all_have_arrived(round), "PE {}, round {round}, {reach:?}", me.my_pe());
                    if round % 8 == 0 {
                        let peers = 0..me.n_pes();
                        peers.clone().try_for_each(|pe| me.p(from.at(me.my_pe().into())?, round, pe))?;
                        me.barrier_all()?;
                        let signals =
                            peers.map(|pe| me.signal_fetch(from.at(pe.into())?)).collect::<Outcome<Vec<_>>>()?;
                        assert!(signals.iter().all(|&signal| signal == round), "{signals:?}, round {round}, {reach:?}");
                        me.sync_all()?;
                    }
                }
                me.quiet()
            };
            thread::scope(|scope| {
                let (world, kernel) = (&world, &kernel);
                for pe in 0..pes {
                    scope.spawn(move || run(world, pe, ONE, kernel));
                }
            });
        }
    }
}

/// PE 0 reaches its second barrier before PE 1 gets the signal of its first, and its last signal arrives first.
#[test]
fn barriers_do_not_mind_puts_that_overtake_one_another() {
    let world = World::new(Shape { lend: false, timeout: Duration::from_secs(60), ..Shape::default() });
    thread::scope(|scope| {
        let twice = |me: &Thread<'_>| (0..2).try_for_each(|_| me.sync_all());
        for _ in 0..50 {
            let both = [0, 1].map(|pe| {
                scope.spawn({
                    let world = &world;
                    move || run(world, pe, ONE, twice)
                })
            });
            while !both.iter().all(|pe| pe.is_finished()) {
                world.engines[1].lock().unwrap().poll();
                world.engines[0].lock().unwrap().poll_backwards(2);
                thread::yield_now();
            }
            for pe in both {
                pe.join().unwrap();
            }
        }
    });
}

#[test]
fn a_barrier_without_the_others_ends_in_time() {
    let world = World::new(Shape { timeout: Duration::from_millis(50), ..Shape::default() });
    assert!(matches!(run(&world, 0, ONE, |me| Ok(me.barrier_all()))[0], Err(DeviceError::WaitTimeout { .. })));
}

#[test]
fn wrong_arguments_are_errors_before_anything_starts() {
    let world = World::new(Shape::default());
    let view = &world.views[0];
    let text = |error: DeviceError| error.to_string();
    assert!(text(view.symmetric::<u64>(4, 1).unwrap_err()).contains("alignment"));
    assert!(text(view.symmetric::<u8>(HEAP, 1).unwrap_err()).contains("not inside"));
    assert!(text(view.symmetric::<u64>(8, u64::MAX / 4).unwrap_err()).contains("not inside"));
    let words: Symmetric<u64> = view.symmetric(0, 4).unwrap();
    assert!(words.part(2, 3).is_err() && words.part(u64::MAX, 2).is_err() && words.at(4).is_err());
    run(&world, 0, ONE, |me| {
        assert!(text(me.p(words, 1, 2).unwrap_err()).contains("PE 2 does not exist"));
        assert!(me.put(words.part(0, 1)?, words, 1).is_err(), "the source is longer");
        assert!(me.get(words, words.part(0, 1)?, 1).is_err(), "the destination is longer");
        assert!(me.store_local(words, &[0; 5]).is_err());
        Ok(())
    });
}

#[test]
fn a_device_without_channels_reaches_mapped_peers_only() {
    let error = |reach| {
        let world = World::new(Shape { channels: 0, reach, ..Shape::default() });
        let word: Symmetric<u64> = world.views[0].symmetric(0, 1).unwrap();
        run(&world, 0, ONE, |me| {
            let result = me.p(word, 5, 1);
            me.fence()?;
            me.quiet()?;
            Ok(result.err())
        })
        .remove(0)
    };
    assert_eq!(error(Reach::Mapped), None);
    assert_eq!(error(Reach::Channels), Some(DeviceError::NoChannel { pe: 1 }));
}

#[test]
fn what_the_engine_refuses_is_an_error_and_nothing_hangs() {
    let world = World::new(Shape::default());
    let words: Symmetric<u64> = world.views[0].symmetric(0, 100).unwrap();
    let mut unregistered = [0u64; 100];
    let first = unregistered.as_mut_ptr().expose_provenance();
    run(&world, 0, ONE, |me| {
        // SAFETY: the array outlives the launch; the engine refuses it anyway.
        let buffer: LocalMemory<u64> =
            unsafe { LocalMemory::registered(std::ptr::with_exposed_provenance_mut(first), 100) };
        assert!(matches!(me.put(words, buffer, 1), Err(DeviceError::Failed { pe: 1, bytes: 800, .. })));
        assert!(matches!(me.get(buffer, words, 1), Err(DeviceError::Failed { .. })));
        assert_eq!(me.quiet(), Err(DeviceError::FailedBeforeQuiet { count: 2, channel: 0 }));
        me.put_nbi(words, buffer, 1)?;
        assert_eq!(me.quiet(), Err(DeviceError::FailedBeforeQuiet { count: 1, channel: 0 }));
        assert_eq!(me.quiet(), Ok(()), "reported once");
        me.put(words, words, 1)?;
        me.quiet()
    });
}

#[test]
fn without_an_engine_every_wait_ends() {
    let timeout = Duration::from_millis(50);
    let world = World::new(Shape { slots: 4, channels: 1, replies: 1, lend: false, timeout, ..Shape::default() });
    let words: Symmetric<u64> = world.views[0].symmetric(0, 100).unwrap();
    run(&world, 0, ONE, |me| {
        assert!(matches!(me.g(words, 1), Err(DeviceError::Timeout { pe: 1, bytes: 8, .. })));
        assert_eq!(me.g(words, 1), Err(DeviceError::Unanswered), "its entry still waits for an answer");
        (0..3).try_for_each(|_| me.p(words, 1, 1))?;
        assert!(matches!(me.p(words, 1, 1), Err(DeviceError::Timeout { .. })), "the ring is full");
        assert!(matches!(me.quiet(), Err(DeviceError::WaitTimeout { .. })));
        assert!(matches!(me.wait_until(words, Cmp::Ne, 0), Err(DeviceError::WaitTimeout { .. })));
        Ok(())
    });
    // No other request uses the abandoned entry before its late answer.
    run(&world, 0, ONE, |me| {
        assert_eq!(me.atomic_fetch(words, 1), Err(DeviceError::NoReply { channel: 0, replies: 1 }));
        while !world.engines[0].lock().unwrap().poll() {}
        Ok(())
    });
}

/// A thread that offers to drive the engine counts as driving it, and the proxy thread rarely checks then.
#[test]
fn a_thread_that_sleeps_in_a_wait_releases_the_engine() {
    let world = World::new(Shape { lend: false, timeout: Duration::from_millis(100), ..Shape::default() });
    let word: Symmetric<u64> = world.views[0].symmetric(0, 1).unwrap();
    let never = run(&world, 0, ONE, |me| Ok(me.wait_until(word, Cmp::Ne, 0)));
    assert!(matches!(never[0], Err(DeviceError::WaitTimeout { .. })));
    let offers = world.offers[0].load(Ordering::Relaxed);
    assert!((1..=512).contains(&offers), "{offers} offers, where a sleeping thread makes none");
}

/// Threads that all offer to drive, or yield to each other for ever, take the cores from the engine.
#[test]
fn of_many_threads_that_wait_long_for_answers_one_drives() {
    let cores = thread::available_parallelism().unwrap().get();
    let threads = 8 * cores;
    let world = World::new(Shape { lend: false, slots: 1024, replies: threads, ..Shape::default() });
    let counter: Symmetric<u64> = world.views[0].symmetric(0, 1).unwrap();
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    // The launch has ended, perhaps by an error.
    let ended = AtomicBool::new(false);
    let all = threads as u64;
    thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let until = |count: &AtomicU64, least: u64| {
                while count.load(Ordering::Relaxed) < least && !ended.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            };
            until(&asked, all);
            let offers = || world.offers[0].load(Ordering::Relaxed);
            // Once all have had their turns, all but one sleep. A thread that offers to drive has had the time to do
            // so.
            let drivers = || {
                world.drivers[0].lock().unwrap().clear();
                until(&world.offers[0], offers() + 200);
                world.drivers[0].lock().unwrap().len()
            };
            let drivers = (0..100).map(|_| drivers()).find(|drivers| *drivers <= cores + 1);
            while answered.load(Ordering::Relaxed) < all && !ended.load(Ordering::Relaxed) {
                if !world.engines[0].lock().unwrap().poll() {
                    thread::yield_now();
                }
            }
            drivers
        });
        let grid = Grid { blocks: 1, threads_per_block: threads };
        let result = grid.launch(&world.views[0], |me| {
            asked.fetch_add(1, Ordering::Relaxed);
            let old = me.atomic_fetch_inc(counter, 1);
            answered.fetch_add(1, Ordering::Relaxed);
            old
        });
        ended.store(true, Ordering::Relaxed);
        let _: Vec<u64> = result.map_err(|e: LaunchError<DeviceError>| e.to_string()).unwrap();
        let drivers = engine.join().unwrap();
        assert!(drivers.is_some(), "more than one of {threads} threads on {cores} cores");
    });
    assert_eq!(world.heaps[1].read(counter, 0), all);
}

#[test]
fn an_engine_of_its_own_thread_serves_as_well() {
    let world = World::new(Shape { lend: false, ..Shape::default() });
    let counter: Symmetric<u64> = world.views[0].symmetric(0, 1).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if !world.engines[0].lock().unwrap().poll() {
                    thread::yield_now();
                }
            }
        });
        let grid = Grid { blocks: 1, threads_per_block: 3 };
        let result =
            grid.launch(&world.views[0], |me| (0..50).try_for_each(|_| me.atomic_fetch_inc(counter, 1).map(drop)));
        stop.store(true, Ordering::Relaxed);
        let _: Vec<()> = result.map_err(|e: LaunchError<DeviceError>| e.to_string()).unwrap();
    });
    assert_eq!(world.heaps[1].read(counter, 0), 150);
}

#[test]
fn a_block_meets_and_a_broken_block_does_not_hang() {
    let world = World::new(Shape::default());
    let word: Symmetric<u64> = world.views[0].symmetric(0, 1).unwrap();
    let grid = Grid { blocks: 2, threads_per_block: 3 };
    let ids = run(&world, 0, grid, |me| {
        for round in 1..=50u64 {
            if me.thread_in_block() == 0 && me.block_id() == 0 {
                me.store_local(word, &[round])?;
            }
            if me.block_id() == 0 {
                me.sync_block()?;
                assert_eq!(me.signal_fetch(word)?, round);
            }
            me.sync_block()?;
            // One thread ends early, and the others continue without it.
            if me.thread_in_block() == 2 && round == 30 {
                break;
            }
        }
        Ok((me.block_id(), me.thread_in_block()))
    });
    assert_eq!(ids, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);

    let broken = Mutex::new(Vec::new());
    let failed: Result<Vec<()>, _> = grid.launch(&world.views[0], |me| {
        match me.thread_id() {
            0..=2 => me.sync_block()?,
            4 => return Err(DeviceError::Unanswered),
            _ => broken.lock().unwrap().push(me.sync_block()),
        }
        Ok(())
    });
    assert!(matches!(failed, Err(LaunchError::Kernel { thread: 4, error: DeviceError::Unanswered })));
    let shut = Err(DeviceError::BlockBroken { block: 1 });
    assert_eq!(broken.into_inner().unwrap(), [shut.clone(), shut], "reported at once, not after the time-out");

    let panicked: Result<Vec<()>, LaunchError<DeviceError>> = grid.launch(&world.views[0], |me| {
        assert!(me.thread_id() != 1, "on purpose");
        Ok(())
    });
    assert!(matches!(panicked, Err(LaunchError::Panicked { thread: 1 })));
    let empty: Result<Vec<()>, LaunchError<DeviceError>> =
        Grid { blocks: 0, threads_per_block: 3 }.launch(&world.views[0], |_| Ok(()));
    assert!(matches!(empty, Err(LaunchError::Empty { .. })));
}
