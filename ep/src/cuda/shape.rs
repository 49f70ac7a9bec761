//! The memory of high throughput. See `parameters` in `cu/routes.cuh`.

use super::hosts::DeviceHosts;
use super::layout::high_throughput::{CHUNK, Header, Heap, MOST_RANKS, RETURNED};
use crate::error::{Error, Result};
use crate::plan::layout::{MOST_TOP_K, share};

/// Kernels number rows and side data by 32 bits. The limit of a row's bytes keeps all sizes within 64 bits.
const MOST_NUMBERS: usize = i32::MAX as usize;
const MOST_ROW: usize = 1 << 24;

/// The limits of the memory. They are equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighThroughputShape {
    /// The most tokens of each rank.
    pub most_tokens: usize,
    /// The most rows that a rank receives in a dispatch. `ranks` × `most_tokens` suffices for any routing. Ranks that
    /// forward tokens get the same fraction of the memory that would suffice for that.
    pub room: usize,
    /// The most bytes of a row.
    pub row: usize,
    /// The most scales of a row (32-bit floats).
    pub scales: usize,
    /// Experts of all ranks.
    pub experts: usize,
    /// The most top-k slots of a token.
    pub k: usize,
}

/// The parts of the symmetric memory.
pub(super) struct Parts {
    /// The bytes of each part.
    pub heap: Heap,
    /// The most bytes of a row's side data.
    pub side: usize,
    /// The most rows that are staged at a rank, and the most tokens that pass through it.
    pub staged: usize,
    pub passed: usize,
}

fn up16(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

impl HighThroughputShape {
    pub(super) fn check(&self, ranks: usize) -> Result<()> {
        self.must_have_rows(self.row)?;
        if self.k == 0 || self.k > MOST_TOP_K || self.most_tokens == 0 || self.room == 0 || ranks > MOST_RANKS {
            let found = format!("{} slots, {} tokens, {ranks} ranks", self.k, self.most_tokens);
            let wanted = format!("1 to {MOST_TOP_K} slots, a token at least, at most {MOST_RANKS} ranks");
            return Err(Error::argument("a shape", found, wanted));
        }
        let rows = self.most_tokens.saturating_mul(ranks).max(self.room).max(self.experts);
        if rows > MOST_NUMBERS || self.row > MOST_ROW || self.scales > MOST_ROW / 4 {
            let found = format!("{rows} rows or experts of {} bytes, with {} scales", self.row, self.scales);
            let wanted =
                format!("at most {MOST_NUMBERS} of all ranks, of {MOST_ROW} bytes, with {} scales", MOST_ROW / 4);
            return Err(Error::argument("a shape", found, wanted));
        }
        share(self.experts, ranks).map(drop)
    }

    fn must_have_rows(&self, bytes: usize) -> Result<()> {
        if bytes == 0 || !bytes.is_multiple_of(16) {
            return Err(Error::argument("bytes of a row", bytes, "a multiple of 16"));
        }
        Ok(())
    }

    /// Refuses rows that exceed the limits.
    pub(super) fn must_fit(&self, bytes: usize, scales: usize) -> Result<()> {
        self.must_have_rows(bytes)?;
        if bytes > self.row || scales > self.scales {
            let wanted = format!("at most {} bytes, {} scales", self.row, self.scales);
            return Err(Error::argument("a row", format!("{bytes} bytes, {scales} scales"), wanted));
        }
        Ok(())
    }

    /// The most heap bytes of each rank, for jobs whose hosts have equally many ranks, one or more.
    ///
    /// # Errors
    /// An invalid shape.
    pub fn most_bytes(&self, ranks: usize) -> Result<usize> {
        self.check(ranks)?;
        Ok((1..=ranks).map(|each| self.of_hosts(ranks, each, false)).max().unwrap_or(0))
    }

    /// The heap bytes of each rank where hosts have `each` ranks whose GPUs reach each other's memory, and, in a job of
    /// several hosts, none of another host's.
    ///
    /// # Errors
    /// An invalid shape.
    pub fn bytes_of_hosts(&self, ranks: usize, each: usize) -> Result<usize> {
        self.check(ranks)?;
        Ok(self.of_hosts(ranks, each.max(1), each >= ranks))
    }

    fn of_hosts(&self, ranks: usize, each: usize, all_mapped: bool) -> usize {
        let first: Vec<u32> = (0..ranks).map(|rank| (rank - rank % each) as u32).collect();
        self.parts(ranks, &DeviceHosts::of(&first, &vec![true; ranks]), all_mapped).heap.bytes()
    }

    pub(super) fn parts(&self, ranks: usize, hosts: &DeviceHosts, all_mapped: bool) -> Parts {
        let (tokens, row, members) = (self.most_tokens, self.row, hosts.most_members());
        let room = hosts.room(self.k);
        let passed = room.passed * tokens;
        let all = room.gathered * tokens;
        // Staging memory is the same fraction of all that may be gathered as `room` is of all that may arrive.
        let staged = all.min((all as u128 * self.room as u128).div_ceil((ranks * tokens) as u128) as usize);
        let passed = passed.min(staged);
        let side = up16(4 * (self.scales + 2 * self.k + 1 + members));
        let header = 2 * ranks * up16(size_of::<Header>() + 4 * (ranks + hosts.count() + self.experts / ranks));
        let words = 16 * ranks * tokens.div_ceil(CHUNK);
        let gathered_words = if staged == 0 { 0 } else { words * members };
        let (back, sums) = (room.back * tokens, room.sums * tokens);
        let is_one_host = hosts.count() == 1;
        let returned_words = if is_one_host { 8 * ranks * tokens.div_ceil(RETURNED) } else { 0 };
        // Rows for the proxy: outgoing tokens, returning rows, or sums, which are FP32.
        let out = [tokens * self.k.min(ranks), self.room, 2 * passed].into_iter().max().unwrap_or(0);
        let out = if all_mapped { 0 } else { out };
        // Rows that arrive from other hosts; rows, and tokens, that are offered to the ranks of this host.
        let arriving = if is_one_host { 0 } else { self.room };
        let offered = if is_one_host || members == 1 { 0 } else { self.room };
        let tokens_offered = if members > 1 { tokens } else { 0 };
        let part = |bytes: usize| bytes.next_multiple_of(128) as u64;
        let heap = Heap {
            headers: part(header),
            headers_out: part(header),
            header_words: part(8 * ranks),
            words: part(words),
            gathered_words: part(gathered_words),
            rows: part(arriving * row),
            sides: part(arriving * side),
            offered_rows: part(offered * row),
            offered_sides: part(if is_one_host { 0 } else { self.room * side }),
            back_rows: part(back * row),
            back_sides: part(back * side),
            out_rows: part(out * row),
            out_sides: part(out * side),
            staged_rows: part(staged * row),
            staged_sides: part(staged * side),
            sum_rows: part(2 * sums * row),
            sum_sides: part(sums * side),
            near_words: part(8 * ranks),
            token_rows: part(tokens_offered * row),
            token_sides: part(tokens_offered * side),
            near_places_at: part(2 * 4 * members * tokens_offered),
            returned_words: part(returned_words),
        };
        Parts { heap, side, staged, passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_bytes_are_those_of_any_hosts() {
        let shape = HighThroughputShape { most_tokens: 64, room: 256, row: 256, scales: 2, experts: 8, k: 2 };
        let most = shape.most_bytes(4).unwrap_or(0);
        for first in [[0; 4], [0, 0, 2, 2], [0, 1, 2, 3]] {
            let parts = shape.parts(4, &DeviceHosts::of(&first, &[true; 4]), false);
            assert!(parts.heap.bytes() <= most, "{first:?}");
        }
        // The memory holds at least the arriving or offered rows, the returning rows, and the rows for the proxy.
        assert!(most >= (256 + 2 * 64 + 256) * 256);
        let of_hosts = |each| shape.bytes_of_hosts(4, each).unwrap_or(0);
        assert!(of_hosts(4) < of_hosts(2) && of_hosts(2) <= most && of_hosts(1) <= most);
        // On one host: the tokens that a rank offers, and the rows that return to it.
        assert!((4 * 64 * 256..6 * 64 * 256).contains(&of_hosts(4)), "{}", of_hosts(4));
        assert!(HighThroughputShape { k: 0, ..shape }.most_bytes(4).is_err());
    }

    #[test]
    fn sizes_that_do_not_fit_into_words_are_refused() {
        let shape =
            HighThroughputShape { most_tokens: 1 << 16, room: 1 << 20, row: 1 << 14, scales: 64, experts: 256, k: 8 };
        assert!(shape.check(64).is_ok());
        let large = usize::MAX / 32 * 16;
        for wrong in [
            HighThroughputShape { most_tokens: large, ..shape },
            HighThroughputShape { room: large, ..shape },
            HighThroughputShape { row: large, ..shape },
            HighThroughputShape { scales: large, ..shape },
        ] {
            assert!(wrong.check(64).is_err(), "{wrong:?}");
        }
    }
}
