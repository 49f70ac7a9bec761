//! Ranks that take part again in low-latency calls: they come back from a delay, or join for the first time.
//!
//! All ranks meet, also those that stay masked. What ranks have counted of their calls differs by then, and memory holds
//! data of calls that some of them did not make, so that all start again with cleared memory.

use symrail::{Pe, Runtime};

use crate::error::{Error, Result};

/// Compares the ranks to admit among all ranks, and returns the ranks that are masked afterwards. `masked`: those of
/// this rank so far. Collective.
///
/// The admitted ranks know nothing of the present masks: these are those of the first rank that is not among them.
pub fn masks_after(rt: &Runtime, admitted: &[Pe], masked: &[bool]) -> Result<Vec<bool>> {
    let ranks = masked.len();
    if let Some(&rank) = admitted.iter().find(|&&rank| rank as usize >= ranks) {
        return Err(Error::argument("rank to connect", rank, format!("0 to {}", ranks - 1)));
    }
    let of = |is: &dyn Fn(usize) -> bool| {
        let mut words = vec![0u64; ranks.div_ceil(64)];
        (0..ranks).filter(|&rank| is(rank)).for_each(|rank| words[rank / 64] |= 1 << (rank % 64));
        words
    };
    let is_in = |words: &[u64], rank: usize| words[rank / 64] >> (rank % 64) & 1 != 0;
    let joins = of(&|rank| admitted.contains(&(rank as Pe)));
    let named: Vec<_> = joins.iter().map(|&word| ("connected ranks", word)).collect();
    let team = rt.team_world()?;
    team.compare("connect_ranks", &named)?;
    let all = team.gather(&of(&|rank| masked[rank]))?;
    let masks = |rank: usize| &all[rank * joins.len()..][..joins.len()];
    // Without such a rank all take part.
    let first = (0..ranks).find(|&rank| !is_in(&joins, rank));
    Ok((0..ranks).map(|rank| first.is_some_and(|first| !is_in(&joins, rank) && is_in(masks(first), rank))).collect())
}
