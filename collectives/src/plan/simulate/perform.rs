//! The effect of a step: on memory, and on the knowledge of other blocks.

use std::rc::Rc;

use super::memory::{Clock, Memory, Stamp};
use super::{Action, BufferType, Check, Result, Span, Step, World};
use crate::plan::Link;

/// A block that accesses memory.
#[derive(Clone, Copy)]
struct Access<'a> {
    block: usize,
    step: &'a Step,
}

impl World<'_> {
    pub(super) fn perform(&mut self, block: usize, rank: usize, step: &Step, window: Option<(u64, u64)>) -> Result<()> {
        let at = Access { block, step };
        match &step.action {
            Action::Nop
            | Action::Barrier { .. }
            | Action::Acquire(_)
            | Action::Wait { .. }
            | Action::Flush
            | Action::Pipeline { .. } => {}
            Action::Release(ids) => {
                let released = self.released_clock(block);
                for &id in ids {
                    let (value, clock) = &mut self.ranks[rank].semaphores[id];
                    *value += 1;
                    clock.learn(&released);
                }
            }
            Action::Signal { to, .. } => self.signal(at, to),
            Action::Copy { pairs, then, .. } => {
                for (source, dest) in pairs {
                    for unit in self.range(source, step.share, window) {
                        let value = self.read(at, source, unit)?;
                        self.write(at, dest, unit, value)?;
                    }
                }
                self.signal(at, then);
            }
            Action::Reduce { sources, dest, sends, .. } => {
                for unit in self.range(dest, step.share, window) {
                    let value = self.sum(at, sources, unit)?;
                    for dest in sends.iter().chain([dest]) {
                        self.write(at, dest, unit, value)?;
                    }
                }
            }
            Action::Pack { pairs } => {
                for (source, dest) in pairs {
                    for unit in self.range(source, step.share, None) {
                        let value = self.read(at, source, unit)?;
                        // A rank that has this packet knows nothing of other packets.
                        let clock = self.released_clock(block);
                        self.write_packet(at, dest, unit, (value, &clock))?;
                    }
                }
            }
            Action::Forward { source, dests } => {
                self.learn_packets(block, step, &[*source]);
                let clock = self.released_clock(block);
                for unit in self.range(source, step.share, None) {
                    let value = self.packet(source, unit);
                    dests.iter().try_for_each(|dest| self.write_packet(at, dest, unit, (value, &clock)))?;
                }
            }
            Action::Unpack { source, dest } => {
                self.learn_packets(block, step, &[*source]);
                for unit in self.range(source, step.share, None) {
                    self.write(at, dest, unit, self.packet(source, unit))?;
                }
            }
            Action::ReducePackets { plain, packets, dest, sends, .. } => {
                self.learn_packets(block, step, packets);
                for unit in self.range(dest, step.share, None) {
                    let plain = self.read(at, plain, unit)?;
                    let value = packets.iter().fold(plain, |sum, span| sum.wrapping_add(self.packet(span, unit)));
                    self.write(at, dest, unit, value)?;
                    let clock = self.released_clock(block);
                    sends.iter().try_for_each(|dest| self.write_packet(at, dest, unit, (value, &clock)))?;
                }
            }
        }
        Ok(())
    }

    /// A block's knowledge, to be passed on.
    fn released_clock(&mut self, block: usize) -> Rc<Clock> {
        let own = &mut self.blocks[block].clock;
        let clock = Rc::new(own.clone());
        own.tick(block);
        clock
    }

    fn signal(&mut self, at: Access<'_>, to: &[Link]) {
        if to.is_empty() {
            return;
        }
        let clock = self.released_clock(at.block);
        for link in to {
            self.ranks[link.rank].words[link.word].signals.push((Rc::clone(&clock), at.step.place));
        }
    }

    fn sum(&mut self, at: Access<'_>, sources: &[Span], unit: u64) -> Result<u128> {
        sources.iter().try_fold(0u128, |sum, span| Ok(sum.wrapping_add(self.read(at, span, unit)?)))
    }

    /// The memory of a span's unit.
    fn memory(&mut self, span: &Span, unit: u64) -> (&mut Memory, usize) {
        let at = span.index * self.units + unit;
        if span.buffer == BufferType::Scratch {
            return (&mut self.ranks[span.rank].scratch, at as usize);
        }
        let (array, at) = self.cell(span.rank, span.buffer, at);
        (&mut self.ranks[span.rank].user[array], at)
    }

    fn read(&mut self, at: Access<'_>, span: &Span, unit: u64) -> Result<u128> {
        let clock = self.reach(at.block, span);
        let (memory, cell) = self.memory(span, unit);
        let (value, race) = memory.read(cell, at.block, &clock);
        self.blocks[at.block].clock = clock;
        self.no_race(at, span, unit, race)?;
        Ok(value)
    }

    fn write(&mut self, at: Access<'_>, span: &Span, unit: u64, value: u128) -> Result<()> {
        let clock = self.reach(at.block, span);
        let (memory, cell) = self.memory(span, unit);
        let race = memory.write(cell, value, at.block, &clock);
        self.blocks[at.block].clock = clock;
        self.no_race(at, span, unit, race)
    }

    /// A block's clock, taken out while the block accesses a rank's memory.
    fn reach(&mut self, block: usize, span: &Span) -> Clock {
        let clock = std::mem::replace(&mut self.blocks[block].clock, Clock::new(0));
        let (by, scratch) = (self.blocks[block].rank, span.buffer == BufferType::Scratch);
        if by != span.rank {
            self.early[usize::from(scratch)] |= !clock.knows_any(self.blocks_of[span.rank].clone());
            if scratch {
                self.scratch_of.insert((by, span.rank));
            }
        }
        clock
    }

    fn no_race(&self, at: Access<'_>, span: &Span, unit: u64, race: Option<Stamp>) -> Result<()> {
        let Some(Stamp { block, .. }) = race.filter(|_| self.check == Check::Result) else { return Ok(()) };
        let rank = self.blocks[block].rank;
        let (name, chunk) = (&at.step.name, span.index + unit / self.units);
        let (other, buffer, owner) = (block - self.blocks_of[rank].start, span.buffer, span.rank);
        let reason = format!(
            "{name} of chunk {chunk} of the {buffer} of rank {owner} races with block {other} of rank {rank}: \
             no signal orders the two"
        );
        Err(self.plan.refuse(at.step.place, reason))
    }

    /// Merges the clocks of the writers of packets that are read.
    fn learn_packets(&mut self, block: usize, step: &Step, spans: &[Span]) {
        for span in spans {
            let mut last: Option<Rc<Clock>> = None;
            for unit in self.range(span, step.share, None) {
                let packet = &self.ranks[span.rank].packets[(span.index * self.units + unit) as usize];
                let Some((_, clock)) = packet else { continue };
                if last.as_ref().is_none_or(|last| !Rc::ptr_eq(last, clock)) {
                    self.blocks[block].clock.learn(clock);
                    last = Some(Rc::clone(clock));
                }
            }
        }
    }

    fn packet(&self, span: &Span, unit: u64) -> u128 {
        let packet = &self.ranks[span.rank].packets[(span.index * self.units + unit) as usize];
        packet.as_ref().map_or(0, |(value, _)| *value)
    }

    fn write_packet(&mut self, at: Access<'_>, span: &Span, unit: u64, packet: (u128, &Rc<Clock>)) -> Result<()> {
        let by = self.blocks[at.block].rank;
        let writes_to = &mut self.ranks[by].writes_to;
        if by != span.rank && !writes_to.contains(&span.rank) {
            writes_to.push(span.rank);
        }
        let slot = &mut self.ranks[span.rank].packets[(span.index * self.units + unit) as usize];
        if slot.is_some() {
            let (name, chunk, rank) = (&at.step.name, span.index + unit / self.units, span.rank);
            let reason =
                format!("{name} writes packets of chunk {chunk} of rank {rank} again, which may not be read yet");
            return Err(self.plan.refuse(at.step.place, reason));
        }
        *slot = Some((packet.0, Rc::clone(packet.1)));
        Ok(())
    }
}
