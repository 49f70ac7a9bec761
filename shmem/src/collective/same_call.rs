//! `SYMRAIL_CHECK_COLLECTIVES`: before each collective of a team its PEs compare what they call.
//!
//! Without it, PEs that make different calls wait for each other, or take one call's data for the other's. It is a setting
//! for programs under development: each collective takes a small reduction more.

use super::reduce;
use crate::error::{Error, Result};
use crate::team::Team;

/// What is called. PEs tell each other the index.
const CALLS: [&str; 17] = [
    "sync",
    "broadcast",
    "collect",
    "fcollect",
    "alltoall",
    "alltoalls",
    "scan",
    "split of a team",
    "end of a team",
    "sum reduction",
    "product reduction",
    "min reduction",
    "max reduction",
    "and reduction",
    "or reduction",
    "xor reduction",
    "other reduction",
];

/// Bits of the number by which PEs tell each other what they call: size, root, and the call above them.
const SIZE_BITS: u32 = 38;
const ROOT_BITS: u32 = 20;

/// A call, as one PE makes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// One of [`CALLS`].
    pub what: &'static str,
    /// Bytes that each PE hands in, where all hand in the same.
    pub bytes: usize,
    pub root: u32,
}

impl Call {
    pub fn new(what: &'static str, bytes: usize) -> Call {
        Call { what, bytes, root: 0 }
    }

    fn to_number(self) -> u64 {
        let what = CALLS.iter().position(|call| *call == self.what).unwrap_or(CALLS.len() - 1) as u64;
        let (root, bytes) = (u64::from(self.root) & ((1 << ROOT_BITS) - 1), self.bytes as u64 & ((1 << SIZE_BITS) - 1));
        what << (ROOT_BITS + SIZE_BITS) | root << SIZE_BITS | bytes
    }
}

/// A call in words, from its number.
fn describe(number: u64) -> String {
    let what = CALLS.get((number >> (ROOT_BITS + SIZE_BITS)) as usize).copied().unwrap_or("something unknown");
    let (root, bytes) = (number >> SIZE_BITS & ((1 << ROOT_BITS) - 1), number & ((1 << SIZE_BITS) - 1));
    match what {
        "broadcast" => format!("broadcast of {bytes} bytes from root {root}"),
        "sync" | "collect" | "split of a team" | "end of a team" => what.to_owned(),
        _ => format!("{what} of {bytes} bytes"),
    }
}

/// Compares a call with those of the team's other PEs.
///
/// # Errors
/// [`Error::CallsDiffer`], on all of them; or a peer that does not answer.
#[cold]
pub(crate) fn compare(team: &Team<'_>, call: Call) -> Result<()> {
    let mine = call.to_number();
    let numbers = reduce::exchange_numbers(team, mine)?;
    let Some((index, &theirs)) = numbers.iter().enumerate().find(|(_, number)| **number != mine) else { return Ok(()) };
    Err(Error::CallsDiffer {
        pe: team.runtime.my_pe(),
        called: describe(mine),
        other: team.group.pe(index as u32),
        other_called: describe(theirs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_numbers() {
        let broadcast = Call { root: 3, ..Call::new("broadcast", 24) };
        assert_eq!(describe(broadcast.to_number()), "broadcast of 24 bytes from root 3");
        assert_eq!(describe(Call::new("sum reduction", 1 << 37).to_number()), "sum reduction of 137438953472 bytes");
        assert_eq!(describe(Call::new("sync", 0).to_number()), "sync");
        assert!(Call::new("other reduction", usize::MAX).to_number() < u64::MAX, "there is one more number");
        let numbers: std::collections::BTreeSet<u64> = CALLS.iter().map(|c| Call::new(c, 8).to_number()).collect();
        assert_eq!(numbers.len(), CALLS.len());
    }
}
