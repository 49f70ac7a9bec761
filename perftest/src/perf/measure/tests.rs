//! Tests of the tests, over a backend of threads that can be made to do everything slightly wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::perf::backend::Batch;
use crate::perf::catalog::{Layer, TESTS};
use crate::perf::plan::Target;

/// State that the PEs of a test share.
struct World {
    areas: Vec<Box<[AtomicU64]>>,
    arrived: AtomicU64,
    /// Set when a PE has given up; no PE waits any more.
    over: AtomicBool,
    faulty: bool,
}

/// `LAUNCHES`: these threads also do the work of kernels.
struct Threads<const LAUNCHES: bool> {
    world: Arc<World>,
    me: u32,
    barriers: u64,
}

impl<const LAUNCHES: bool> Threads<LAUNCHES> {
    fn place(&self, pe: u32, offset: usize) -> *mut u8 {
        self.world.areas[pe as usize].as_ptr().cast::<u8>().cast_mut().wrapping_add(offset)
    }

    /// How much of a copy is really made.
    fn short(&self, len: usize) -> usize {
        if self.world.faulty { len.saturating_sub(1) } else { len }
    }

    fn slip(&self) -> u64 {
        u64::from(self.world.faulty)
    }

    fn wait_for(&self, ready: impl Fn() -> bool) -> Result<()> {
        while !ready() {
            if self.world.over.load(Ordering::Acquire) {
                return Err(Error::Timeout { pe: self.me, what: "a PE that gave up", seconds: 0 });
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl<const LAUNCHES: bool> Backend for Threads<LAUNCHES> {
    const LAUNCHES: bool = LAUNCHES;

    fn launch(&mut self, batch: &Batch) -> Result<Duration> {
        let begun = Instant::now();
        let (spread, peer, me, n) = (batch.spread, batch.peer, self.me, self.n_pes());
        for round in batch.first + 1..=batch.first + batch.calls {
            let send = |threads: &mut Self| match batch.work {
                Work::PutSignalPingPong => {
                    let put = (spread.dest(0), spread.source(0), spread.size);
                    threads.put_signal(peer, put, area::PING, round)
                }
                _ => threads.put_word(peer, area::PING, round),
            };
            match batch.work {
                Work::SignalPingPong | Work::PutPingPong | Work::PutSignalPingPong if me == 0 => {
                    send(self)?;
                    self.wait(area::PING, round)?;
                }
                Work::SignalPingPong | Work::PutPingPong | Work::PutSignalPingPong => {
                    self.wait(area::PING, round)?;
                    send(self)?;
                }
                Work::FetchAdd | Work::FetchAdds(_) => self.start_add(peer, area::COUNTER, 1)?,
                Work::AddWindows(window) | Work::SignalWindows(window) => {
                    (0..window).try_for_each(|_| self.start_add(peer, area::COUNTER, 1))?;
                }
                Work::Get | Work::GetWindows(_) | Work::Gets(_) => {
                    let get = |i: usize| self.start_get(peer, spread.dest(i), spread.source(i), spread.size);
                    (0..spread.slots).try_for_each(get)?;
                }
                Work::AllToAll => {
                    for to in (0..n).filter(|to| *to != me) {
                        self.start_put(to, spread.dest(me as usize), spread.source(to as usize), spread.size)?;
                    }
                    self.barrier()?;
                }
                Work::Barrier => self.barrier()?,
                _ => {
                    let put = |i: usize| self.start_put(peer, spread.dest(i), spread.source(i), spread.size);
                    (0..spread.slots).try_for_each(put)?;
                }
            }
        }
        Ok(begun.elapsed())
    }

    fn pe(&self) -> u32 {
        self.me
    }

    fn n_pes(&self) -> u32 {
        self.world.areas.len() as u32
    }

    fn base(&self) -> *mut u8 {
        self.place(self.me, 0)
    }

    fn start_put(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: both areas live as long as the world, and tests stay in them.
        unsafe { self.at(source).copy_to(self.place(pe, dest), self.short(len)) };
        Ok(())
    }

    fn put_word(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        // The numbers that PEs agree on are right even here; otherwise the test would not end.
        let slip = if word == area::PLAN { 0 } else { self.slip() };
        self.world.areas[pe as usize][word / 8].store(value + slip, Ordering::Release);
        Ok(())
    }

    fn start_get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        // SAFETY: as for `start_put`.
        unsafe { self.place(pe, source).copy_to(self.at(dest), self.short(len)) };
        Ok(())
    }

    fn get(&mut self, pe: u32, dest: usize, source: usize, len: usize) -> Result<()> {
        self.start_get(pe, dest, source, len)
    }

    fn quiet(&mut self) -> Result<()> {
        Ok(())
    }

    fn fence(&mut self) -> Result<()> {
        Ok(())
    }

    fn fetch_add(&mut self, pe: u32, word: usize, value: u64) -> Result<u64> {
        Ok(self.world.areas[pe as usize][word / 8].fetch_add(value + self.slip(), Ordering::AcqRel))
    }

    fn start_add(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        self.fetch_add(pe, word, value).map(drop)
    }

    fn start_signal(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        self.start_add(pe, word, value)
    }

    fn signal(&mut self, pe: u32, word: usize, value: u64) -> Result<()> {
        self.put_word(pe, word, value)
    }

    fn put_signal(
        &mut self,
        pe: u32,
        (dest, source, len): (usize, usize, usize),
        word: usize,
        value: u64,
    ) -> Result<()> {
        self.start_put(pe, dest, source, len)?;
        self.world.areas[pe as usize][word / 8].store(value, Ordering::Release);
        Ok(())
    }

    fn wait(&mut self, word: usize, value: u64) -> Result<()> {
        self.wait_for(|| self.word(word) >= value)
    }

    fn barrier(&mut self) -> Result<()> {
        self.barriers += 1;
        self.world.arrived.fetch_add(1, Ordering::AcqRel);
        let all = self.barriers * u64::from(self.n_pes());
        self.wait_for(|| self.world.arrived.load(Ordering::Acquire) >= all)
    }
}

/// Runs a test in `n` threads; returns PE 0's figures, or the first error that is no consequence of another.
fn run(test: &'static Test, plan: &Plan, n: u32, faulty: bool) -> Result<Vec<Figures>> {
    run_as::<false>(test, plan, n, faulty)
}

fn run_as<const LAUNCHES: bool>(test: &'static Test, plan: &Plan, n: u32, faulty: bool) -> Result<Vec<Figures>> {
    let words = plan.area(&[test], n) / 8;
    let area = || (0..words).map(|_| AtomicU64::new(0)).collect();
    let areas = (0..n).map(|_| area()).collect();
    let world = Arc::new(World { areas, arrived: AtomicU64::new(0), over: AtomicBool::new(false), faulty });
    let pe = |me| {
        let mut backend = Threads::<LAUNCHES> { world: Arc::clone(&world), me, barriers: 0 };
        let mut bench = Bench::new(&mut backend, plan, test);
        let figures: Result<Vec<_>> = plan.sizes(test).into_iter().map(|size| bench.measure(size)).collect();
        if figures.is_err() {
            world.over.store(true, Ordering::Release);
        }
        figures.map(|figures| figures.into_iter().flatten().collect::<Vec<_>>())
    };
    let all: Vec<Result<Vec<Figures>>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..n).map(|me| scope.spawn(move || pe(me))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (right, wrong): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    let cause = wrong.into_iter().find(|error| !matches!(error, Err(Error::Timeout { .. })));
    cause.unwrap_or_else(|| right.into_iter().next().unwrap())
}

fn tests() -> impl Iterator<Item = &'static Test> {
    TESTS.iter().filter(|test| test.layer == Layer::Runtime && test.in_all())
}

fn plan() -> Plan {
    Plan {
        min: Some(1),
        max: Some(100),
        iterations: Some(3),
        warmup: Some(2),
        window: None,
        threads: None,
        on_gpu: false,
        target: None,
    }
}

#[test]
fn every_test_gives_figures() {
    for test in tests() {
        for (n, by_kernels) in
            if test.work == Work::AllToAll { 2..4 } else { 2..3 }.flat_map(|n| [(n, false), (n, true)])
        {
            let figures = if by_kernels { run_as::<true> } else { run }(test, &plan(), n, false).unwrap();
            assert_eq!(figures.len(), plan().sizes(test).len(), "{}", test.name);
            for figures in figures {
                assert!(figures.value > 0.0 && figures.p50 > 0.0 && figures.p99 > 0.0, "{} {figures:?}", test.name);
                assert!(figures.iters >= 3 && figures.warmup >= 2, "{} {figures:?}", test.name);
                if test.is_latency() {
                    assert!(figures.best <= figures.p50 && figures.p50 <= figures.p99, "{}", test.name);
                } else {
                    assert!(figures.best >= figures.p50 && figures.p50 >= figures.p99, "{}", test.name);
                }
            }
        }
    }
}

#[test]
fn every_test_notices_that_what_it_moves_is_wrong() {
    for test in tests().filter(|test| test.work != Work::Barrier) {
        for run in [run, run_as::<true>] {
            let error = run(test, &plan(), 2, true).map(|_| ()).expect_err(test.name);
            assert!(matches!(error, Error::WrongData { .. } | Error::WrongWord { .. }), "{}: {error}", test.name);
        }
    }
    for target in [Target::Computes, Target::Waits] {
        let single = Plan { target: Some(target), iterations: Some(1), ..plan() };
        for test in tests().filter(|test| test.can_be_single()) {
            assert!(run(test, &single, 2, false).is_ok(), "{}", test.name);
            assert!(run(test, &single, 2, true).is_err(), "{}", test.name);
        }
    }
}

#[test]
fn a_window_has_as_many_operations_as_asked_for() {
    for (window, good) in [(1, true), (3, true), (200, true), (0, false), (1 << 20, false)] {
        let plan = Plan { window: Some(window), ..plan() };
        assert_eq!(plan.check().is_ok(), good, "{window}");
        for test in tests().filter(|test| good && plan.work(test) != test.work) {
            let figures = run(test, &plan, 2, false).unwrap();
            assert!(figures.iter().all(|f| f.iters as usize == 3 * window), "{} {figures:?}", test.name);
        }
    }
}

#[test]
fn what_takes_nanoseconds_is_timed_in_batches() {
    let by_time = Plan { iterations: None, ..plan() };
    let short = Schedule::new(&by_time, 8, 0.01);
    assert!(short.batch == 1000 && short.calls >= 100 * short.batch);
    let long = Schedule::new(&by_time, 8, 12.0);
    assert_eq!((long.batch, long.calls), (1, 10_000));
    let asked = Schedule::new(&plan(), 8, 0.01);
    assert_eq!((asked.batch, asked.calls), (3, 3));
    let endless = Schedule::new(&Plan { iterations: Some(u64::MAX), ..plan() }, 8, 12.0);
    assert_eq!((endless.batch, endless.calls), (1, u64::MAX));
}
