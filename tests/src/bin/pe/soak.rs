//! Everything at once, for as long as the argument says (seconds): puts with signals of random sizes to random PEs,
//! gets, adds and fetch-adds, all verified. Prints `rounds: N` and, for each PE, `memory: LANES KIB …`: the number of
//! lanes first used after the burst at the beginning, then the memory after that burst and after each tenth of the
//! time.
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use symrail::{Cmp, Result, Runtime, SignalUpdate, SymSlice};
use symrail_tests::pe;
use symrail_tests::used::Used;

/// Words of the block that each PE has for each other PE.
const BLOCK: usize = 16 << 10;
/// Counters of each PE.
const COUNTERS: usize = 16;
/// Operations of each kind to each PE in the burst: as many as an endpoint accepts. Large ones that go once round the
/// rails' completion queues, and fewer for a run of less than a minute.
const BURST: u64 = 2048;
const LARGE: u64 = 1536;
const LARGE_OF_SHORT: u64 = 64;
/// Bytes from which on a lane counts as used for more than keepalives.
const USED: u64 = 4096;
/// Rounds between two reads of the clock.
const ROUNDS: u64 = 16;

/// A source's operation on a target in a round, which both know. `None`: none.
fn size(source: u32, target: u32, round: u64) -> Option<usize> {
    let mut random = StdRng::seed_from_u64(round << 20 | u64::from(source) << 10 | u64::from(target));
    let largest = [8, 64, 1024, BLOCK][random.random_range(0..4)];
    random.random_bool(0.5).then(|| random.random_range(1..=largest))
}

fn word(pe: u32, round: u64, i: usize) -> u64 {
    u64::from(pe) << 56 ^ round << 20 ^ i as u64
}

struct Soak<'rt> {
    rt: &'rt Runtime,
    /// For each source: a block, and its signal.
    blocks: SymSlice<u64>,
    signals: SymSlice<u64>,
    /// Never changes.
    fixed: SymSlice<u64>,
    counters: SymSlice<u64>,
    tickets: SymSlice<u64>,
    /// This PE's additions to the counters of each PE.
    added: Vec<[u64; COUNTERS]>,
    drawn: u64,
}

impl<'rt> Soak<'rt> {
    fn new(rt: &'rt Runtime) -> Result<Self> {
        let n = rt.n_pes() as usize;
        let fixed = rt.alloc_slice::<u64>(BLOCK)?;
        (0..BLOCK).try_for_each(|i| fixed.write(i, word(rt.my_pe(), 0, i)))?;
        let soak = Soak {
            rt,
            blocks: rt.alloc_slice(n * BLOCK)?,
            signals: rt.alloc_slice(n)?,
            fixed,
            counters: rt.alloc_slice(COUNTERS)?,
            tickets: rt.alloc_slice(1)?,
            added: vec![[0; COUNTERS]; n],
            drawn: 0,
        };
        rt.barrier_all()?;
        Ok(soak)
    }

    /// Has more in flight than rounds ever have, from all to all. Providers keep buffers for the most that ever was in
    /// flight at once, and free none: memory that grows after this is a leak.
    fn burst(&self, large: u64) -> Result<()> {
        let (me, n) = (self.rt.my_pe() as usize, self.rt.n_pes());
        for i in 0..BURST {
            for target in (1..n).map(|distance| (me as u32 + distance) % n) {
                let words = if i < large { BLOCK / 2 } else { 1 << (i % 10) };
                let signal = SignalUpdate::set((&*self.signals, me), 0);
                self.blocks.put_signal_nbi(me * BLOCK, &self.fixed, 0, words, signal, target)?;
                self.counters.atomic_add(0, 0, target)?;
            }
        }
        self.rt.barrier_all()
    }

    fn lanes_used(&self) -> usize {
        self.rt.counters().iter().filter(|lane| lane.bytes > USED).count()
    }

    fn round(&mut self, round: u64) -> Result<()> {
        let (me, n) = (self.rt.my_pe(), self.rt.n_pes());
        let mut random = StdRng::seed_from_u64(round << 10 | u64::from(me));
        for target in 0..n {
            if let Some(size) = size(me, target, round) {
                let data: Vec<u64> = (0..size).map(|i| word(me, round, i)).collect();
                let at = me as usize * BLOCK;
                self.blocks.put_signal(at, &data, SignalUpdate::set((&self.signals, me as usize), round), target)?;
            }
            let (counter, amount) = (random.random_range(0..COUNTERS), random.random_range(1..1000));
            self.counters.atomic_add(counter, amount, target)?;
            self.added[target as usize][counter] += amount;
        }
        self.tickets.atomic_fetch_add(0, 1, random.random_range(0..n))?;
        self.drawn += 1;
        self.get(random.random_range(0..n), random.random_range(0..BLOCK))?;
        for source in 0..n {
            if let Some(size) = size(source, me, round) {
                self.signals.wait_until(source as usize, Cmp::Eq, round)?;
                let start = source as usize * BLOCK;
                let mut arrived = vec![0; size];
                self.blocks.read_slice(start, &mut arrived)?;
                let wrong = arrived.iter().enumerate().position(|(i, &found)| found != word(source, round, i));
                assert_eq!(wrong, None, "round {round}: word of {size} from PE {source} that is wrong at PE {me}");
            }
        }
        self.rt.barrier_all()
    }

    fn get(&self, from: u32, start: usize) -> Result<()> {
        let mut found = vec![0; (BLOCK - start).min(3000)];
        self.fixed.get(start, &mut found, from)?;
        let right = found.iter().enumerate().all(|(i, &found)| found == word(from, 0, start + i));
        assert!(right, "get of {} words at {start} from PE {from}", found.len());
        Ok(())
    }

    /// Checks that every add was applied once.
    fn check(&self) -> Result<()> {
        let n = self.rt.n_pes() as usize;
        let all = self.rt.alloc_slice::<u64>(n * COUNTERS)?;
        let drawn = self.rt.alloc_slice::<u64>(n)?;
        for target in 0..n {
            all.put(self.rt.my_pe() as usize * COUNTERS, &self.added[target], target as u32)?;
        }
        for target in 0..n {
            drawn.put(self.rt.my_pe() as usize, &[self.drawn], target as u32)?;
        }
        self.rt.barrier_all()?;
        for counter in 0..COUNTERS {
            let expected: u64 = (0..n).map(|pe| all.read(pe * COUNTERS + counter)).sum::<Result<u64>>()?;
            assert_eq!(self.counters.read(counter)?, expected, "counter {counter} of PE {}", self.rt.my_pe());
        }
        let tickets: Vec<u64> = (0..n as u32).map(|pe| self.tickets.g(0, pe)).collect::<Result<_>>()?;
        assert_eq!(tickets.iter().sum::<u64>(), drawn.to_vec()?.iter().sum::<u64>(), "tickets");
        self.rt.barrier_all()
    }
}

pub fn main() -> std::process::ExitCode {
    let seconds = Duration::from_secs(pe::arg(0, 5));
    pe::run(|rt| {
        let mut soak = Soak::new(rt)?;
        let stop = rt.alloc_slice::<u64>(1)?;
        soak.burst(if seconds.as_secs() < 60 { LARGE_OF_SHORT } else { LARGE })?;
        let lanes = soak.lanes_used();
        let (begun, mut round, mut memory) = (Instant::now(), 0, vec![Used::now().kib]);
        while stop.read(0)? == 0 {
            for _ in 0..ROUNDS {
                round += 1;
                soak.round(round)?;
            }
            if begun.elapsed() > seconds / 10 * memory.len() as u32 {
                memory.push(Used::now().kib);
            }
            if rt.my_pe() == 0 && begun.elapsed() > seconds {
                (0..rt.n_pes()).try_for_each(|pe| stop.p(0, 1, pe))?;
            }
            rt.barrier_all()?;
        }
        memory.push(Used::now().kib);
        soak.check()?;
        let lanes = soak.lanes_used() - lanes;
        println!("memory: {lanes}{}", memory.iter().map(|kib| format!(" {kib}")).collect::<String>());
        if rt.my_pe() == 0 {
            println!("rounds: {round}");
        }
        Ok(())
    })
}
