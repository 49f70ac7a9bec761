//! A simulated job: its PEs, the works that they do one after the other, and the order in which they run.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use symrail::simulation::{SharedTables, SimulatedPe, own_bytes, serve};
use symrail::{Pe, Settings};
use symrail_core::simulation::{nanos, set_counting, set_nanos, take_count, uncounted};
use symrail_transport::mock::timed::{TimedFabric, Traffic};

use crate::launcher::{Launcher, Losses};
use crate::memory::leave_large_to_the_system;
use crate::random::Random;
use crate::thread::{PeThread, pause};
use crate::work::{OfPe, Posted, USERS_BYTES, Work};
use crate::{Options, Result};

/// Nanoseconds between the end of one work and the beginning of the next; also the time within which all PEs begin it.
const BETWEEN: u64 = 10_000;
pub(crate) const WITHIN: u64 = 1_000;

/// State that the PEs and the job that schedules them share.
struct Shared {
    works: Vec<Work>,
    /// The number of works that have begun.
    begun: Cell<usize>,
    /// The number of PEs that have ended the last work that has begun.
    ended: Cell<u32>,
    outcomes: RefCell<Vec<Outcome>>,
    /// PEs that have died, or will.
    doomed: RefCell<Vec<bool>>,
}

/// The outcome of a work for one PE.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// The time at which it ended.
    pub at: u64,
    pub error: Option<String>,
    pub posted: Posted,
}

/// The result of a work.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    pub work: Work,
    /// Nanoseconds from the beginning of the last PE that began to the end of the last that ended.
    pub took: u64,
    /// The outcome of each PE.
    pub outcomes: Vec<Outcome>,
    /// Each PE's traffic meanwhile, and the bytes that it holds now.
    pub traffic: Vec<Traffic>,
    pub held: Vec<i64>,
    /// PEs that died in it.
    pub dead: Vec<Pe>,
}

/// A simulated job.
pub(crate) struct Job {
    options: Options,
    fabric: TimedFabric,
    shared: Rc<Shared>,
    losses: Losses,
    random: Random,
    /// `None` for a PE that has ended.
    pes: Vec<Option<PeThread>>,
    held: Vec<i64>,
    now: u64,
    /// The bytes for each PE of the job that a PE would keep in tables that exist once here.
    pub shared_bytes: usize,
    // Dropped after the PEs, whose heaps these are.
    _memory: Vec<Box<[u64]>>,
}

impl Job {
    /// PEs that have joined, and will do these works one after the other.
    ///
    /// # Errors
    /// A PE cannot join; no memory.
    pub fn new(options: &Options, works: Vec<Work>) -> Result<Job> {
        leave_large_to_the_system();
        let n = options.pes;
        let hosts: Vec<u32> = (0..n).map(|pe| pe / options.pes_of_a_host()).collect();
        let fabric = TimedFabric::new(options.costs, &hosts, options.carried, options.seed);
        let mut settings = Settings::default();
        (settings.proxy_channels, settings.timeout_s, settings.disable_p2p) = (0, options.timeout_s, true);
        let bytes = own_bytes(n).next_multiple_of(64 << 10) + USERS_BYTES;
        let mut memory: Vec<Box<[u64]>> = (0..n).map(|_| vec![0; bytes / 8].into_boxed_slice()).collect();
        set_nanos(Some(0));
        let (mut opened, mut held) = (Vec::new(), Vec::new());
        for (pe, memory) in (0..).zip(&mut memory) {
            let base = NonNull::from(&mut **memory).cast();
            let _ = take_count();
            set_counting(true);
            // SAFETY: the memory is new, nothing else uses it, and it is dropped after the PEs.
            let pe = unsafe { SimulatedPe::open(&fabric, pe, n, &settings, base, bytes as u64) };
            set_counting(false);
            held.push(take_count());
            opened.push((pe?, base));
        }
        let said: Vec<_> = opened.iter().map(|(pe, _)| pe.connection_info()).collect();
        let firsts: Arc<[Pe]> = hosts.iter().map(|host| host * options.pes_of_a_host()).collect();
        let tables = SharedTables::new(&said, firsts)?;
        let shared = Rc::new(Shared {
            works,
            begun: Cell::new(0),
            ended: Cell::new(0),
            outcomes: RefCell::new(vec![Outcome::default(); n as usize]),
            doomed: RefCell::new(vec![false; n as usize]),
        });
        let losses = Losses::default();
        let mut pes = Vec::new();
        for (me, (pe, base)) in (0..).zip(opened) {
            let launcher = Launcher::new(me, n, losses.clone());
            let (shared, tables, options) = (Rc::clone(&shared), tables.clone(), options.clone());
            let body = move || {
                let runtime = match pe.join(&tables, Box::new(launcher)) {
                    Ok(runtime) => runtime,
                    Err(error) => return shared.end(me, Err(error.into()), Posted::default()),
                };
                let mut of_pe = OfPe::new(&runtime, base.as_ptr(), bytes - USERS_BYTES, &options);
                shared.end(me, Ok(()), Posted::default());
                for number in 0..shared.works.len() {
                    while shared.begun.get() <= number {
                        serve(&runtime);
                    }
                    let (result, posted) = of_pe.perform_counted(&shared.works[number]);
                    shared.end(me, result, posted);
                }
                while shared.begun.get() <= shared.works.len() {
                    serve(&runtime);
                }
            };
            pes.push(Some(PeThread::new(body)?));
        }
        let mut job = Job {
            options: options.clone(),
            fabric,
            shared,
            losses,
            random: Random::new(options.seed),
            pes,
            held,
            now: 0,
            shared_bytes: tables.bytes_each(),
            _memory: memory,
        };
        job.begin();
        job.run_until_all_end();
        Ok(job)
    }

    /// Lets all PEs do the next work, in which some may die. `None`: there is no further work.
    pub fn next_work(&mut self) -> Option<Done> {
        let number = self.shared.begun.get();
        let work = self.shared.works.get(number)?.clone();
        let before: Vec<_> = (0..self.options.pes).map(|pe| self.fabric.traffic(pe)).collect();
        self.shared.begun.set(number + 1);
        self.begin();
        let begun = self.now + WITHIN;
        let dead = if self.options.dies_in.as_ref() == Some(&work) { self.doom() } else { Vec::new() };
        self.run_until_all_end();
        let outcomes = self.shared.outcomes.borrow().clone();
        let traffic = before.iter().zip(0..).map(|(before, pe)| self.fabric.traffic(pe).since(before)).collect();
        let took = self.now.saturating_sub(begun);
        Some(Done { work, took, outcomes, traffic, held: self.held.clone(), dead })
    }

    /// Bytes that each PE holds, apart from shared tables.
    pub fn held(&self) -> &[i64] {
        &self.held
    }

    /// Ends all PEs, so that their memory is freed.
    pub fn end(mut self) {
        self.shared.begun.set(usize::MAX);
        self.begin();
        while let Some((time, pe)) = self.fabric.next() {
            self.run(time, pe);
        }
        set_nanos(None);
        // A PE that has died never ends: its memory stays allocated.
        self.pes.into_iter().flatten().for_each(std::mem::forget);
    }

    /// PEs that are alive begin within a short time, each at a random time.
    fn begin(&mut self) {
        self.shared.ended.set(0);
        self.now += BETWEEN;
        for pe in 0..self.options.pes {
            let at = self.now + self.random.below(WITHIN);
            self.fabric.run_at(pe, at);
        }
    }

    /// Chooses the PEs that die when the work begins.
    fn doom(&mut self) -> Vec<Pe> {
        let n = self.options.pes;
        let mut dead = Vec::new();
        while dead.len() < (n / 100).max(1) as usize {
            let pe = self.random.below(n.into()) as Pe;
            if !std::mem::replace(&mut self.shared.doomed.borrow_mut()[pe as usize], true) {
                self.fabric.kill_at(pe, self.now);
                self.losses.add(self.now + self.options.reported_after, pe);
                dead.push(pe);
            }
        }
        dead.sort_unstable();
        dead
    }

    fn run_until_all_end(&mut self) {
        let alive = self.shared.doomed.borrow().iter().filter(|doomed| !**doomed).count();
        while (self.shared.ended.get() as usize) < alive
            && let Some((time, pe)) = self.fabric.next()
        {
            self.run(time, pe);
        }
        let last = self.shared.outcomes.borrow().iter().map(|outcome| outcome.at).max();
        self.now = self.now.max(last.unwrap_or(0));
    }

    fn run(&mut self, time: u64, pe: Pe) {
        let Some(thread) = &mut self.pes[pe as usize] else { return };
        set_nanos(Some(time));
        let _ = take_count();
        set_counting(true);
        let ended = thread.run();
        set_counting(false);
        self.held[pe as usize] += take_count();
        self.fabric.waits(pe, nanos());
        if ended {
            self.pes[pe as usize] = None;
            self.fabric.kill_at(pe, 0);
        }
    }
}

impl Shared {
    fn end(&self, me: Pe, result: Result<()>, posted: Posted) {
        uncounted(|| {
            let error = result.err().map(|error| error.to_string());
            self.outcomes.borrow_mut()[me as usize] = Outcome { at: nanos(), error, posted };
        });
        if !self.doomed.borrow()[me as usize] {
            self.ended.set(self.ended.get() + 1);
        }
        pause();
    }
}
