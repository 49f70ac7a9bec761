//! Rounds that are not cut, between GPUs that reach each other. One kernel moves all rows, before the product of an
//! all-gather or after that of a reduction. Each of its blocks synchronizes with the same block of the other ranks. For
//! few bytes a block instead puts packets to the others without a wait for free buffers, and reads theirs.

use symrail::kernels::cuda::{DeviceBuffer, Reach, Stream};
use symrail::team::heap::{ALIGN, aligned};
use symrail::{Group, Pe};
use symrail_core::layout;

use super::kernels::GpuKernels;
use super::layout::{MOST_BLOCKS, Packed, Part};
use super::plan::GpuPlan;
use super::shape::Operands;
use crate::error::Result;
use crate::product::Product;
use crate::program::reduce::summand_at;
use crate::shards::Shards;

/// The bytes that are worth one more block.
const BYTES_OF_A_BLOCK: usize = 8 << 10;
/// The largest shard that moves as packets, and the most bytes of all other ranks. Packets double the bytes.
const MOST_BY_PACKETS: usize = 512 << 10;
const MOST_BY_PACKETS_OF_ALL: usize = 1 << 20;
/// Bytes of a rank's packets that carry no data.
const HEADS: usize = 16 * MOST_BLOCKS;

/// Whether shards of up to `bytes` bytes move as packets.
fn by_packets(ranks: usize, bytes: usize) -> bool {
    bytes <= MOST_BY_PACKETS && bytes * ranks.saturating_sub(1) <= MOST_BY_PACKETS_OF_ALL
}

/// Bytes of the packets of a rank in one round.
fn packets_of_a_rank(bytes: usize) -> usize {
    aligned(HEADS + 2 * bytes.next_multiple_of(8))
}

/// The number of words of each rank for shards of up to `bytes` bytes. Those of packets are aligned.
pub(super) fn words(ranks: usize, bytes: usize) -> usize {
    match by_packets(ranks, bytes) {
        true => (ALIGN + 2 * ranks.saturating_sub(1) * packets_of_a_rank(bytes)) / size_of::<u64>(),
        false => 2 * ranks * MOST_BLOCKS,
    }
}

/// Bytes of the kernel's list for a plan.
pub(super) fn list_bytes(ranks: usize) -> usize {
    size_of::<Part>().max(size_of::<Packed>()) * ranks.saturating_sub(1) + 8 * ranks
}

/// The plan's properties that the list depends on.
pub(super) struct Places<'a> {
    pub product: Product,
    pub shards: &'a Shards,
    /// Numbers of a row that moves, and bytes of each number.
    pub width: usize,
    pub size: usize,
    pub group: Group,
    /// The addresses of this rank's words for the kernel, and of its numbers.
    pub words: u64,
    pub numbers: u64,
}

/// The kernel's arguments for a plan.
pub(super) struct AtOnce {
    /// A [`Part`] for each other rank, followed by the places of the summands; or a [`Packed`] for each.
    list: DeviceBuffer,
    /// The distance between the two places that rounds use in turn for packets, if there are packets.
    turn: Option<u64>,
    others: usize,
    blocks: u32,
    /// This rank's rows, in bytes: their offset among all rows, and their length.
    own: (u64, u64),
    /// Whether all summands are aligned so that several numbers can be summed together.
    together: bool,
}

impl Places<'_> {
    fn pitch(&self) -> usize {
        self.width * self.size
    }

    /// The parts of this rank, and the places of its summands. `there` returns the address at which this GPU reaches a
    /// symmetric address of a PE.
    fn list(&self, there: impl Fn(u64, usize, Pe) -> u64) -> (Vec<Part>, Vec<u64>) {
        let (me, ranks, pitch) = (self.group.me() as usize, self.shards.ranks(), self.pitch());
        let own = self.shards.of(me);
        let word = |kind: usize, rank: usize| self.words + 8 * (MOST_BLOCKS * (kind * ranks + rank)) as u64;
        let (mut parts, mut summands) = (Vec::new(), Vec::new());
        for distance in 1..ranks {
            let rank = (me + distance) % ranks;
            let pe = self.group.pe(rank as u32);
            let place = summand_at(self.shards, self.width, distance, 0);
            let (from, at, rows) = match self.product {
                Product::AllGatherMatmul => (0, own.start * pitch, own.len()),
                _ => (self.shards.of(rank).start * pitch, place * self.size, self.shards.of(rank).len()),
            };
            let to = there(self.numbers + at as u64, rows * pitch, pe);
            parts.push(Part {
                pe: pe.into(),
                ready: word(0, rank),
                arrived: word(1, rank),
                ready_there: there(word(0, me), 8 * MOST_BLOCKS, pe),
                arrived_there: there(word(1, me), 8 * MOST_BLOCKS, pe),
                from: from as u64,
                to,
                bytes: (rows * pitch) as u64,
            });
            summands.push(place as u64);
        }
        summands.push((own.start * self.width) as u64);
        (parts, summands)
    }
}

impl Places<'_> {
    /// The packets that this rank puts to each rank after it and gets from each rank before it, and the distance
    /// between the two places for packets.
    fn packed(&self, there: impl Fn(u64, usize, Pe) -> u64) -> (Vec<Packed>, u64) {
        let (me, ranks, pitch) = (self.group.me() as usize, self.shards.ranks(), self.pitch());
        let each = packets_of_a_rank(self.shards.largest() * pitch);
        let turn = (ranks - 1) * each;
        let packets = self.words.next_multiple_of(ALIGN as u64);
        let mut parts = Vec::new();
        for distance in 1..ranks {
            let (to, sender) = ((me + distance) % ranks, (me + ranks - distance) % ranks);
            let here = packets + ((distance - 1) * each) as u64;
            let [own, of_to, of_sender] = [me, to, sender].map(|rank| self.shards.of(rank));
            let (from, bytes, coming) = match self.product {
                Product::AllGatherMatmul => (0, own.len() * pitch, of_sender.len() * pitch),
                _ => (of_to.start * pitch, of_to.len() * pitch, own.len() * pitch),
            };
            parts.push(Packed {
                // The place of the other turn must be reachable, too.
                to: there(here, turn + each, self.group.pe(to as u32)),
                from: from as u64,
                bytes: bytes as u64,
                sender: self.group.pe(sender as u32).into(),
                here,
                keep: self.numbers + (of_sender.start * pitch) as u64,
                coming: coming as u64,
                unused: 0,
            });
        }
        (parts, turn as u64)
    }
}

impl AtOnce {
    /// `list` has [`list_bytes`] bytes.
    pub fn new(list: DeviceBuffer, reach: &Reach, it: &Places<'_>) -> Result<AtOnce> {
        let there = |at: u64, bytes: usize, pe: Pe| reach.find(at, bytes as u64, pe).unwrap_or_default();
        let (ranks, largest) = (it.shards.ranks(), it.shards.largest() * it.pitch());
        let (own, pitch) = (it.shards.of(it.group.me() as usize), it.pitch());
        let (bytes, turn, together) = if by_packets(ranks, largest) {
            let (parts, turn) = it.packed(there);
            (layout::bytes(&parts), Some(turn), false)
        } else {
            let (parts, summands) = it.list(there);
            let align = super::round::SUMMED_ALIGN;
            let together = summands.iter().all(|at| (at * it.size as u64).is_multiple_of(align));
            ([layout::bytes(&parts), layout::bytes(&summands)].concat(), None, together)
        };
        list.write(0, &bytes)?;
        let blocks = largest.div_ceil(BYTES_OF_A_BLOCK).clamp(1, MOST_BLOCKS) as u32;
        let own = ((own.start * pitch) as u64, (own.len() * pitch) as u64);
        Ok(AtOnce { list, turn, others: ranks - 1, blocks, own, together })
    }

    fn places(&self) -> u64 {
        self.list.at().get() + (size_of::<Part>() * self.others) as u64
    }
}

impl GpuPlan {
    /// Enqueues a round on a stream.
    ///
    /// # Safety
    /// As for [`GpuAllGatherMatmul::post`](super::GpuAllGatherMatmul::post).
    pub(super) unsafe fn post_at_once(&self, it: &AtOnce, stream: &Stream, operands: &Operands) -> Result<()> {
        let (plan, list) = (self.own.at().get(), it.list.at().get());
        let kernels: &GpuKernels = &self.kernels;
        let others = it.others as u64;
        if let Product::AllGatherMatmul = self.product {
            let (at, bytes) = it.own;
            let arguments = [plan, list, others, operands.rows, self.numbers_at + at, bytes];
            // SAFETY: the caller's promise; the memory is the plan's and that of its peers.
            return unsafe {
                match it.turn {
                    Some(turn) => {
                        kernels.gather_packets(stream, it.blocks, &[&arguments[..], &[turn]].concat())?;
                    }
                    None => kernels.gather(stream, it.blocks, &arguments)?,
                }
                self.act(stream, 0, operands)
            };
        }
        let width = self.multiplication.outputs as u64;
        let count = it.own.1 / self.moved.size() as u64;
        if let Some(turn) = it.turn {
            let (from, own) = (self.numbers_at, self.numbers_at + it.own.0);
            let arguments = [plan, list, others, from, own, operands.bias, count, width, operands.output, turn];
            // SAFETY: as above.
            return unsafe {
                self.act(stream, 0, operands)?;
                kernels.reduce_packets(stream, it.blocks, self.moved, &arguments)
            };
        }
        let together = it.together && super::round::together(self.numbers_at | operands.bias | operands.output, width);
        let (from, places) = (self.numbers_at, it.places());
        let sum = [operands.bias, count, width, operands.output, together.into()];
        let arguments = [&[plan, list, others, from, places][..], &sum].concat();
        // SAFETY: as above.
        unsafe {
            self.act(stream, 0, operands)?;
            kernels.reduce(stream, it.blocks, self.moved, &arguments)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WORDS: u64 = 1 << 10;
    const NUMBERS: u64 = 1 << 20;

    /// The address of a PE's memory: the memories of all ranks are equally far apart.
    fn base(pe: Pe) -> u64 {
        u64::from(pe) << 32
    }

    /// The parts of each rank, for the ranks of PEs 1, 3, 5, ...
    fn parts(product: Product, shards: &Shards, width: usize, size: usize) -> Vec<(Vec<Part>, Vec<u64>)> {
        let ranks = shards.ranks() as u32;
        (0..ranks)
            .map(|me| {
                let own = 1 + 2 * me;
                let group = Group::new(1, 2, ranks.into(), own, 2 * ranks).unwrap();
                let (words, numbers) = (base(own) + WORDS, base(own) + NUMBERS);
                let places = Places { product, shards, width, size, group, words, numbers };
                places.list(|at, _, pe| at - base(own) + base(pe))
            })
            .collect()
    }

    #[test]
    fn packets_are_put_where_the_other_one_looks_for_them() {
        let (shards, width, size) = (Shards::new(&[3, 0, 5]), 4, 2);
        let pitch = (width * size) as u64;
        for product in [Product::AllGatherMatmul, Product::MatmulReduceScatter] {
            let all: Vec<(Vec<Packed>, u64)> = (0..3)
                .map(|me| {
                    let own = 1 + 2 * me;
                    let group = Group::new(1, 2, 3, own, 6).unwrap();
                    let (words, numbers) = (base(own) + WORDS + 8, base(own) + NUMBERS);
                    let places = Places { product, shards: &shards, width, size, group, words, numbers };
                    places.packed(|at, _, pe| at - base(own) + base(pe))
                })
                .collect();
            for (me, (list, turn)) in all.iter().enumerate() {
                for (i, part) in list.iter().enumerate() {
                    let (to, sender) = ((me + i + 1) % 3, (me + 2 - i) % 3);
                    let there = all[to].0.iter().find(|there| there.here == part.to).unwrap();
                    assert_eq!(
                        (there.sender, there.coming),
                        (1 + 2 * me as u64, part.bytes),
                        "who sends, and how much"
                    );
                    assert_eq!(part.sender, 1 + 2 * sender as u64);
                    assert!(part.here.is_multiple_of(16) && part.here >= base(1 + 2 * me as Pe) + WORDS + 8);
                    let ends = part.here + turn + (HEADS as u64 + 2 * part.coming);
                    let words = words(3, shards.largest() * width * size) as u64;
                    assert!(ends <= base(1 + 2 * me as Pe) + WORDS + 8 + 8 * words);
                    let gathers = matches!(product, Product::AllGatherMatmul);
                    assert_eq!(part.from, if gathers { 0 } else { shards.of(to).start as u64 * pitch });
                    assert_eq!(part.bytes, shards.of(if gathers { me } else { to }).len() as u64 * pitch);
                    assert_eq!(part.keep, base(1 + 2 * me as Pe) + NUMBERS + shards.of(sender).start as u64 * pitch);
                }
                let mut here: Vec<u64> = list.iter().map(|part| part.here).collect();
                here.sort_unstable();
                assert!(here.windows(2).all(|two| two[1] - two[0] >= HEADS as u64 + 2 * 5 * pitch));
            }
        }
        assert!(by_packets(2, 512 << 10) && !by_packets(2, (512 << 10) + 1) && !by_packets(4, 512 << 10));
    }

    #[test]
    fn what_a_rank_sends_is_where_the_other_one_has_it_and_tells_the_words_that_it_waits_for() {
        let (shards, width, size) = (Shards::new(&[3, 0, 5]), 4, 2);
        let pitch = (width * size) as u64;
        for product in [Product::AllGatherMatmul, Product::MatmulReduceScatter] {
            let all = parts(product, &shards, width, size);
            for (me, (list, _)) in all.iter().enumerate() {
                for (i, part) in list.iter().enumerate() {
                    let other = (me + i + 1) % 3;
                    assert_eq!(part.pe, 1 + 2 * other as u64);
                    let back = all[other].0.iter().find(|back| back.pe == 1 + 2 * me as u64).unwrap();
                    assert_eq!(
                        (part.ready_there, part.arrived_there),
                        (back.ready, back.arrived),
                        "words of {me} at {other}"
                    );
                    let numbers = base(part.pe as Pe) + NUMBERS;
                    if let Product::AllGatherMatmul = product {
                        let own = shards.of(me);
                        let wanted = (0, numbers + own.start as u64 * pitch, own.len() as u64 * pitch);
                        assert_eq!((part.from, part.to, part.bytes), wanted);
                    } else {
                        let rows = shards.of(other);
                        assert_eq!((part.from, part.bytes), (rows.start as u64 * pitch, rows.len() as u64 * pitch));
                        // The other rank lists summands starting with the rank before it.
                        let distance = (other + 3 - me) % 3;
                        assert_eq!(part.to, numbers + all[other].1[distance - 1] * size as u64);
                    }
                }
            }
        }
    }
}
