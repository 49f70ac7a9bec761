//! The proof that a plan works: a symbolic run.
//!
//! Each chunk is a few units, as many as its blocks' shares need. The content of a unit is a number: in inputs a random
//! one for each unit of each rank, elsewhere garbage. Reductions add numbers. So a number identifies its summands, and
//! a wrong result passes with probability 2^-128. Blocks run one after another, each until it must wait. Every other
//! order gives the same result, because no two accesses to a unit may change places if one of them writes ([`memory`]).

mod end;
mod memory;
mod perform;

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use super::{Action, BufferType, Check, Collective, Plan, Span, Step};
use crate::error::{Place, Result};
use memory::{Clock, Memory};

/// The most units of all buffers together that are simulated: some hundreds of megabytes.
const MAX_UNITS: u64 = 1 << 21;
/// The most steps of a block that are simulated, including its pipelines' iterations.
const MAX_STEPS: usize = 1 << 16;

/// The plan's needs before and after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Barriers {
    /// PEs must wait for one another before a call: a rank accesses memory of another one that may not have begun it.
    pub before: bool,
    /// PEs must wait for one another after a call: a rank may still access another one's input or output when that
    /// ends.
    pub after: bool,
    /// A call may end while its puts are under way: they read scratch chunks only, and have arrived before a call uses
    /// these chunks again.
    pub leaves_puts: bool,
}

/// Proves a plan, and returns its needs; and the root, if the result depends on one.
pub(super) fn simulate(plan: &Plan, check: Check) -> Result<(Barriers, Option<u32>)> {
    let mut world = World::new(plan, check)?;
    world.run()?;
    world.check_signals()?;
    let root = if check == Check::Result { world.check_result()? } else { None };
    Ok((world.barriers(), root))
}

struct World<'a> {
    plan: &'a Plan,
    /// Units of a chunk, and of a part.
    units: u64,
    part: u64,
    ranks: Vec<RankState>,
    blocks: Vec<Block<'a>>,
    /// The blocks of each rank.
    blocks_of: Vec<Range<usize>>,
    check: Check,
    /// A rank accesses memory of another one that may not have begun, other than by packets: inputs and outputs, and
    /// scratch chunks.
    early: [bool; 2],
    /// The pairs of ranks of which the first accesses scratch chunks of the second.
    scratch_of: BTreeSet<(usize, usize)>,
}

#[derive(Default)]
struct RankState {
    user: [Memory; 2],
    scratch: Memory,
    packets: Vec<Option<(u128, Rc<Clock>)>>,
    /// Their values, and the clocks of their releases.
    semaphores: Vec<(u64, Clock)>,
    barriers: Vec<Barrier>,
    words: Vec<Word>,
    /// The ranks that it writes packets to.
    writes_to: Vec<usize>,
}

/// A barrier between blocks of a rank.
#[derive(Default)]
struct Barrier {
    arrivals: usize,
    /// The merged clocks of each round.
    clocks: Vec<Clock>,
}

/// A word for signals.
#[derive(Default)]
struct Word {
    signals: Vec<(Rc<Clock>, Place)>,
    waits: usize,
}

struct Block<'a> {
    rank: usize,
    /// The remaining steps, and in a pipeline the iteration's window of units.
    steps: Vec<(&'a Step, Option<(u64, u64)>)>,
    next: usize,
    /// Progress in the next step: how many of its semaphores or channels are done, or the arrivals at its barrier that
    /// end it.
    within: usize,
    clock: Clock,
}

/// The number of an input's unit: two rounds of a mixer, so that sums identify their summands.
fn number(rank: usize, unit: u64) -> u128 {
    let mix = |mut x: u64| {
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    let seed = (rank as u64) << 40 ^ unit;
    u128::from(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))) << 64 | u128::from(mix(!seed))
}

const RUBBISH: usize = 1 << 20;

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, check: Check) -> Result<Self> {
        let mut units = 1;
        let mut longest = 0;
        for block in plan.ranks.iter().flat_map(|rank| &rank.blocks) {
            let mut steps = 0;
            for step in block {
                steps += 1;
                let inner = match &step.action {
                    Action::Pipeline { steps, .. } => &steps[..],
                    _ => &[],
                };
                steps += 2 * inner.len();
                if !inner.is_empty() {
                    units = units * 2 / gcd(units, 2);
                }
                for step in inner.iter().chain([step]) {
                    units = units / gcd(units, step.share.1) * step.share.1;
                    if units > MAX_UNITS {
                        return Err(plan.refuse(step.place, "its thread-block groups have too many sizes"));
                    }
                }
            }
            longest = longest.max(steps);
        }
        let chunks = |rank: &super::Rank| rank.input_chunks + rank.output_chunks + 2 * rank.scratch_chunks;
        let all = plan.ranks.iter().map(chunks).sum::<u64>().saturating_mul(units);
        if all > MAX_UNITS || longest > MAX_STEPS {
            let reason = format!("it is too large to be checked: {all} units of data, {longest} steps of a block");
            return Err(plan.refuse(Place::default(), reason));
        }
        let part = plan.parts().0 * units;
        let blocks_of = plan.ranks.iter().scan(0, |end, rank| {
            let start = *end;
            *end += rank.blocks.len();
            Some(start..*end)
        });
        let mut world = World {
            plan,
            units,
            part,
            ranks: Vec::new(),
            blocks: Vec::new(),
            blocks_of: blocks_of.collect(),
            check,
            early: [false; 2],
            scratch_of: BTreeSet::new(),
        };
        let blocks = world.blocks_of.last().map_or(0, |last| last.end);
        for (number, rank) in plan.ranks.iter().enumerate() {
            let state = world.new_rank(number, rank, blocks);
            world.ranks.push(state);
            for steps in &rank.blocks {
                let steps = steps.iter().flat_map(|step| world.unrolled(step)).collect();
                let mut clock = Clock::new(blocks);
                clock.tick(world.blocks.len());
                world.blocks.push(Block { rank: number, steps, next: 0, within: 0, clock });
            }
        }
        Ok(world)
    }

    /// A pipeline's steps, in two iterations; any other step unchanged.
    fn unrolled(&self, step: &'a Step) -> Vec<(&'a Step, Option<(u64, u64)>)> {
        let Action::Pipeline { chunks, steps, .. } = &step.action else { return vec![(step, None)] };
        let half = (chunks * self.units).div_ceil(2);
        let windows = [(0, half), (half, u64::MAX)];
        windows.iter().flat_map(|&window| steps.iter().map(move |step| (step, Some(window)))).collect()
    }

    fn new_rank(&self, number_of: usize, rank: &super::Rank, blocks: usize) -> RankState {
        let rubbish =
            |count: u64, kind: usize| Memory::new((0..count).map(|unit| number(RUBBISH + 4 * number_of + kind, unit)));
        let (inputs, outputs) = (rank.input_chunks * self.units, rank.output_chunks * self.units);
        let sizes = if self.plan.in_place { [inputs.max(outputs), 0] } else { [inputs, outputs] };
        let mut state = RankState {
            user: [rubbish(sizes[0], 0), rubbish(sizes[1], 1)],
            scratch: rubbish(rank.scratch_chunks * self.units, 2),
            packets: vec![None; (rank.scratch_chunks * self.units) as usize],
            semaphores: rank.semaphores.iter().map(|&value| (value, Clock::new(blocks))).collect(),
            barriers: (0..rank.barriers).map(|_| Barrier::default()).collect(),
            words: rank.inbound.iter().map(|_| Word::default()).collect(),
            writes_to: Vec::new(),
        };
        for unit in 0..inputs {
            let (array, at) = self.cell(number_of, BufferType::Input, unit);
            state.user[array].set(at, number(number_of, unit));
        }
        state
    }

    /// The cell of a unit of input or output: in place, the smaller buffer is this rank's part of the larger.
    fn cell(&self, rank: usize, buffer: BufferType, unit: u64) -> (usize, usize) {
        let (_, inputs, outputs) = self.plan.parts();
        let part_of = |parts: u64, others: u64| if parts < others { rank as u64 * self.part } else { 0 };
        match (self.plan.in_place, buffer) {
            (true, BufferType::Input) => (0, (unit + part_of(inputs, outputs)) as usize),
            (true, _) => (0, (unit + part_of(outputs, inputs)) as usize),
            (false, BufferType::Input) => (0, unit as usize),
            (false, _) => (1, unit as usize),
        }
    }

    fn run(&mut self) -> Result<()> {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for block in 0..self.blocks.len() {
                while self.step(block)? {
                    moved = true;
                }
            }
        }
        match self.blocks.iter().find(|block| block.next < block.steps.len()) {
            None => Ok(()),
            Some(stuck) => {
                let (step, _) = stuck.steps[stuck.next];
                Err(self
                    .plan
                    .refuse(step.place, format!("{} waits for ever: {}", step.name, self.awaited(stuck, step))))
            }
        }
    }

    fn awaited(&self, block: &Block<'_>, step: &Step) -> String {
        let state = &self.ranks[block.rank];
        match &step.action {
            Action::Wait { on } => {
                let word = on[block.within];
                let (from, Word { signals, waits }) = (self.plan.ranks[block.rank].inbound[word], &state.words[word]);
                format!("rank {from} signals {} times, and this is wait {}", signals.len(), waits + 1)
            }
            Action::Acquire(ids) => format!("nobody releases semaphore {}", ids[block.within]),
            Action::Barrier { id, blocks } => format!("not all {blocks} blocks come to barrier {id}"),
            _ => "packets that nobody writes".into(),
        }
    }

    /// Performs a block's next step. `false` if it has ended or must wait.
    fn step(&mut self, block: usize) -> Result<bool> {
        let Block { rank, next, .. } = self.blocks[block];
        let Some(&(step, window)) = self.blocks[block].steps.get(next) else { return Ok(false) };
        if !self.may_go_on(block, step) {
            return Ok(false);
        }
        self.perform(block, rank, step, window)?;
        let block = &mut self.blocks[block];
        block.next += 1;
        block.within = 0;
        Ok(true)
    }

    fn may_go_on(&mut self, number: usize, step: &Step) -> bool {
        let block = &mut self.blocks[number];
        let state = &mut self.ranks[block.rank];
        match &step.action {
            Action::Barrier { id, blocks } => {
                let barrier = &mut state.barriers[*id];
                if block.within == 0 {
                    let round = barrier.arrivals / *blocks;
                    barrier.arrivals += 1;
                    block.within = (round + 1) * *blocks;
                    match barrier.clocks.get_mut(round) {
                        Some(clock) => clock.learn(&block.clock),
                        None => barrier.clocks.push(block.clock.clone()),
                    }
                    block.clock.tick(number);
                }
                let complete = barrier.arrivals >= block.within;
                if complete {
                    block.clock.learn(&barrier.clocks[block.within / *blocks - 1]);
                }
                complete
            }
            Action::Acquire(ids) => {
                while let Some(&id) = ids.get(block.within) {
                    let (value, clock) = &mut state.semaphores[id];
                    if *value == 0 {
                        return false;
                    }
                    *value -= 1;
                    block.clock.learn(clock);
                    block.within += 1;
                }
                true
            }
            Action::Wait { on } => {
                while let Some(&word) = on.get(block.within) {
                    let word = &mut state.words[word];
                    let Some((clock, _)) = word.signals.get(word.waits) else { return false };
                    block.clock.learn(clock);
                    word.waits += 1;
                    block.within += 1;
                }
                true
            }
            Action::Forward { source, .. } | Action::Unpack { source, .. } => self.packets_are_there(step, &[*source]),
            Action::ReducePackets { packets, .. } => self.packets_are_there(step, packets),
            _ => true,
        }
    }

    /// An operation's units: this share of its span, limited to the window.
    fn range(&self, span: &Span, share: (u64, u64), window: Option<(u64, u64)>) -> std::ops::Range<u64> {
        let all = span.size * self.units;
        let start = |i: u64| i * (all / share.1) + i.min(all % share.1);
        let (from, to) = (start(share.0), start(share.0 + 1));
        let (low, high) = window.unwrap_or((0, u64::MAX));
        from.saturating_add(low).min(to)..from.saturating_add(high).min(to)
    }

    fn packets_are_there(&self, step: &Step, spans: &[Span]) -> bool {
        spans.iter().all(|span| {
            let packets = &self.ranks[span.rank].packets;
            let first = span.index * self.units;
            self.range(span, step.share, None).all(|unit| packets[(first + unit) as usize].is_some())
        })
    }
}
