//! Cutting an operation into work requests.
//!
//! The functions are pure arithmetic, so that property tests can check "every byte exactly once".

/// Pieces of `0..len` of at most `max` bytes each, in order, as `(start, length)`.
///
/// An operation of zero bytes is one piece of zero bytes, because it still has to complete. A `max` of 0 counts as 1.
pub fn pieces(len: u64, max: u64) -> impl Iterator<Item = (u64, u64)> {
    let max = max.max(1);
    let count = len.div_ceil(max).max(1);
    (0..count).map(move |i| {
        let start = i * max;
        (start, max.min(len - start))
    })
}

/// Splits `0..len` over `lanes` lanes as evenly as `grain` allows, as `(lane, start, length)`.
///
/// Every share but the last is a multiple of `grain` bytes, so that shares start on boundaries that suit NICs. Lanes
/// without bytes are left out; zero bytes are one share of zero bytes on lane 0.
pub fn stripes(len: u64, lanes: usize, grain: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let lanes = lanes.max(1) as u64;
    let grain = grain.max(1);
    let share = len.div_ceil(lanes).max(1).div_ceil(grain).saturating_mul(grain);
    pieces(len, share).enumerate().map(|(lane, (start, length))| (lane, start, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_bytes_are_one_piece() {
        assert_eq!(pieces(0, 8).collect::<Vec<_>>(), [(0, 0)]);
        assert_eq!(stripes(0, 4, 64).collect::<Vec<_>>(), [(0, 0, 0)]);
    }

    #[test]
    fn an_odd_byte_is_not_lost() {
        let total: u64 = stripes(16_385, 2, 1).map(|(_, _, n)| n).sum();
        assert_eq!(total, 16_385);
    }

    proptest! {
        #[test]
        fn pieces_cover_every_byte_once(len in 0u64..1 << 20, max in 1u64..1 << 12) {
            let mut next = 0;
            for (start, n) in pieces(len, max) {
                prop_assert_eq!(start, next);
                prop_assert!(n <= max && (n > 0 || len == 0));
                next += n;
            }
            prop_assert_eq!(next, len);
        }

        #[test]
        fn stripes_cover_every_byte_once(len in 0u64..1 << 40, lanes in 1usize..20, grain in 1u64..1 << 13) {
            let (mut next, mut count) = (0, 0);
            for (lane, start, n) in stripes(len, lanes, grain) {
                prop_assert_eq!((lane, start), (count, next));
                prop_assert!(start % grain == 0);
                next += n;
                count += 1;
            }
            prop_assert_eq!(next, len);
            prop_assert!(count <= lanes);
        }
    }
}
