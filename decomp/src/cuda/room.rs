//! The limit for blocks of kernels that wait at once.
//!
//! A launch that performs a whole round waits in many blocks. PEs may enqueue plans in different orders. If launches of
//! several streams filled the GPU with waiting blocks, the blocks that the peers wait for might never run. So each plan
//! reserves room for its blocks when it is made, and all plans together reserve only a share of the GPU, which is divided
//! among the PEs that use this GPU: under CUDA's MPS their kernels run at once. A plan without room meets the others in a
//! launch of its own, of one block.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::blocks::Blocks;

/// The blocks of a plan's launches on each multiprocessor, and those of all plans. A multiprocessor has room for
/// `DECOMP_AT_ONCE` blocks of `cu/copy.cuh`.
const EACH: u32 = 1;
const ALL: u32 = 3;
/// The units that a block copies at once, the number of such steps that it should do, and the most steps. Larger rounds
/// have more blocks than there is room for; another launch costs them little.
const STEP: usize = 1024;
const STEPS: usize = 2;
const MOST_STEPS: usize = 8;

/// The number of blocks that this process's plans have reserved.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Reserved room, which drop releases.
pub(super) struct Room {
    blocks: u32,
}

impl Room {
    /// Reserves room for rounds of one launch on a GPU that so many PEs share. Returns `None` if they are too large, if
    /// they wait for no PE, or if no room is left.
    pub fn for_rounds(blocks: &Blocks, multiprocessors: u32, sharers: u32) -> Option<Room> {
        let multiprocessors = multiprocessors / sharers.max(1);
        let wanted = wanted(blocks, multiprocessors)?;
        let take = |taken: u32| Some(taken + wanted).filter(|&all| all <= ALL * multiprocessors);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Room { blocks: wanted })
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.blocks, Ordering::Relaxed);
    }
}

/// The number of blocks that rounds should have. Each copy has equally many.
fn wanted(blocks: &Blocks, multiprocessors: u32) -> Option<u32> {
    if blocks.legs.is_empty() || blocks.legs.iter().any(|leg| leg.fetch.is_some()) {
        return None;
    }
    let parts = blocks.kind.element / blocks.unit(16);
    let others = blocks.legs.iter().map(|leg| leg.flow.from.len());
    let units: Vec<usize> =
        others.chain(blocks.flows.own.iter().map(|(from, _)| from.len())).map(|len| len * parts).collect();
    let (all, most) = (units.iter().sum::<usize>(), units.iter().max().copied().unwrap_or(0));
    let (copies, limit) = (units.len(), (multiprocessors * EACH) as usize);
    if all > limit * STEP * MOST_STEPS || copies > limit {
        return None;
    }
    let each = most.div_ceil(STEP * STEPS).clamp(1, limit / copies);
    Some((each * copies) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all_to_all::{Span, flows};
    use crate::blocks::Kind;
    use crate::mode::Mode;
    use crate::staging::Path;

    fn blocks(ranks: usize, count: usize) -> Blocks {
        let spans: Vec<Span> = (0..ranks).map(|rank| Span { offset: rank * count, count }).collect();
        let mapped = |_| Path::Mapped;
        Blocks::new(Kind::test(16, Mode::default()), flows(0, &spans, &spans), |rank| rank as u32, mapped)
    }

    #[test]
    fn plans_wait_in_a_share_of_the_gpu_and_no_more() {
        let multiprocessors = 100;
        // Blocks of two copies each.
        let rooms = |count: usize, sharers: u32| {
            let mut rooms = Vec::new();
            while let Some(room) = Room::for_rounds(&blocks(2, count), multiprocessors, sharers) {
                assert!(room.blocks() * sharers <= EACH * multiprocessors && room.blocks().is_multiple_of(2));
                rooms.push(room);
                assert!(rooms.len() < 1000, "there is no end");
            }
            rooms
        };
        let (large, small) = (100 * STEP, 20 * STEP * STEPS);
        for _ in 0..2 {
            let all = rooms(large, 1);
            assert_eq!(all.iter().map(Room::blocks).sum::<u32>(), 300);
            assert!(Room::for_rounds(&blocks(2, 1), multiprocessors, 1).is_none());
            drop(all);
            assert_eq!(rooms(small, 1).len(), 7, "of 40 blocks each");
        }
        for sharers in [2, 5, 8] {
            let of_one: u32 = rooms(STEP * STEPS, sharers).iter().map(Room::blocks).sum();
            assert!(of_one > 0 && of_one * sharers <= 300, "{sharers} PEs: {of_one} blocks each");
        }
        assert!(Room::for_rounds(&blocks(1, 1), multiprocessors, 1).is_none(), "there is nobody to wait for");
        assert!(Room::for_rounds(&blocks(2, 500 * STEP), multiprocessors, 1).is_none(), "that is too large");
        assert!(Room::for_rounds(&blocks(101, 1), multiprocessors, 1).is_none(), "each copy has a block");
    }
}
