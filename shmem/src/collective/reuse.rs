//! When an active set may use its array again: the PEs to which a PE writes must have left the array's last use, and have
//! read the data that it brought.
//!
//! A PE is through with a call when it enters the next call of the same set of PEs, on any array. The other PEs know
//! that it is through
//! - after a barrier of all PEs, or a call in which every PE hears from all;
//! - after a broadcast, by an acknowledgement. A PE sends it to its parent of that broadcast when it enters the next
//!   call, if that is a broadcast too. A PE that forwards the next broadcast from the same root waits for it first.
//!   While two arrays alternate, the acknowledgements of one are in flight during the call on the other, so a slow PE
//!   delays no other PE further. A PE waits for its children only, so each level of the tree may be one use of the array
//!   ahead of the next one (docs/decisions/active-sets.md);
//! - otherwise by a barrier.
//!
//! Only a PE that writes to others before it has heard from them needs to know. PEs choose alike among the three,
//! because they make the same calls in the same order, as long as one thread at a time makes them. If several threads
//! may, each such call on an array that was used before starts with a barrier.

use std::collections::HashMap;
use std::sync::Mutex;

use symrail_core::lock;
use symrail_transport::Pe;

use super::tree;
use crate::error::Result;
use crate::rma::SignalOp;
use crate::space::load;
use crate::sync::Everybody;
use crate::team::{Area, Team};
use crate::waiting::Among;

/// The kind of a call, for this purpose.
#[derive(Clone, Copy)]
pub(super) enum Use<'a> {
    /// Data flows from a root through other PEs, and this PE forwards it to its children. No PE hears from all.
    Broadcast { root: u32, children: &'a [u32] },
    /// Some PEs write to others at once. At the end all PEs have heard from all.
    Writes,
    /// No PE writes before all have arrived.
    Waits,
}

/// The calls of a set of PEs, on all of its arrays.
pub(super) struct Calls {
    several_threads: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last call.
    number: u64,
    /// All PEs are through with the calls before this one.
    through: u64,
    /// The number of barriers of all PEs up to the last call.
    barriers: u64,
    last: HashMap<usize, Last>,
    /// Arrays whose last use was a broadcast that this PE must still acknowledge.
    owed: Vec<usize>,
}

/// The last use of an array.
#[derive(Clone, Copy, Default)]
struct Last {
    number: u64,
    broadcast: Option<Broadcast>,
    /// The number of acknowledgements that have arrived here or are on their way, since the beginning.
    expected: u64,
}

#[derive(Clone, Copy)]
struct Broadcast {
    root: u32,
    area: Area,
    parent: Option<Pe>,
    children: u64,
}

impl State {
    /// All PEs have entered this call, or will before it ends.
    fn all_arrived(&mut self, number: u64) {
        self.through = number;
        self.owed.clear();
    }

    fn acknowledge(&mut self, everybody: &Everybody<'_>) -> Result<()> {
        for array in self.owed.drain(..) {
            let Some(Last { broadcast: Some(broadcast), expected, .. }) = self.last.get_mut(&array) else { continue };
            *expected += broadcast.children;
            if let Some(parent) = broadcast.parent {
                everybody.ops.signal_op(broadcast.area.acknowledged(), 1, SignalOp::Add, parent)?;
            }
        }
        Ok(())
    }
}

impl Calls {
    /// No calls yet.
    pub fn new(several_threads: bool) -> Calls {
        Calls { several_threads, state: Mutex::default() }
    }

    /// Begins a call on the array at this address: returns when this PE may proceed. `team` is the array's, if it has
    /// one; `wait` waits for all PEs.
    pub fn begin(
        &self,
        everybody: &Everybody<'_>,
        array: usize,
        team: Option<&Team>,
        what: Use<'_>,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.number += 1;
        let (number, barriers) = (state.number, everybody.barriers());
        let last = state.last.get(&array).copied();
        // All PEs have been in a barrier before they use a new array.
        if barriers != state.barriers || last.is_none() {
            state.barriers = barriers;
            state.all_arrived(number);
        }
        let are_through = last.is_none_or(|last| !self.several_threads && last.number < state.through);
        let broadcast = match (what, team) {
            (Use::Broadcast { root, children }, Some(team)) => {
                let parent = tree::parent(team.hosts(), root).map(|index| team.group().pe(index));
                Some(Broadcast { root, area: *team.area(), parent, children: children.len() as u64 })
            }
            _ => None,
        };
        let same_root = last.and_then(|last| last.broadcast).map(|b| b.root) == broadcast.map(|b| b.root);
        let acknowledged = broadcast.is_some() && same_root && !self.several_threads;
        let waits = !matches!(what, Use::Waits) && !are_through && !acknowledged;
        if waits || broadcast.is_none() {
            state.all_arrived(number);
        } else if !self.several_threads {
            state.acknowledge(everybody)?;
        }
        let expected = state.last.get(&array).map_or(0, |last| last.expected);
        state.last.insert(array, Last { number, broadcast, expected });
        if broadcast.is_some() && !self.several_threads {
            state.owed.push(array);
        }
        drop(guard);
        match broadcast {
            _ if waits => wait(),
            Some(Broadcast { area, children: 1.., .. }) if !are_through => {
                let (word, group) =
                    (area.acknowledged(), team.map_or_else(|| everybody.ops.comm.job.everybody(), |team| team.group()));
                everybody.ops.wait_for("a broadcast of an active set", Among::All(group), || {
                    // SAFETY: the word is in this PE's committed heap and aligned.
                    (unsafe { load(word.cast(), 8) } >= expected).then_some(())
                })
            }
            _ => Ok(()),
        }
    }
}
