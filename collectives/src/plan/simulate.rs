//! The proof that a plan works: it is run in the mind.
//!
//! Each chunk is a few units, as many as its blocks' shares need. What lies in a unit is a number: in inputs a random
//! one for each unit of each rank, in all else rubbish. Reductions add numbers. So a number says what it was made of,
//! and a wrong one is right by an accident of one in 2^128. Blocks run one after another, each until it must wait, in
//! several orders: forwards, backwards, and step by step.
//!
//! Besides, each block carries along the ranks of which it knows that they have begun this call.

use super::{Action, BufferType, Check, Collective, Plan, Span, Step};
use crate::error::{Place, Result};

/// Units of all buffers together that are worth a simulation: some hundreds of megabytes.
const MAX_UNITS: u64 = 1 << 23;
/// Steps of a block, its pipelines' iterations included, that are.
const MAX_STEPS: usize = 1 << 16;

/// The ranks that a block has heard of; of more than 128 ranks nothing is known.
type Heard = u128;

/// Proves a plan, and says whether PEs must meet before each call.
pub(super) fn simulate(plan: &Plan, check: Check) -> Result<bool> {
    let orders: &[Order] = &[Order::Forwards, Order::Backwards, Order::Stepwise];
    let mut meets = false;
    for &order in orders {
        let mut world = World::new(plan)?;
        world.run(order)?;
        world.check_signals()?;
        if check == Check::Result {
            world.check_result()?;
        }
        meets |= !world.is_heard_by_all();
    }
    Ok(meets)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Forwards,
    Backwards,
    Stepwise,
}

struct World<'a> {
    plan: &'a Plan,
    /// Units of a chunk, and of a part.
    units: u64,
    part: u64,
    ranks: Vec<RankState>,
    blocks: Vec<Block<'a>>,
    /// Somebody writes to another rank's memory other than packets.
    writes_plain: bool,
}

#[derive(Default)]
struct RankState {
    user: [Vec<u128>; 2],
    scratch: Vec<u128>,
    packets: Vec<Option<(u128, Heard)>>,
    semaphores: Vec<u64>,
    arrivals: Vec<usize>,
    words: Vec<Word>,
    /// The ranks that it writes packets to.
    writes_to: Heard,
}

/// Where signals arrive.
#[derive(Default)]
struct Word {
    signals: Vec<(Heard, Place)>,
    waits: usize,
}

struct Block<'a> {
    rank: usize,
    /// What is left to do, and in a pipeline the iteration's window of units.
    steps: Vec<(&'a Step, Option<(u64, u64)>)>,
    next: usize,
    /// Of the next step: how many of its semaphores or channels are done, or the arrivals at its barrier that end it.
    within: usize,
    heard: Heard,
}

fn bit(rank: usize) -> Heard {
    if rank < 128 { 1 << rank } else { 0 }
}

/// The number of an input's unit: two rounds of a mixer, so that sums tell their parts.
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
    fn new(plan: &'a Plan) -> Result<Self> {
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
        let mut world = World { plan, units, part, ranks: Vec::new(), blocks: Vec::new(), writes_plain: false };
        for (number, rank) in plan.ranks.iter().enumerate() {
            world.ranks.push(world.new_rank(number, rank));
            for steps in &rank.blocks {
                let steps = steps.iter().flat_map(|step| world.unrolled(step)).collect();
                world.blocks.push(Block { rank: number, steps, next: 0, within: 0, heard: bit(number) });
            }
        }
        Ok(world)
    }

    /// A pipeline's steps, in two iterations; any other step as it is.
    fn unrolled(&self, step: &'a Step) -> Vec<(&'a Step, Option<(u64, u64)>)> {
        let Action::Pipeline { chunks, steps, .. } = &step.action else { return vec![(step, None)] };
        let half = (chunks * self.units).div_ceil(2);
        let windows = [(0, half), (half, u64::MAX)];
        windows.iter().flat_map(|&window| steps.iter().map(move |step| (step, Some(window)))).collect()
    }

    fn new_rank(&self, number_of: usize, rank: &super::Rank) -> RankState {
        let rubbish = |count: u64, kind: usize| -> Vec<u128> {
            (0..count).map(|unit| number(RUBBISH + 4 * number_of + kind, unit)).collect()
        };
        let (inputs, outputs) = (rank.input_chunks * self.units, rank.output_chunks * self.units);
        let sizes = if self.plan.in_place { [inputs.max(outputs), 0] } else { [inputs, outputs] };
        let mut state = RankState {
            user: [rubbish(sizes[0], 0), rubbish(sizes[1], 1)],
            scratch: rubbish(rank.scratch_chunks * self.units, 2),
            packets: vec![None; (rank.scratch_chunks * self.units) as usize],
            semaphores: rank.semaphores.clone(),
            arrivals: vec![0; rank.barriers],
            words: rank.inbound.iter().map(|_| Word::default()).collect(),
            writes_to: 0,
        };
        for unit in 0..inputs {
            let (array, at) = self.cell(number_of, BufferType::Input, unit);
            state.user[array][at] = number(number_of, unit);
        }
        state
    }

    /// Where a unit of input or output is: in place, the smaller of them is this rank's part of the larger.
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

    fn run(&mut self, order: Order) -> Result<()> {
        let mut numbers: Vec<usize> = (0..self.blocks.len()).collect();
        if order == Order::Backwards {
            numbers.reverse();
        }
        loop {
            let mut moved = false;
            for &block in &numbers {
                while self.step(block)? {
                    moved = true;
                    if order == Order::Stepwise {
                        break;
                    }
                }
            }
            if !moved {
                break;
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

    /// Does a block's next step. `false` if it is at its end or must wait.
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
                if block.within == 0 {
                    state.arrivals[*id] += 1;
                    block.within = state.arrivals[*id].next_multiple_of(*blocks);
                }
                state.arrivals[*id] >= block.within
            }
            Action::Acquire(ids) => {
                while let Some(&id) = ids.get(block.within) {
                    if state.semaphores[id] == 0 {
                        return false;
                    }
                    state.semaphores[id] -= 1;
                    block.within += 1;
                }
                true
            }
            Action::Wait { on } => {
                while let Some(&word) = on.get(block.within) {
                    let word = &mut state.words[word];
                    let Some((heard, _)) = word.signals.get(word.waits) else { return false };
                    block.heard |= heard;
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

    /// An operation's units: of its span those of its share, and of these the window's.
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

    fn perform(&mut self, block: usize, rank: usize, step: &Step, window: Option<(u64, u64)>) -> Result<()> {
        let heard = self.blocks[block].heard;
        match &step.action {
            Action::Nop | Action::Barrier { .. } | Action::Acquire(_) | Action::Wait { .. } | Action::Flush => {}
            Action::Release(ids) => ids.iter().for_each(|&id| self.ranks[rank].semaphores[id] += 1),
            Action::Signal { to, .. } => self.signal(to, heard, step.place),
            Action::Copy { pairs, then, .. } => {
                for (source, dest) in pairs {
                    for unit in self.range(source, step.share, window) {
                        let value = self.read(source, unit);
                        self.write(rank, dest, unit, value);
                    }
                }
                self.signal(then, heard, step.place);
            }
            Action::Reduce { sources, dest, sends, .. } => {
                for unit in self.range(dest, step.share, window) {
                    let value = sources.iter().fold(0u128, |sum, span| sum.wrapping_add(self.read(span, unit)));
                    for dest in sends.iter().chain([dest]) {
                        self.write(rank, dest, unit, value);
                    }
                }
            }
            Action::Pack { pairs } => {
                for (source, dest) in pairs {
                    for unit in self.range(source, step.share, None) {
                        let value = self.read(source, unit);
                        self.write_packet(rank, step, dest, unit, (value, heard))?;
                    }
                }
            }
            Action::Forward { source, dests } => {
                for unit in self.range(source, step.share, None) {
                    let value = self.read_packet(block, source, unit);
                    for dest in dests {
                        self.write_packet(rank, step, dest, unit, value)?;
                    }
                }
            }
            Action::Unpack { source, dest } => {
                for unit in self.range(source, step.share, None) {
                    let (value, _) = self.read_packet(block, source, unit);
                    self.write(rank, dest, unit, value);
                }
            }
            Action::ReducePackets { plain, packets, dest, sends, .. } => {
                for unit in self.range(dest, step.share, None) {
                    let mut value = self.read(plain, unit);
                    for span in packets {
                        value = value.wrapping_add(self.read_packet(block, span, unit).0);
                    }
                    self.write(rank, dest, unit, value);
                    let heard = self.blocks[block].heard;
                    for dest in sends {
                        self.write_packet(rank, step, dest, unit, (value, heard))?;
                    }
                }
            }
            Action::Pipeline { .. } => {}
        }
        Ok(())
    }

    fn signal(&mut self, to: &[super::Link], heard: Heard, place: Place) {
        for link in to {
            self.ranks[link.rank].words[link.word].signals.push((heard, place));
        }
    }

    fn read(&self, span: &Span, unit: u64) -> u128 {
        let (state, at) = (&self.ranks[span.rank], span.index * self.units + unit);
        if span.buffer == BufferType::Scratch {
            return state.scratch[at as usize];
        }
        let (array, at) = self.cell(span.rank, span.buffer, at);
        state.user[array][at]
    }

    fn write(&mut self, by: usize, span: &Span, unit: u64, value: u128) {
        self.writes_plain |= by != span.rank;
        let at = span.index * self.units + unit;
        if span.buffer == BufferType::Scratch {
            self.ranks[span.rank].scratch[at as usize] = value;
            return;
        }
        let (array, at) = self.cell(span.rank, span.buffer, at);
        self.ranks[span.rank].user[array][at] = value;
    }

    fn read_packet(&mut self, block: usize, span: &Span, unit: u64) -> (u128, Heard) {
        let packet = self.ranks[span.rank].packets[(span.index * self.units + unit) as usize];
        let (value, heard) = packet.unwrap_or_default();
        self.blocks[block].heard |= heard;
        (value, self.blocks[block].heard)
    }

    fn write_packet(&mut self, by: usize, step: &Step, span: &Span, unit: u64, packet: (u128, Heard)) -> Result<()> {
        self.ranks[by].writes_to |= bit(span.rank);
        let slot = &mut self.ranks[span.rank].packets[(span.index * self.units + unit) as usize];
        if slot.is_some() {
            let (name, chunk, rank) = (&step.name, span.index + unit / self.units, span.rank);
            let reason =
                format!("{name} writes packets of chunk {chunk} of rank {rank} again, which may not be read yet");
            return Err(self.plan.refuse(step.place, reason));
        }
        *slot = Some(packet);
        Ok(())
    }

    fn check_signals(&self) -> Result<()> {
        for (number, (rank, state)) in self.plan.ranks.iter().zip(&self.ranks).enumerate() {
            for word in &state.words {
                if let Some((_, place)) = word.signals.get(word.waits) {
                    let (sent, waits) = (word.signals.len(), word.waits);
                    let reason = format!("rank {number} does not wait for it: {sent} signals, {waits} waits");
                    return Err(self.plan.refuse(*place, reason));
                }
            }
            let place = Place { rank: Some(number), ..Place::default() };
            for (id, (now, before)) in state.semaphores.iter().zip(&rank.semaphores).enumerate() {
                if now != before {
                    let reason = format!("semaphore {id} begins with {before} and ends with {now}");
                    return Err(self.plan.refuse(place, reason));
                }
            }
        }
        Ok(())
    }

    fn check_result(&self) -> Result<()> {
        let n = self.ranks.len();
        let sum = |unit: u64| (0..n).fold(0u128, |sum, rank| sum.wrapping_add(number(rank, unit)));
        // Whose input a broadcast is of: the one that rank 0 got.
        let root = (0..n).find(|&root| self.output(0, 0) == number(root, 0)).unwrap_or(0);
        for rank in 0..n {
            let outputs = self.plan.ranks[rank].output_chunks * self.units;
            for unit in 0..outputs {
                let (from, within) = ((unit / self.part) as usize, unit % self.part);
                let own = rank as u64 * self.part;
                let expected = match &self.plan.collective {
                    Collective::AllReduce => sum(unit),
                    Collective::AllGather => number(from, within),
                    Collective::ReduceScatter => sum(own + unit),
                    Collective::AllToAll => number(from, own + within),
                    Collective::Broadcast => number(root, unit),
                    Collective::Other(_) => return Ok(()),
                };
                if self.output(rank, unit) != expected {
                    let place = Place { rank: Some(rank), ..Place::default() };
                    let (chunk, collective) = (unit / self.units, &self.plan.collective);
                    let reason = format!("chunk {chunk} of its output is not what {collective:?} gives");
                    return Err(self.plan.refuse(place, reason));
                }
            }
        }
        Ok(())
    }

    fn output(&self, rank: usize, unit: u64) -> u128 {
        let (array, at) = self.cell(rank, BufferType::Output, unit);
        self.ranks[rank].user[array].get(at).copied().unwrap_or_default()
    }

    /// Whether every rank that ends a call knows that all ranks it writes to have begun it, so that these are through
    /// with the call before, which used the other half of the scratch buffer.
    fn is_heard_by_all(&self) -> bool {
        let mut heard = vec![0; self.ranks.len()];
        for block in &self.blocks {
            heard[block.rank] |= block.heard;
        }
        let knows = |(state, heard): (&RankState, &Heard)| state.writes_to & !heard == 0;
        let known = self.ranks.len() <= 128 && self.ranks.iter().zip(&heard).all(knows);
        self.plan.double_scratch && !self.writes_plain && known
    }
}
