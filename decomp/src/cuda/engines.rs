//! Copy engines: this PE's block for a mapped peer waits in a room of the plan, from where the peer's copy engine fetches
//! it once the two have met. When each has told the other that it has come, the rooms are free again.
//!
//! PEs fetch and do not push. What a host has posted is done even if the round is late: a PE that has given up then reads
//! what may be anything, but writes to nobody's memory but its own.

use symrail::Pe;
use symrail::team::heap::ALIGN;

use crate::blocks::{Blocks, Fetch};
use crate::staging::Path;

/// The rooms of a PE's blocks by slot, as bytes from the start of the first one; none for peers that are not mapped.
/// And the bytes of all.
pub(super) fn rooms(blocks: &Blocks) -> (Vec<Option<u64>>, usize) {
    let (mut rooms, mut end) = (vec![None; blocks.slots()], 0);
    for leg in blocks.legs.iter().filter(|leg| leg.path == Path::Mapped) {
        rooms[leg.link.here] = Some(end as u64);
        end = (end + leg.flow.from.len() * blocks.element).next_multiple_of(ALIGN);
    }
    (rooms, end)
}

/// Rooms as PEs tell each other of them.
pub(super) fn numbers(rooms: &[Option<u64>]) -> Vec<u64> {
    rooms.iter().map(|room| room.map_or(0, |at| at + 1)).collect()
}

/// Blocks are fetched where both ends have a room for the other's: a copy that only one of them can do would not be over
/// when the other one is told so. `all` has the numbers of all PEs by rank, `at` the address of a room of a PE.
pub(super) fn agree(blocks: &mut Blocks, own: &[Option<u64>], all: &[u64], at: impl Fn(Option<Pe>, u64) -> u64) {
    let slots = blocks.slots();
    for leg in &mut blocks.legs {
        let there = all[leg.flow.rank * slots + leg.link.there].checked_sub(1);
        leg.fetch = own[leg.link.here]
            .zip(there)
            .map(|(here, there)| Fetch { here: at(None, here), there: at(Some(leg.link.pe), there) });
    }
}
