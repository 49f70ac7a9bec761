//! Memory with a check that accesses are ordered.
//!
//! A clock has a number for each block: how much of that block's work is known. A block that signals passes its clock
//! on; a block that waits merges it. If a later access's clock does not include an earlier access, the two may also
//! happen in the other order; if one of them writes, the value read is undefined: a race.

/// A block's knowledge of all blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clock(Vec<u32>);

/// The time of a block's action, by the block's own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub block: usize,
    time: u32,
}

impl Clock {
    /// A clock without any knowledge.
    pub fn new(blocks: usize) -> Clock {
        Clock(vec![0; blocks])
    }

    /// Counts one more step of a block. Other blocks know its earlier steps from the clocks that it passed on before.
    pub fn tick(&mut self, block: usize) {
        self.0[block] += 1;
    }

    pub fn learn(&mut self, other: &Clock) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
    }

    pub fn knows(&self, stamp: Stamp) -> bool {
        self.0[stamp.block] >= stamp.time
    }

    /// Whether it knows that any of these blocks has begun.
    pub fn knows_any(&self, blocks: std::ops::Range<usize>) -> bool {
        self.0[blocks].iter().any(|&time| time > 0)
    }

    fn stamp(&self, block: usize) -> Stamp {
        Stamp { block, time: self.0[block] }
    }
}

/// Units of a buffer, with the last accesses to each.
#[derive(Debug, Default)]
pub(super) struct Memory {
    units: Vec<Unit>,
}

#[derive(Debug)]
struct Unit {
    value: u128,
    written: Option<Stamp>,
    read: Vec<Stamp>,
}

impl Memory {
    pub fn new(values: impl Iterator<Item = u128>) -> Memory {
        Memory { units: values.map(|value| Unit { value, written: None, read: Vec::new() }).collect() }
    }

    pub fn value(&self, at: usize) -> Option<u128> {
        self.units.get(at).map(|unit| unit.value)
    }

    /// Sets an input's value before the call.
    pub fn set(&mut self, at: usize, value: u128) {
        self.units[at].value = value;
    }

    /// Reads a unit, and returns a write that is not ordered with the read.
    pub fn read(&mut self, at: usize, block: usize, clock: &Clock) -> (u128, Option<Stamp>) {
        let unit = &mut self.units[at];
        let race = unit.written.filter(|&written| !clock.knows(written));
        unit.read.retain(|read| read.block != block);
        unit.read.push(clock.stamp(block));
        (unit.value, race)
    }

    /// Writes a unit, and returns an access that is not ordered with the write.
    pub fn write(&mut self, at: usize, value: u128, block: usize, clock: &Clock) -> Option<Stamp> {
        let unit = &mut self.units[at];
        let race = unit.written.iter().chain(&unit.read).find(|&&access| !clock.knows(access)).copied();
        *unit = Unit { value, written: Some(clock.stamp(block)), read: Vec::new() };
        race
    }

    /// Whether the clock includes all accesses.
    pub fn is_known(&self, clock: &Clock) -> bool {
        let known = |unit: &Unit| unit.written.iter().chain(&unit.read).all(|&access| clock.knows(access));
        self.units.iter().all(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_race_unless_one_knows_of_the_other() {
        let (mut first, mut second) = (Clock::new(2), Clock::new(2));
        first.tick(0);
        second.tick(1);
        let mut memory = Memory::new([1, 2].into_iter());
        assert_eq!(memory.write(0, 10, 0, &first), None);
        assert!(memory.read(0, 1, &second).1.is_some(), "it may be read before it is written");
        second.learn(&first);
        assert_eq!(memory.read(0, 1, &second), (10, None));
        assert!(memory.write(0, 11, 0, &first).is_some(), "it may be written before it is read");
        first.learn(&second);
        assert_eq!(memory.write(0, 12, 0, &first), None);
        assert!(memory.is_known(&first) && memory.is_known(&second), "nobody has gone on since");
        first.tick(0);
        assert_eq!(memory.write(1, 13, 0, &first), None);
        assert!(!memory.is_known(&second));
    }
}
