//! Memory whose accesses are ordered, or are not.
//!
//! A clock has a number for each block: how far this block's work is known. A block that signals hands on its clock;
//! one that waits learns it. An access that a later one's clock does not know may come after it just as well, and if
//! one of the two writes, nobody knows what is read: a race.

/// What a block knows of all blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clock(Vec<u32>);

/// When a block did something, by its own count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub block: usize,
    time: u32,
}

impl Clock {
    /// A clock that knows nothing.
    pub fn new(blocks: usize) -> Clock {
        Clock(vec![0; blocks])
    }

    /// One more step of a block. Others know what it did before by the clocks that it hands on before this.
    pub fn tick(&mut self, block: usize) {
        self.0[block] += 1;
    }

    pub fn learn(&mut self, other: &Clock) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
    }

    pub fn knows(&self, stamp: Stamp) -> bool {
        self.0[stamp.block] >= stamp.time
    }

    /// Whether it is known that any of these blocks has begun.
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

    /// What the input is before the call.
    pub fn set(&mut self, at: usize, value: u128) {
        self.units[at].value = value;
    }

    /// Reads a unit, and says which write may come before or after that.
    pub fn read(&mut self, at: usize, block: usize, clock: &Clock) -> (u128, Option<Stamp>) {
        let unit = &mut self.units[at];
        let race = unit.written.filter(|&written| !clock.knows(written));
        unit.read.retain(|read| read.block != block);
        unit.read.push(clock.stamp(block));
        (unit.value, race)
    }

    /// Writes a unit, and says which access may come before or after that.
    pub fn write(&mut self, at: usize, value: u128, block: usize, clock: &Clock) -> Option<Stamp> {
        let unit = &mut self.units[at];
        let race = unit.written.iter().chain(&unit.read).find(|&&access| !clock.knows(access)).copied();
        *unit = Unit { value, written: Some(clock.stamp(block)), read: Vec::new() };
        race
    }

    /// Whether all accesses are known.
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
