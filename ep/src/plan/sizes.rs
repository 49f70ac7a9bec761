//! The sizes of buffers for given maximums.

use super::layout::MOST_TOP_K;
use super::rows::RowFormat;
use crate::exchange::Exchange;
use crate::high_throughput::header_bytes;

/// The size in bytes of the smallest row for which buffers are made.
pub const LEAST_ROW: usize = 64;

/// Heap bytes of each rank for high throughput with blocks of `rows` rows of `row_bytes` bytes. More rows in a block
/// make fewer blocks; any number of rows passes through the smallest blocks. These hold two rows, because sums that
/// cross between hosts are FP32, which needs twice the bytes of bfloat16.
#[must_use]
pub fn high_throughput(ranks: usize, rows: usize, row_bytes: usize) -> usize {
    Exchange::bytes(ranks, header_bytes(ranks)) + Exchange::bytes(ranks, rows.max(2) * row_bytes)
}

/// Bytes of a row of a dispatch or combine with the largest side data, for a token of `token` bytes.
#[must_use]
pub fn largest_row(token: usize) -> usize {
    let scales = 4 * token.div_ceil(128);
    RowFormat { token, scales, indices: MOST_TOP_K, weights: MOST_TOP_K, number: 4, mask: 8 }.bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::layout::MOST_EXPERTS;

    proptest! {
        #[test]
        fn blocks_of_the_computed_size_have_room(ranks in 1usize..65, rows in 1usize..100, row in 1usize..20_000) {
            let bytes = high_throughput(ranks, rows, row);
            let of_headers = Exchange::bytes(ranks, header_bytes(ranks));
            let block = Exchange::largest_block(ranks, bytes - of_headers);
            let wanted = rows.max(2) * row;
            prop_assert!((wanted..wanted + 64).contains(&block));
        }
    }

    #[test]
    fn headers_have_room_for_all_experts() {
        for ranks in [1, 2, 3, 8, 64] {
            assert!(header_bytes(ranks) >= 4 * (ranks + MOST_EXPERTS / ranks));
        }
    }
}
