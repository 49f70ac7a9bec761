//! The rows of a matrix that each rank has, and the pieces in which they move. Pure geometry.

use std::ops::Range;

use symrail::Team;

use crate::error::Result;
use crate::product::Reduced;

/// The least bytes of a piece, unless the shard has fewer. A piece is what moves at a time.
const LEAST_BYTES: usize = 256 << 10;
/// The most pieces of a shard: further ones would hide little more.
const MOST_PIECES: usize = 8;
/// The least multiplications for a rank's shard that are worth pieces. A smaller product ends before a message has
/// arrived.
const LEAST_WORK: usize = 1 << 21;

/// The largest shard in bytes, of an all-gather and of a reduction, that a GPU moves at once: one kernel moves it
/// faster than pieces could be hidden. The next two limits are those of larger shards.
const AT_ONCE_ON_GPU: [usize; 2] = [4 << 20, 2 << 20];
const LEAST_BYTES_ON_GPU: [usize; 2] = [32 << 20, 3 << 20];
const MOST_PIECES_ON_GPU: [usize; 2] = [2, 4];
/// The least bytes of a piece, and the most pieces, where the proxy moves them. More pieces hide more, but smaller ones
/// cost the proxy more than they hide.
const LEAST_BYTES_BY_PROXY: usize = 1 << 20;
const MOST_PIECES_BY_PROXY: usize = 4;
/// The multiplications for each number that moves from which on a product takes longer than its moves by libfabric's
/// `shm`, at 2.4 GB/s on the machine measured, and the least rows of a piece from there on. With fewer rows a GPU reads
/// the weight for longer than it multiplies. That costs nothing only while it waits for the moves anyway.
const MUCH_WORK: usize = 160 << 10;
const LEAST_ROWS_OF_MUCH_WORK: usize = 512;

/// The rows of a matrix, spread over the ranks of a team in their order. Shards may differ in size, and be empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shards {
    /// The first row of each rank, followed by the number of all rows.
    bounds: Vec<usize>,
}

impl Shards {
    /// Shards with as many rows for each rank as given.
    #[must_use]
    pub fn new(rows: &[usize]) -> Shards {
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        Shards { bounds: std::iter::once(0).chain(ends).collect() }
    }

    /// Shards that are as equal as can be, the larger ones first: as `torch.tensor_split` cuts.
    #[must_use]
    pub fn split(rows: usize, ranks: usize) -> Shards {
        let shard = |rank| rows / ranks + usize::from(rank < rows % ranks);
        Shards::new(&(0..ranks).map(shard).collect::<Vec<_>>())
    }

    /// Shards with as many rows for each rank as it passes. Collective over the team.
    ///
    /// # Errors
    /// An error that names a peer that does not answer.
    pub fn gather(team: &Team, own: usize) -> Result<Shards> {
        let all: Vec<usize> = team.gather(&[own as u64])?.into_iter().map(|rows| rows as usize).collect();
        Ok(Shards::new(&all))
    }

    /// The number of rows of all ranks.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bounds[self.ranks()]
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The rows of a rank.
    #[must_use]
    pub fn of(&self, rank: usize) -> Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }

    /// The number of rows of the largest shard.
    #[must_use]
    pub fn largest(&self) -> usize {
        (0..self.ranks()).map(|rank| self.of(rank).len()).max().unwrap_or(0)
    }

    /// The number of pieces of the largest shard.
    pub(crate) fn pieces_of_a_rank(&self, schedule: Schedule) -> usize {
        self.largest().div_ceil(schedule.piece_rows(self))
    }

    /// The pieces of a rank's shard. Each has `rows` rows; the last one may have fewer.
    pub(crate) fn pieces(&self, rank: usize, rows: usize) -> impl Iterator<Item = Piece> + use<> {
        let shard = self.of(rank);
        shard.clone().step_by(rows.max(1)).enumerate().map(move |(number, start)| {
            let end = shard.end.min(start + rows);
            Piece { rank, number, rows: start..end }
        })
    }
}

/// Rows that move at a time and are multiplied at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The rank whose shard they belong to.
    pub rank: usize,
    /// The index of the piece in that shard.
    pub number: usize,
    pub rows: Range<usize>,
}

/// How a product is carried out. All ranks of a plan use the same schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Schedule {
    /// One product. All shards move before it, or after it.
    Unfused,
    /// Pieces of `rows` rows go straight between the ranks that have and need them, while others are multiplied. For an
    /// all-gather each rank gets them from their owner; for a reduce-scatter each rank puts them to their owner.
    Direct {
        /// The number of rows of a piece.
        rows: usize,
    },
    /// As [`Schedule::Direct`], but each rank puts pieces to the next one, which forwards them: each rank sends to one
    /// other only. It is for an all-gather; other products treat it as `Direct`.
    Ring {
        /// The number of rows of a piece.
        rows: usize,
    },
}

impl Schedule {
    /// Chooses the schedule that pays for rows of `width` elements of 4 bytes that move, each of which takes part in
    /// `work` multiplications.
    #[must_use]
    pub fn choose(shards: &Shards, width: usize, work: usize) -> Schedule {
        let (largest, row_bytes) = (shards.largest(), (width * size_of::<f32>()).max(1));
        if shards.ranks() == 1 || largest.saturating_mul(width).saturating_mul(work) < LEAST_WORK {
            return Schedule::Unfused;
        }
        let rows = LEAST_BYTES.div_ceil(row_bytes).max(largest.div_ceil(MOST_PIECES));
        Schedule::Direct { rows: rows.min(largest) }
    }

    /// As [`Schedule::choose`], on GPUs, for rows of `row_bytes` bytes; `reduced` is `None` for an all-gather. Shards
    /// of up to 4 MiB, or 2 MiB of a reduction, are `Unfused`. An all-gather's larger shards move in pieces of 32 MiB
    /// or more, two at most, since the product of a rank's own rows hides what arrives. A reduction's move in pieces of
    /// 3 MiB or more, four at most.
    #[must_use]
    pub fn choose_on_gpu(shards: &Shards, row_bytes: usize, reduced: Option<Reduced>) -> Schedule {
        let kind = usize::from(reduced.is_some());
        if shards.ranks() == 1 || shards.largest().saturating_mul(row_bytes) <= AT_ONCE_ON_GPU[kind] {
            return Schedule::Unfused;
        }
        Schedule::of_pieces(shards, row_bytes, LEAST_BYTES_ON_GPU[kind], MOST_PIECES_ON_GPU[kind])
    }

    /// The same where GPUs of some ranks do not reach each other
    /// ([`GpuKernels::move_by_proxy`](crate::cuda::GpuKernels::move_by_proxy)), so that the proxy moves rows; each
    /// number takes part in `work` multiplications. Shards of 1 MiB and more move in pieces of 1 MiB or more, four at
    /// most. With much work the product is the longer part, and pieces have 512 rows or more.
    #[must_use]
    pub fn choose_by_proxy(shards: &Shards, row_bytes: usize, work: usize) -> Schedule {
        if shards.ranks() == 1 || shards.largest().saturating_mul(row_bytes) < LEAST_BYTES_BY_PROXY {
            return Schedule::Unfused;
        }
        let rows = if work < MUCH_WORK { 0 } else { LEAST_ROWS_OF_MUCH_WORK };
        let least = LEAST_BYTES_BY_PROXY.max(row_bytes.saturating_mul(rows));
        Schedule::of_pieces(shards, row_bytes, least, MOST_PIECES_BY_PROXY)
    }

    fn of_pieces(shards: &Shards, row_bytes: usize, least: usize, most: usize) -> Schedule {
        let pieces = (shards.largest().saturating_mul(row_bytes) / least).clamp(1, most);
        Schedule::Direct { rows: shards.largest().div_ceil(pieces) }
    }

    /// Cuts the largest shard into `pieces` pieces. With 0 it is not cut: `Unfused`.
    #[must_use]
    pub fn in_pieces(shards: &Shards, pieces: usize) -> Schedule {
        match pieces {
            0 => Schedule::Unfused,
            _ => Schedule::Direct { rows: shards.largest().div_ceil(pieces).max(1) },
        }
    }

    /// The number of rows of a piece of these shards.
    pub(crate) fn piece_rows(self, shards: &Shards) -> usize {
        let most = shards.largest().max(1);
        match self {
            Schedule::Unfused => most,
            Schedule::Direct { rows } | Schedule::Ring { rows } => rows.clamp(1, most),
        }
    }

    /// The parameters of the schedule that the ranks compare.
    pub(crate) fn parameters(self) -> [(&'static str, u64); 2] {
        let (kind, rows) = match self {
            Schedule::Unfused => (0, 0),
            Schedule::Direct { rows } => (1, rows),
            Schedule::Ring { rows } => (2, rows),
        };
        [("the kind of schedule", kind), ("rows of a piece", rows as u64)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shards_are_those_of_tensor_split() {
        let shards = Shards::split(10, 4);
        assert_eq!((0..4).map(|rank| shards.of(rank)).collect::<Vec<_>>(), [0..3, 3..6, 6..8, 8..10]);
        assert_eq!(Shards::split(2, 3), Shards::new(&[1, 1, 0]));
    }

    #[test]
    fn small_products_are_not_cut_and_large_ones_into_eight_pieces_at_most() {
        assert_eq!(Schedule::choose(&Shards::split(8, 4), 64, 64), Schedule::Unfused);
        assert_eq!(Schedule::choose(&Shards::split(8192, 1), 8192, 8192), Schedule::Unfused);
        assert_eq!(Schedule::choose(&Shards::split(8192, 2), 1024, 512), Schedule::Direct { rows: 512 });
        assert_eq!(Schedule::choose(&Shards::split(512, 4), 1024, 512), Schedule::Direct { rows: 64 });
        assert_eq!(Schedule::choose(&Shards::split(8, 2), 1024, 1 << 20), Schedule::Direct { rows: 4 });
    }

    #[test]
    fn on_gpus_small_shards_are_not_cut_and_large_ones_into_few_pieces() {
        let (gathered, reduced) = (None, Some(Reduced::ToShards));
        for (rows, ranks, row_bytes, kind, wanted) in [
            (64, 4, 8192, gathered, None),
            (1 << 20, 1, 8192, gathered, None),
            (512, 2, 16384, gathered, None),
            (2048, 2, 16384, gathered, Some(1024)),
            (32768, 2, 32768, gathered, Some(8192)),
            (512, 2, 7168, reduced, None),
            (2048, 2, 7168, reduced, Some(512)),
            (32768, 2, 16384, reduced, Some(4096)),
        ] {
            let wanted = wanted.map_or(Schedule::Unfused, |rows| Schedule::Direct { rows });
            let found = Schedule::choose_on_gpu(&Shards::split(rows, ranks), row_bytes, kind);
            assert_eq!(found, wanted, "{rows} rows of {row_bytes} bytes on {ranks} ranks, {kind:?}");
        }
    }

    #[test]
    fn by_the_proxy_more_shards_are_cut_but_not_into_few_rows_of_much_work() {
        let (little, much) = (131_072, 262_144);
        for (rows, ranks, row_bytes, work, wanted) in [
            (64, 2, 8192, little, None),
            (1 << 20, 1, 8192, little, None),
            (512, 2, 8192, little, Some(128)),
            (2048, 2, 8192, little, Some(256)),
            (2048, 2, 4096, little, Some(256)),
            (32768, 2, 16384, little, Some(4096)),
            (512, 2, 8192, much, Some(256)),
            (2048, 2, 8192, much, Some(512)),
            (2048, 2, 4096, much, Some(512)),
            (32768, 2, 16384, much, Some(4096)),
            (2048, 2, usize::MAX, much, Some(1024)),
        ] {
            let wanted = wanted.map_or(Schedule::Unfused, |rows| Schedule::Direct { rows });
            let found = Schedule::choose_by_proxy(&Shards::split(rows, ranks), row_bytes, work);
            assert_eq!(found, wanted, "{rows} rows of {row_bytes} bytes on {ranks} ranks, {work}");
        }
    }

    proptest! {
        #[test]
        fn pieces_are_all_rows_once(rows in prop::collection::vec(0usize..40, 1..6), piece in 1usize..50) {
            let shards = Shards::new(&rows);
            let pieces = (0..shards.ranks()).flat_map(|rank| shards.pieces(rank, piece));
            let all: Vec<usize> = pieces.flat_map(|piece| piece.rows).collect();
            prop_assert_eq!(all, (0..shards.rows()).collect::<Vec<_>>());
        }
    }
}
