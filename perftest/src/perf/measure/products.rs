//! Products of layers that are spread over all PEs: rows of 512 numbers times 512 x 512 of each PE.
//!
//! The test measures a round and its parts: the product of a PE alone, and the moves, with nothing to multiply. All PEs
//! do each of these at the same time. The share of the shorter part that the round hides is its overlap efficiency.

use std::fmt;

use symrail::{Group, Runtime, Team, TeamHeap};
use symrail_overlap::{AllGatherMatmul, Layout, MatmulReduce, Reduced, Schedule, Shards, Weight};

use super::Bench;
use crate::perf::backend::Backend;
use crate::perf::catalog::Product;
use crate::perf::error::{Error, Result};
use crate::perf::heap::{self, WIDTH};
use crate::perf::sample::Figures;

/// Microseconds of a round and of its parts: medians of PE 0.
pub struct Parts {
    pub(super) rows: usize,
    pub(super) schedule: Schedule,
    pub(super) round: f64,
    pub(super) product: f64,
    pub(super) moves: f64,
}

impl Parts {
    /// The share of the shorter part that a round hides, in percent: 100 when the round takes as long as the longer
    /// part, 0 when it takes as long as both together, less when it takes even longer.
    fn efficiency(&self) -> f64 {
        let Parts { round, product, moves, .. } = self;
        100.0 * (product + moves - round) / product.min(*moves).max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { rows, round, product, moves, .. } = self;
        match self.schedule {
            Schedule::Direct { rows: piece } => write!(f, "{rows} rows, {piece} at a time")?,
            _ => write!(f, "{rows} rows at once")?,
        }
        write!(f, ": a round takes {round:.0} us, the product alone {product:.0} us, moves alone {moves:.0} us; ")?;
        write!(f, "overlap efficiency {:.0} %", self.efficiency())
    }
}

/// A plan of either kind.
enum Layer {
    Gather(AllGatherMatmul),
    Reduce(MatmulReduce),
}

impl Layer {
    fn new(heap: &TeamHeap, team: &Team, what: Product, (shards, schedule): &(Shards, Schedule)) -> Result<Layer> {
        let reduce = |reduced| MatmulReduce::new(heap, team, shards, WIDTH, *schedule, reduced).map(Layer::Reduce);
        Ok(match what {
            Product::AllGather => Layer::Gather(AllGatherMatmul::new(heap, team, shards, WIDTH, *schedule)?),
            Product::ReduceScatter => reduce(Reduced::ToShards)?,
            Product::AllReduce => reduce(Reduced::Everywhere)?,
        })
    }

    fn run(&mut self, rows: &[f32], weight: &Weight<'_>, output: &mut [f32]) -> Result<()> {
        let done = match self {
            Layer::Gather(plan) => plan.run(rows, weight, output),
            Layer::Reduce(plan) => plan.run(rows, weight, output),
        };
        Ok(done?)
    }

    fn free(self, team: &Team) -> Result<()> {
        let done = match self {
            Layer::Gather(plan) => plan.free(team),
            Layer::Reduce(plan) => plan.free(team),
        };
        Ok(done?)
    }
}

impl<C: Backend> Bench<'_, C> {
    /// Measures one size: bytes of all rows that move. PE 0 returns the figures. Collective.
    pub fn product(&mut self, rt: &Runtime, what: Product, size: usize) -> Result<(Option<Figures>, Parts)> {
        let (me, ranks) = (rt.my_pe() as usize, rt.n_pes() as usize);
        let spread = heap::rows(size, ranks);
        let (rows, own) = (spread.0.rows(), spread.0.of(me));
        let heap = TeamHeap::new(rt, heap::of_product(what, size, rt.n_pes()))?;
        let world = rt.team_world()?;
        let Some(alone) = world.split(Group::new(me as i64, 1, 1, rt.my_pe(), rt.n_pes()))? else {
            return Err(Error::Arguments("a PE is in no team of its own".into()));
        };
        let mut together = Layer::new(&heap, &world, what, &spread)?;
        let mut single = Layer::new(&heap, &alone, what, &(Shards::new(&[rows]), Schedule::Unfused))?;

        let all: Vec<f32> = (0..rows * WIDTH).map(|i| row_number(i / WIDTH) + (i % 2) as f32).collect();
        let values: Vec<f32> = (0..WIDTH * WIDTH).map(|i| column_number(me, i % WIDTH)).collect();
        let weight = Weight::new(&values, Layout::ByInputs, WIDTH, WIDTH);
        let gathers = what == Product::AllGather;
        // A gather without outputs, or a reduction without inputs, has nothing to multiply, and yet all rows move.
        let (nothing, given, taken) = if gathers {
            (Weight::new(&[], Layout::ByInputs, WIDTH, 0), own.start * WIDTH..own.end * WIDTH, 0..rows)
        } else {
            (Weight::new(&[], Layout::ByInputs, 0, WIDTH), 0..rows * WIDTH, own)
        };
        let taken = if what == Product::AllReduce { 0..rows } else { taken };
        let mut output = vec![f32::NAN; taken.len() * WIDTH];
        together.run(&all[given.clone()], &weight, &mut output)?;
        let factors: Vec<f32> = (0..WIDTH)
            .map(|column| {
                let of = if gathers { me..me + 1 } else { 0..ranks };
                of.map(|rank| column_number(rank, column)).sum()
            })
            .collect();
        self.multiplied(&output, (taken.start, &factors), size)?;
        let (samples, warmup) =
            self.timed_together(size, |_| together.run(&all[given.clone()], &weight, &mut output))?;
        self.multiplied(&output, (taken.start, &factors), size)?;

        let mut everything = vec![0.0; rows * WIDTH];
        let (product, _) = self.timed_together(size, |_| single.run(&all, &weight, &mut everything))?;
        let mut none = if gathers { Vec::new() } else { output };
        let to_move = if gathers { &all[given] } else { &[] };
        let (moves, _) = self.timed_together(size, |_| together.run(to_move, &nothing, &mut none))?;
        single.free(&alone)?;
        together.free(&world)?;
        alone.destroy()?;
        heap.free()?;
        let [round, product, moves] = [&samples, &product, &moves].map(|samples| samples.latency(1.0, 0).p50);
        let parts = Parts { rows, schedule: spread.1, round, product, moves };
        // Thousands of operations; per microsecond they give Gop/s.
        let work = (2 * rows * WIDTH * WIDTH) as f64 / 1e3;
        Ok((self.is_first().then(|| samples.rate(work, 1, warmup)), parts))
    }

    /// Checks rows of a product, from `first` on, for the numbers that these factors of columns give.
    fn multiplied(&self, output: &[f32], (first, factors): (usize, &[f32]), size: usize) -> Result<()> {
        for (i, found) in output.iter().enumerate() {
            // The numbers are whole and below 2^24 if there are fewer than a thousand PEs.
            let row = WIDTH as f32 * row_number(first + i / WIDTH) + (WIDTH / 2) as f32;
            let expected = row * factors[i % WIDTH];
            let (one, other) = (found.to_le_bytes(), expected.to_le_bytes());
            if let Some(byte) = (0..4).find(|&byte| one[byte] != other[byte]) {
                let (test, pe, at) = (self.test.name, self.backend.pe(), size_of::<f32>() * i + byte);
                return Err(Error::WrongData { test, size, pe, at, found: one[byte], expected: other[byte] });
            }
        }
        Ok(())
    }
}

/// The numbers of a row; every other one is larger by 1.
pub(super) fn row_number(row: usize) -> f32 {
    (row % 7) as f32
}

/// The numbers of a column of a PE's weight.
pub(super) fn column_number(rank: usize, column: usize) -> f32 {
    ((rank + column) % 5 + 1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_is_the_hidden_share_of_the_shorter_part() {
        let of =
            |round| Parts { rows: 8, schedule: Schedule::Unfused, round, product: 100.0, moves: 40.0 }.efficiency();
        assert_eq!([100.0, 120.0, 140.0, 160.0].map(of), [100.0, 50.0, 0.0, -50.0]);
    }
}
