//! The buffers of a collective.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::plan::Collective;

/// Input and output, as the device names memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffers<M> {
    pub input: M,
    pub output: M,
    /// Bytes of a part: see [`Call::part`](crate::run::Call::part).
    pub part: u64,
}

impl Collective {
    /// Refuses an input and an output that overlap, unless the collective works in place there: both are the same
    /// memory, or the smaller one is the part of this PE, which is `rank`, in the larger one.
    ///
    /// # Errors
    /// The remedy.
    pub fn check_overlap(&self, rank: u32, input: &Range<u64>, output: &Range<u64>) -> Result<()> {
        if input.start >= output.end || output.start >= input.end {
            return Ok(());
        }
        let is_part = |part: &Range<u64>, whole: &Range<u64>| {
            Some(part.start.wrapping_sub(whole.start)) == u64::from(rank).checked_mul(part.end - part.start)
        };
        let (in_place, place) = match self {
            Collective::AllGather => (is_part(input, output), format!("the input is part {rank} of the output")),
            Collective::ReduceScatter => (is_part(output, input), format!("the output is part {rank} of the input")),
            _ => (input == output, "they are the same memory".into()),
        };
        let refused = || Error::Call(format!("{self}: input and output overlap; to work in place, {place}"));
        if in_place { Ok(()) } else { Err(refused()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn input_and_output_overlap_where_a_collective_works_in_place_and_nowhere_else() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
        // Bytes of input and output, and where in the output the input starts for rank 2.
        for (collective, input, output, place) in [
            (AllReduce, 40, 40, 0),
            (AllToAll, 40, 40, 0),
            (Broadcast, 40, 40, 0),
            (Reduce, 40, 40, 0),
            (AllGather, 8, 40, 16),
            (ReduceScatter, 40, 8, -16),
        ] {
            let check = |at: i64| {
                let start = (1000 + at) as u64;
                collective.check_overlap(2, &(start..start + input), &(1000..1000 + output))
            };
            for at in -(input as i64) - 1..=output as i64 + 1 {
                let apart = at + input as i64 <= 0 || at >= output as i64;
                assert_eq!(check(at).is_ok(), apart || at == place, "{collective} at {at}");
            }
            let why = check(place + 1).unwrap_err().to_string();
            assert!(why.starts_with(&format!("{collective}: input and output overlap")), "{why}");
        }
    }
}
