//! Communicators of some of a communicator's ranks. In a group they are made at its end: ranks of one thread wait for
//! one another.

use std::ffi::c_int;

use symrail_core::{CCount, CList, CPointer};

use crate::communicator::Communicator;
use crate::config::Structure;
use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::ids::{self, Parent, Ranks};
use crate::joining::new_id;
use crate::rank::Joining;
use crate::types::{Handle, NO_COLOR};
use crate::{group, registry};

/// `NCCL_SHRINK_ABORT`
const ABORT: c_int = 1;

impl Parent for Communicator {
    fn with_ranks<R>(&self, body: impl FnOnce(Ranks<'_>) -> Result<R, Failure>) -> Result<R, Failure> {
        self.with(|inside| {
            inside.collectives.gpu().bind()?;
            body(inside.ranks)
        })
    }
}

/// Joins a communicator of these ranks, of which this one is one. Collective among them.
fn join(parent: &Communicator, members: &[u32]) -> Result<Option<Communicator>, Failure> {
    let place = members.iter().position(|&rank| rank == parent.rank).unwrap_or(0);
    let join = |id| Communicator::join(id, place as u32, members.len() as u32).map(Some);
    ids::join_by(parent, |ranks| ranks.agree(members, new_id), join)
}

/// Joins a communicator of the ranks of a color; nothing if this rank has none. Collective.
fn split(parent: &Communicator, color: c_int, key: c_int) -> Result<Option<Communicator>, Failure> {
    let mine = [color as u64, i64::from(key) as u64];
    let all = parent.with(|inside| inside.ranks.gather(&mine))?;
    if color == NO_COLOR { Ok(None) } else { join(parent, &of_color(&all, color as u64)) }
}

/// The ranks of a color, ordered by key and then by rank, from the color and the key of each.
fn of_color(all: &[u64], color: u64) -> Vec<u32> {
    let of_ranks = (0..).zip(all.chunks_exact(2));
    let mut members: Vec<(i64, u32)> =
        of_ranks.filter(|(_, one)| one[0] == color).map(|(rank, one)| (one[1] as i64, rank)).collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

nccl! {
    fn ncclCommSplit(comm: Handle, color: c_int, key: c_int, new: CPointer<Handle>, config: Structure) of comm {
        group::call(|| {
            given("newcomm", new)?.set(0);
            config.check_for_communicator()?;
            if color < NO_COLOR {
                return Err(Failure::argument(format!("the color {color} of a split is below 0")));
            }
            let parent = registry::find(comm)?;
            let made = group::join(Joining::new(Some(comm), move || split(&parent, color, key)))?;
            if color != NO_COLOR {
                new.set(made);
            }
            Ok(())
        })
    }
}

nccl! {
    fn ncclCommShrink(
        comm: Handle,
        excluded: CList<c_int>,
        count: CCount,
        new: CPointer<Handle>,
        config: Structure,
        flags: c_int,
    ) of comm {
        group::call(|| {
            given("newcomm", new)?.set(0);
            config.check_for_communicator()?;
            let parent = registry::find(comm)?;
            if !(flags == 0 || flags == ABORT) {
                let there_are = format!("NCCL_SHRINK_DEFAULT (0) and NCCL_SHRINK_ABORT ({ABORT})");
                return Err(Failure::argument(format!("shrinkFlags is {flags}: there are {there_are}")));
            }
            let none = || Failure::argument("a communicator without any rank less is not smaller");
            let excluded = excluded.get(count).ok_or_else(none)?;
            let members: Vec<u32> = (0..parent.size).filter(|&rank| !excluded.contains(&(rank as c_int))).collect();
            if !members.contains(&parent.rank) {
                let rank = parent.rank;
                return Err(Failure::usage(format!("rank {rank} is excluded, and takes no part in shrinking")));
            }
            new.set(group::join(Joining::new(Some(comm), move || {
                if flags == ABORT {
                    parent.revoke()?;
                }
                join(&parent, &members)
            }))?);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_color_is_ordered_by_keys_and_then_by_ranks() {
        let all: Vec<u64> = [(3, 5), (NO_COLOR, 0), (3, -2), (4, 1), (3, 5)]
            .iter()
            .flat_map(|&(color, key)| [color as u64, i64::from(key) as u64])
            .collect();
        assert_eq!(of_color(&all, 3), [2, 0, 4]);
        assert_eq!((of_color(&all, 4), of_color(&all, 7)), (vec![3], vec![]));
    }
}
