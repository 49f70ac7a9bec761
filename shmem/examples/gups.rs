//! HPCC RandomAccess: PEs change random words of a table that is spread over all PEs by atomic exclusive-or.
//!
//! Doing all updates a second time must restore the table, so every lost or doubled update shows. Prints giga-updates
//! per second.
//!
//! `symrail run -n 4 -- target/release/examples/gups [LOG2_OF_WORDS_PER_PE] [UPDATES_PER_WORD]`

use std::time::Instant;

use symrail::{Result, Runtime, SymSlice};

/// The benchmark's generator: powers of `x` modulo a primitive polynomial over GF(2).
const POLYNOMIAL: u64 = 7;

/// The generator's next value: times `x`.
fn next(random: u64) -> u64 {
    random << 1 ^ if random >> 63 == 1 { POLYNOMIAL } else { 0 }
}

/// The generator's value at position `n`: `x` to the power `n`, by squaring.
fn at_position(mut n: u64) -> u64 {
    let times = |a: u64, b: u64| (0..64).rev().fold(0, |sum, bit| next(sum) ^ if b >> bit & 1 == 1 { a } else { 0 });
    let (mut power, mut result) = (2, 1);
    while n > 0 {
        if n & 1 == 1 {
            result = times(result, power);
        }
        power = times(power, power);
        n >>= 1;
    }
    result
}

/// Does this PE's share of the updates; they are complete on all PEs when it returns.
fn update(table: &SymSlice<u64>, updates: u64) -> Result<()> {
    let rt = table.runtime();
    let words = table.len() as u64;
    let all = words * u64::from(rt.n_pes());
    let mut random = at_position(u64::from(rt.my_pe()) * updates);
    for _ in 0..updates {
        random = next(random);
        let word = random % all;
        table.atomic_xor((word % words) as usize, random, (word / words) as u32)?;
    }
    rt.barrier_all()
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map_while(|arg| arg.parse::<u64>().ok());
    let words = 1u64 << args.next().unwrap_or(16);
    let updates = args.next().unwrap_or(4) * words;
    let rt = Runtime::init()?;
    let first = u64::from(rt.my_pe()) * words;
    let table = rt.alloc_slice::<u64>(words as usize)?;
    for i in 0..words {
        table.write(i as usize, first + i)?;
    }
    rt.barrier_all()?;

    let start = Instant::now();
    update(&table, updates)?;
    let seconds = start.elapsed().as_secs_f64();
    let changed = table.to_vec()?.into_iter().zip(first..).filter(|(now, before)| now != before).count();

    update(&table, updates)?;
    let wrong = table.to_vec()?.into_iter().zip(first..).filter(|(now, before)| now != before).count();
    println!("PE {}: {changed} of {words} words changed, {wrong} wrong after undoing it", rt.my_pe());
    assert!(wrong == 0 && changed > 0, "updates were lost");

    rt.barrier_all()?;
    if rt.my_pe() == 0 {
        let all = updates * u64::from(rt.n_pes());
        println!("{all} updates in {seconds:.3} s: {:.6} GUPS", all as f64 / seconds / 1e9);
    }
    table.free()?;
    rt.finalize()
}
