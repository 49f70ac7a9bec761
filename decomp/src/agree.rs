//! Whether all PEs of a team mean the same.

use std::hash::{DefaultHasher, Hash, Hasher};

use symrail::Team;
use symrail::collective::Reduction;

use crate::error::{Error, Result};

/// Numbers that a reduction takes from any memory at once.
const AT_ONCE: usize = 1024;

/// Combines numbers of all PEs, place by place. Collective over the team.
pub(crate) fn combine(team: &Team<'_>, numbers: &mut [u64], reduction: Reduction) -> Result<()> {
    for part in numbers.chunks_mut(AT_ONCE) {
        let words = part.as_mut_ptr().cast::<u8>();
        // SAFETY: the words are this call's own, in and out; so few may be any memory.
        unsafe { team.reduce(words, words, part.len(), reduction) }?;
    }
    Ok(())
}

/// The numbers of all PEs, one PE's behind the other's. All have as many. Collective over the team.
pub(crate) fn gather(team: &Team<'_>, own: &[u64]) -> Result<Vec<u64>> {
    let mut all = vec![0; own.len() * team.group().size() as usize];
    all[own.len() * team.group().me() as usize..][..own.len()].copy_from_slice(own);
    combine(team, &mut all, Reduction::or::<u64>())?;
    Ok(all)
}

/// The largest of all PEs' numbers. Collective over the team.
pub(crate) fn largest(team: &Team<'_>, mut number: u64) -> Result<u64> {
    combine(team, std::slice::from_mut(&mut number), Reduction::max::<u64>())?;
    Ok(number)
}

/// Compares named parameters of all PEs. Collective over the team.
///
/// # Errors
/// [`Error::Differ`] on all PEs, with the first parameter that another PE has otherwise; two that have the same differ
/// from a third one, and name that.
pub(crate) fn same(team: &Team<'_>, call: &'static str, parameters: &[(&'static str, u64)]) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    parameters.iter().for_each(|(_, value)| value.hash(&mut hasher));
    // Of a number and its opposite the larger ones are opposites only if all numbers are the same.
    let own = hasher.finish();
    let mut ends = [own, !own, parameters.len() as u64, !(parameters.len() as u64)];
    combine(team, &mut ends, Reduction::max::<u64>())?;
    if ends[0] == !ends[1] {
        return Ok(());
    }
    let group = team.group();
    let differ = |(what, mine), (index, theirs)| Error::Differ {
        call,
        what,
        pe: group.pe(group.me()),
        mine,
        other: group.pe(index as u32),
        theirs,
    };
    let count = parameters.len() as u64;
    if ends[2] != !ends[3] {
        let counts = gather(team, &[count])?;
        let other = counts.iter().enumerate().find(|(_, theirs)| **theirs != count);
        return other
            .map_or(Ok(()), |(index, &theirs)| Err(differ(("the number of parameters", count), (index, theirs))));
    }
    let values: Vec<u64> = parameters.iter().map(|(_, value)| *value).collect();
    let all = gather(team, &values)?;
    for (i, &parameter) in parameters.iter().enumerate() {
        let of_all = all.iter().skip(i).step_by(values.len()).enumerate();
        if let Some((index, &theirs)) = of_all.into_iter().find(|(_, theirs)| **theirs != parameter.1) {
            return Err(differ(parameter, (index, theirs)));
        }
    }
    Ok(())
}
