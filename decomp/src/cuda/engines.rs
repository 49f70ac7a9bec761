//! Copy engines: this PE packs its block for a mapped peer into a room (a buffer of the plan). The peer's copy engine
//! fetches it from there after the two PEs have met. The rooms are free again when each PE has signalled the other that
//! the block has arrived.
//!
//! PEs fetch and do not push, since the GPU performs all work that a host has enqueued, even if the round is late. A PE
//! that has given up then reads undefined data, but writes only to its own memory.

use std::sync::Arc;

use symrail::Pe;
use symrail::kernels::cuda::{DevicePtr, Event, Gpu, Stream};
use symrail::team::heap::ALIGN;

use super::binding::Group;
use super::layout::Fetched;
use crate::blocks::{Blocks, Fetch, Leg};
use crate::error::Result;
use crate::staging::Path;

/// The rooms of a PE's blocks that copy engines may fetch, by slot, as offsets in bytes from the first one; and the
/// bytes of all rooms.
pub(super) fn rooms(blocks: &Blocks) -> (Vec<Option<u64>>, usize) {
    let (mut rooms, mut end) = (vec![None; blocks.slots()], 0);
    let least = blocks.kind.mode.engines.unwrap_or(usize::MAX);
    // Both ends compute the same size.
    let fetched = |leg: &&Leg| leg.path == Path::Mapped && leg.flow.most() * blocks.kind.element >= least;
    for leg in blocks.legs.iter().filter(fetched) {
        rooms[leg.link.here] = Some(end as u64);
        end = (end + leg.flow.from.len() * blocks.kind.element).next_multiple_of(ALIGN);
    }
    (rooms, end)
}

/// Rooms in the form in which PEs exchange them.
pub(super) fn numbers(rooms: &[Option<u64>]) -> Vec<u64> {
    rooms.iter().map(|room| room.map_or(0, |at| at + 1)).collect()
}

/// Selects the blocks that copy engines fetch: those for which both ends have a room for the other's. A copy that only
/// one of them can do would not have ended when the other one gets its signal. `all` has the numbers of all PEs by
/// rank; `at` returns the address of a room of a PE.
pub(super) fn agree(blocks: &mut Blocks, own: &[Option<u64>], all: &[u64], at: impl Fn(Option<Pe>, u64) -> u64) {
    let slots = blocks.slots();
    for leg in &mut blocks.legs {
        let there = all[leg.flow.rank * slots + leg.link.there].checked_sub(1);
        leg.fetch = own[leg.link.here]
            .zip(there)
            .map(|(here, there)| Fetch { here: at(None, here), there: at(Some(leg.link.pe), there) });
    }
}

/// A stream for copies beside those on a plan's stream: copy engines fetch blocks there, or kernels unpack parts that
/// have arrived. Its blocks come before those of a large copy that have not started.
pub(super) struct Beside {
    stream: Stream,
    met: Event,
    fetched: Event,
}

impl Beside {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Beside> {
        Ok(Beside { stream: Stream::with_priority(gpu)?, met: Event::new(gpu)?, fetched: Event::new(gpu)? })
    }

    /// Fetches the blocks of groups after the work that is on a stream now, and enqueues `meanwhile` on that stream.
    /// `then` enqueues there what follows a group's fetches. Later work on the stream runs after all.
    ///
    /// # Safety
    /// The blocks and their destinations stay valid until the stream has completed the work. Nothing else uses them.
    pub unsafe fn fetch(
        &self,
        behind: &Stream,
        groups: &[Group],
        meanwhile: impl FnOnce() -> Result<()>,
        then: impl Fn(&Group) -> Result<()>,
    ) -> Result<()> {
        self.met.record(behind)?;
        self.stream.wait_for(&self.met)?;
        let mut meanwhile = Some(meanwhile);
        for group in groups {
            let mut fetch = group.fetches.iter().map(|&Fetched { to, from, bytes }| {
                // SAFETY: the caller's promise.
                unsafe { self.stream.copy(DevicePtr::new(to), DevicePtr::new(from), bytes) }
            });
            let fetched = fetch.try_for_each(|fetched| fetched);
            // A graph that is being captured needs the dependency back to its stream even after an error.
            self.fetched.record(&self.stream)?;
            let copied = meanwhile.take().map_or(Ok(()), |meanwhile| meanwhile());
            behind.wait_for(&self.fetched)?;
            fetched?;
            copied?;
            then(group)?;
        }
        Ok(())
    }

    /// Enqueues `work` on the stream beside, after the work that is on `behind` now.
    pub fn follow(&self, behind: &Stream, work: impl FnOnce(&Stream) -> Result<()>) -> Result<()> {
        self.met.record(behind)?;
        self.stream.wait_for(&self.met)?;
        work(&self.stream)
    }

    /// Lets later work on `behind` run after all work beside.
    pub fn join(&self, behind: &Stream) -> Result<()> {
        self.fetched.record(&self.stream)?;
        Ok(behind.wait_for(&self.fetched)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all_to_all::{Span, flows};
    use crate::blocks::Kind;
    use crate::mode::Mode;

    /// The ranks whose blocks rank `me` of 4 fetches, from the numbers of each rank. Rank 0 has not mapped rank 3,
    /// which has mapped rank 0.
    fn fetched(me: usize, engines: Option<usize>) -> Vec<usize> {
        let count = |from: usize, to: usize| 100 * from + 10 * to;
        let blocks = |rank: usize| {
            let spans = |count: &dyn Fn(usize) -> usize| -> Vec<Span> {
                (0..4).map(|other| Span { offset: 1000 * other, count: count(other) }).collect()
            };
            let flows = flows(rank, &spans(&|to| count(rank, to)), &spans(&|from| count(from, rank)));
            let path = |pe: u32| if (rank, pe) == (0, 3) { Path::Rails } else { Path::Mapped };
            let mode = Mode { engines, ..Mode::default() };
            Blocks::new(Kind::test(8, mode), flows, |rank| rank as u32, path)
        };
        let all: Vec<u64> = (0..4).flat_map(|rank| numbers(&rooms(&blocks(rank)).0)).collect();
        let mut own = blocks(me);
        let (rooms, _) = rooms(&own);
        agree(&mut own, &rooms, &all, |_, at| at);
        let mut ranks: Vec<usize> =
            own.legs.iter().filter(|leg| leg.fetch.is_some()).map(|leg| leg.flow.rank).collect();
        ranks.sort_unstable();
        ranks
    }

    #[test]
    fn both_ends_fetch_what_the_larger_block_of_a_pair_asks_for() {
        let expect = |engines, ranks: [&[usize]; 4]| {
            for (me, ranks) in ranks.into_iter().enumerate() {
                assert_eq!(fetched(me, engines), ranks, "rank {me}, {engines:?}");
            }
        };
        expect(None, [&[]; 4]);
        expect(Some(0), [&[1, 2], &[0, 2, 3], &[0, 1, 3], &[1, 2]]);
        // Rank 2 sends 210 elements to rank 1, and gets 120 back.
        expect(Some(210 * 8), [&[], &[2, 3], &[1, 3], &[1, 2]]);
        expect(Some(210 * 8 + 1), [&[], &[3], &[3], &[1, 2]]);
        expect(Some(usize::MAX), [&[]; 4]);
    }
}
