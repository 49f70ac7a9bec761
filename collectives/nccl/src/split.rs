//! Communicators of some of a communicator's ranks. The first of these ranks creates the new job's id, and sends it to
//! the others.

use std::ffi::{c_int, c_void};

use symrail::bootstrap::uid::{self, UniqueId};
use symrail::{Cmp, SignalOp};

use crate::communicator::{Communicator, ID_WORDS, Inside};
use crate::export::nccl;
use crate::guard::{Failure, given};
use crate::joining::interface;
use crate::types::{Handle, NO_COLOR};
use crate::{config, registry};

/// `NCCL_SHRINK_ABORT`
const ABORT: c_int = 1;

/// Joins a communicator of these ranks; this one is number `place`.
fn join(parent: &Communicator, members: &[u32], place: usize) -> Result<Communicator, Failure> {
    let id = parent.with(|inside| {
        inside.collectives.gpu().bind()?;
        if place > 0 {
            return receive(&inside);
        }
        let id = uid::create(interface()?)?;
        send(&inside, &id, members[1..].iter().copied())?;
        Ok(id)
    })?;
    Communicator::join(id, place as u32, members.len() as u32)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Sends an id to ranks, which receive it.
pub fn send(inside: &Inside<'_>, id: &UniqueId, to: impl Iterator<Item = u32>) -> Result<(), Failure> {
    let words: Vec<u64> = id.to_bytes().chunks(8).map(word).collect();
    for rank in to {
        inside.board.put_signal(0, &words, (inside.board, ID_WORDS), 1, SignalOp::Set, rank)?;
    }
    Ok(())
}

/// Receives the id that another rank puts here.
pub fn receive(inside: &Inside<'_>) -> Result<UniqueId, Failure> {
    inside.board.wait_until(ID_WORDS, Cmp::Ne, 0)?;
    let words = inside.board.to_vec()?;
    inside.board.write(ID_WORDS, 0)?;
    let bytes: Vec<u8> = words[..ID_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(UniqueId::from_bytes(&bytes)?)
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
    fn ncclCommSplit(comm: Handle, color: c_int, key: c_int, new: *mut Handle, config: *mut c_void) of comm {
        // SAFETY: C's caller vouches for its pointers.
        let new = unsafe { given("newcomm", new) }?;
        *new = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe { config::of_communicator(config) }?;
        if color < NO_COLOR {
            return Err(Failure::argument(format!("the color {color} of a split is below 0")));
        }
        let parent = registry::find(comm)?;
        let mine = [color as u64, i64::from(key) as u64];
        let all = parent.with(|inside| Ok(inside.runtime.team_world()?.gather(&mine)?))?;
        if color == NO_COLOR {
            return Ok(());
        }
        let members = of_color(&all, color as u64);
        let place = members.iter().position(|&rank| rank == parent.rank).unwrap_or(0);
        *new = registry::add(join(&parent, &members, place)?);
        Ok(())
    }
}

nccl! {
    fn ncclCommShrink(
        comm: Handle,
        excluded: *mut c_int,
        count: c_int,
        new: *mut Handle,
        config: *mut c_void,
        flags: c_int,
    ) of comm {
        // SAFETY: C's caller vouches for its pointers.
        let new = unsafe { given("newcomm", new) }?;
        *new = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe { config::of_communicator(config) }?;
        let parent = registry::find(comm)?;
        if !(flags == 0 || flags == ABORT) {
            let why = format!("shrinkFlags is {flags}: there are NCCL_SHRINK_DEFAULT (0) and NCCL_SHRINK_ABORT ({ABORT})");
            return Err(Failure::argument(why));
        }
        if excluded.is_null() || count <= 0 {
            return Err(Failure::argument("a communicator without any rank less is not smaller"));
        }
        // SAFETY: as above.
        let excluded = unsafe { std::slice::from_raw_parts(excluded, count as usize) };
        let members: Vec<u32> = (0..parent.size).filter(|&rank| !excluded.contains(&(rank as c_int))).collect();
        let Some(place) = members.iter().position(|&rank| rank == parent.rank) else {
            return Err(Failure::usage(format!("rank {} is excluded, and takes no part in shrinking", parent.rank)));
        };
        if flags == ABORT {
            parent.revoke()?;
        }
        *new = registry::add(join(&parent, &members, place)?);
        Ok(())
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
