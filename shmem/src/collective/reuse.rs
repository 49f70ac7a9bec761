//! When the array of an active set may be used again: not before all have left its last use, and could read what that
//! has brought.
//!
//! A PE is through with a call when it comes to the next one of the same set of PEs, by whatever array. The others know
//! that it is
//! - after a barrier of all PEs, or a call in which all hear from all;
//! - where the call was a broadcast, from an acknowledgement. A PE sends it to whom the data came from, when it comes
//!   to the next call, if that is a broadcast too. Who passes on the next broadcast from the same root waits for it
//!   first. While two arrays take turns the acknowledgements of one are under way during the call by the other, and
//!   nobody waits for a slow PE longer than that;
//! - else by a barrier.
//!
//! Only who writes to others before it has heard from them needs to know. PEs decide alike which of the three it is,
//! because they make the same calls in the same order, as long as one thread at a time does. Where several may, each
//! such call by an array that was in use before starts with a barrier.

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

/// What matters of a call.
#[derive(Clone, Copy)]
pub(super) enum Use<'a> {
    /// Data comes from a root by others, and is passed on to these. Nobody hears from all.
    Broadcast { root: u32, children: &'a [u32] },
    /// Some write to others at once. In the end all have heard from all.
    Writes,
    /// Nobody writes before all have arrived.
    Waits,
}

/// The calls of a set of PEs, by all of its arrays.
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
    /// Barriers of all PEs up to the last call.
    barriers: u64,
    last: HashMap<usize, Last>,
    /// Arrays whose last use was a broadcast that is to be acknowledged.
    owed: Vec<usize>,
}

/// The last use of an array.
#[derive(Clone, Copy, Default)]
struct Last {
    number: u64,
    broadcast: Option<Broadcast>,
    /// Acknowledgements that have come to this PE or are on their way, since the beginning.
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
    /// All PEs have come to this call, or will before it ends.
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
    /// None yet.
    pub fn new(several_threads: bool) -> Calls {
        Calls { several_threads, state: Mutex::default() }
    }

    /// Comes to a call by the array at this address, and returns when it may begin. `team` is the array's, if it has
    /// one; `wait` waits for all.
    pub fn begin(
        &self,
        everybody: &Everybody<'_>,
        (array, team): (usize, Option<&Team<'_>>),
        what: Use<'_>,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.number += 1;
        let (number, barriers) = (state.number, everybody.barriers());
        let last = state.last.get(&array).copied();
        // All have been in a barrier to begin with a new array.
        if barriers != state.barriers || last.is_none() {
            state.barriers = barriers;
            state.all_arrived(number);
        }
        let are_through = last.is_none_or(|last| !self.several_threads && last.number < state.through);
        let broadcast = match (what, team) {
            (Use::Broadcast { root, children }, Some(team)) => {
                let parent = tree::parent(&team.hosts, root).map(|index| team.group.pe(index));
                Some(Broadcast { root, area: team.area, parent, children: children.len() as u64 })
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
                    (area.acknowledged(), team.map_or_else(|| everybody.ops.comm.job.everybody(), |team| team.group));
                everybody.ops.wait_for("a broadcast of an active set", Among::All(group), || {
                    // SAFETY: the word is in this PE's committed heap and aligned.
                    (unsafe { load(word.cast(), 8) } >= expected).then_some(())
                })
            }
            _ => Ok(()),
        }
    }
}
