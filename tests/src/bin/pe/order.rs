//! The order in which writes become visible. Arguments: the case, and the number of rounds.
//!
//! | argument | what PE 0 does to PE 1 |
//! |---|---|
//! | `signals` | put-signals of 8 bytes to 256 KiB, many in flight at once |
//! | `signals-unordered` | the same with a put and an unordered signal: a control |
//! | `fence` | A, fence, B, for all kinds of A and B |
//! | `fence-missing` | A, B: a control |
//! | `fence-get` | A, fence, a blocking get of A |
//!
//! PE 1 (for gets: PE 0) counts how often it observed the later write without the earlier one, and prints `early: N`.
use symrail::{Cmp, Result, Runtime, SignalOp, SignalUpdate, SymSlice};
use symrail_tests::pattern::mix;
use symrail_tests::pe;

/// Put-signals in flight at once.
const SLOTS: usize = 8;
/// Words of the largest block.
const WORDS: usize = (256 << 10) / 8;
/// Words read together.
const LOOK: usize = 64;

pub fn main() -> std::process::ExitCode {
    let (what, rounds) = (pe::arg(0, String::new()), pe::arg(1, 1000));
    pe::run(|rt| {
        let mut counts = 1;
        let early = match what.as_str() {
            "signals" => signals(rt, rounds, true)?,
            "signals-unordered" => signals(rt, rounds, false)?,
            "fence" => fences(rt, rounds, true)?,
            "fence-missing" => fences(rt, rounds, false)?,
            "fence-get" => {
                counts = 0;
                gets(rt, rounds)?
            }
            _ => panic!("nothing is called {what}"),
        };
        if rt.my_pe() == counts {
            println!("early: {early}");
        }
        rt.barrier_all()
    })
}

/// Words of round `round`: from one word to all, each power of two with equal probability.
fn words(round: u64) -> usize {
    let random = mix(3, round);
    let limit = 1 << (random % 16);
    (1 + (random >> 8) as usize % limit).min(WORDS)
}

fn signals(rt: &Runtime, rounds: u64, ordered: bool) -> Result<u64> {
    let data = rt.alloc_slice::<u64>(SLOTS * WORDS)?;
    let source = rt.alloc_slice::<u64>(SLOTS * WORDS)?;
    // Two signals for each slot, one that is set and one that is added to; and the receiver's progress.
    let signal = rt.alloc_slice::<u64>(2 * SLOTS)?;
    let seen = rt.alloc_slice::<u64>(1)?;
    let mut early = 0;
    for round in 1..=rounds {
        let slot = round as usize % SLOTS;
        let count = words(round);
        // Every other round of a slot sets, the others add.
        let add = round / SLOTS as u64 % 2 == 1;
        let (at, word) = (slot * WORDS, 2 * slot + usize::from(add));
        let (op, value) = if add { (SignalOp::Add, 2) } else { (SignalOp::Set, round) };
        if rt.my_pe() == 0 {
            if round > SLOTS as u64 {
                seen.wait_until(0, Cmp::Ge, round - SLOTS as u64)?;
            }
            source.write_slice(at, &vec![round; count])?;
            if ordered {
                data.put_signal_nbi(at, &source, at, count, SignalUpdate { word: (&signal, word), value, op }, 1)?;
            } else {
                data.put_nbi(at, &source, at, count, 1)?;
                signal.signal_op(word, value, op, 1)?;
            }
        } else if rt.my_pe() == 1 {
            // Rounds of a slot with an odd number of rounds before it add 2 each.
            let expected = if add { 2 * (round / SLOTS as u64).div_ceil(2) } else { round };
            signal.wait_until(word, Cmp::Eq, expected)?;
            early += u64::from(holds_other_than(&data, at, count, round)?);
            seen.p(0, round, 0)?;
        }
    }
    rt.barrier_all()?;
    Ok(early)
}

/// Whether a word of a block does not belong to this round.
fn holds_other_than(data: &SymSlice<u64>, at: usize, count: usize, round: u64) -> Result<bool> {
    // The last words first: they are the likeliest to be late, and waiting for them would hide that others are. Several
    // at a time, since each read of memory that the CPU cannot access is an operation.
    let mut words = [0; LOOK];
    for end in (1..=count).rev().step_by(LOOK) {
        let words = &mut words[..end.min(LOOK)];
        data.read_slice(at + end - words.len(), words)?;
        if words.iter().any(|&word| word != round) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The kinds of operations before or after a fence.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Small,
    Large,
    Amo,
    PutSignal,
}

const KINDS: [Kind; 4] = [Kind::Small, Kind::Large, Kind::Amo, Kind::PutSignal];

/// Memory that PE 0 changes: a block whose last word is checked, and a signal for the kind that has one.
struct Place {
    block: SymSlice<u64>,
    source: SymSlice<u64>,
    signal: SymSlice<u64>,
}

impl Place {
    fn new(rt: &Runtime) -> Result<Place> {
        Ok(Place { block: rt.alloc_slice(WORDS)?, source: rt.alloc_slice(WORDS)?, signal: rt.alloc_slice(1)? })
    }

    /// Words that a kind changes in a round.
    fn count(kind: Kind, round: u64) -> usize {
        match kind {
            Kind::Small | Kind::Amo => 1,
            Kind::Large => WORDS / 2 + words(round) / 2,
            Kind::PutSignal => words(round),
        }
    }

    fn change(&self, kind: Kind, round: u64) -> Result<()> {
        let count = Self::count(kind, round);
        match kind {
            Kind::Amo => return self.block.atomic_set(0, round, 1),
            Kind::Small => return self.block.p(0, round, 1),
            Kind::Large | Kind::PutSignal => self.source.write_slice(0, &vec![round; count])?,
        }
        match kind {
            Kind::PutSignal => {
                self.block.put_signal_nbi(0, &self.source, 0, count, SignalUpdate::set((&self.signal, 0), round), 1)
            }
            _ => self.block.put_nbi(0, &self.source, 0, count, 1),
        }
    }

    /// Waits until the change is visible, at its last word.
    fn wait(&self, kind: Kind, round: u64) -> Result<()> {
        match kind {
            Kind::PutSignal => self.signal.wait_until(0, Cmp::Eq, round),
            _ => self.block.wait_until(Self::count(kind, round) - 1, Cmp::Eq, round),
        }
        .map(drop)
    }

    /// Whether the change is incomplete now.
    fn lacks(&self, kind: Kind, round: u64) -> Result<bool> {
        let signal = kind == Kind::PutSignal && self.signal.read(0)? != round;
        Ok(signal || holds_other_than(&self.block, 0, Self::count(kind, round), round)?)
    }
}

fn fences(rt: &Runtime, rounds: u64, fenced: bool) -> Result<u64> {
    let (first, second) = (Place::new(rt)?, Place::new(rt)?);
    let seen = rt.alloc_slice::<u64>(1)?;
    let mut early = 0;
    for round in 1..=rounds {
        let (a, b) = (KINDS[(round % 4) as usize], KINDS[(round / 4 % 4) as usize]);
        if rt.my_pe() == 0 {
            first.change(a, round)?;
            if fenced {
                rt.fence()?;
            }
            second.change(b, round)?;
            // Operations in flight must have read the heap before it is changed.
            seen.wait_until(0, Cmp::Ge, round)?;
            rt.quiet()?;
        } else if rt.my_pe() == 1 {
            second.wait(b, round)?;
            let lacks = first.lacks(a, round)?;
            early += u64::from(lacks);
            if lacks && fenced {
                println!("round {round}: {b:?} was there before {a:?}");
            }
            first.wait(a, round)?;
            seen.p(0, round, 0)?;
        }
    }
    rt.barrier_all()?;
    Ok(early)
}

/// Gets of data that was put before a fence, of all sizes. Prints the time of a put of a word, a fence and a get.
fn gets(rt: &Runtime, rounds: u64) -> Result<u64> {
    let block = rt.alloc_slice::<u64>(WORDS)?;
    let mut early = 0;
    if rt.my_pe() == 0 {
        for round in 1..=rounds {
            let count = words(round);
            block.put(0, &vec![round; count], 1)?;
            rt.fence()?;
            // The last word first, which is the likeliest to be late.
            early += u64::from(block.g(count - 1, 1)? != round || block.g(0, 1)? != round);
        }
        let begun = std::time::Instant::now();
        for round in 1..=rounds {
            block.p(0, round, 1)?;
            rt.fence()?;
            early += u64::from(block.g(0, 1)? != round);
        }
        println!("a put, a fence and a get take {:?}", begun.elapsed() / rounds as u32);
    }
    rt.barrier_all()?;
    Ok(early)
}
