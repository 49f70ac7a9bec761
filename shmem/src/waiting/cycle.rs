//! Detection of PEs that wait for one another for ever, from their posts.

use std::collections::{BTreeMap, BTreeSet};

use symrail_transport::Pe;

use super::post::{CallId, POST, Post};
use crate::operations::Operations;

/// The PEs of a cycle with their posts, and the PE that this PE waits for, the first on the path to the cycle.
pub(super) type Cycle = (Vec<(Pe, Post)>, (Pe, Post));

/// Searches a cycle that is reachable from this PE's own post.
pub(super) fn search(ops: Operations<'_>, mine: Post) -> Option<Cycle> {
    let me = ops.comm.job.me;
    let way = vec![(me, mine.clone())];
    let seen = [(me, Some(mine))].into();
    let mut search = Search { ops, way, seen, done: BTreeSet::new() };
    let start = search.go_on()?;
    // The path begins with this PE; its second entry is the PE that this one waits for.
    let first = search.way.get(1)?.clone();
    Some((search.way.split_off(start), first))
}

/// A depth-first search along the edges from a waiting PE to an awaited one.
struct Search<'rt> {
    ops: Operations<'rt>,
    /// The PEs on the current path, with their posts.
    way: Vec<(Pe, Post)>,
    seen: BTreeMap<Pe, Option<Post>>,
    /// PEs from which no cycle is reachable.
    done: BTreeSet<Pe>,
}

impl Search<'_> {
    /// Searches on from the end of the path. Returns the index on the path at which the cycle begins.
    fn go_on(&mut self) -> Option<usize> {
        while let Some((pe, post)) = self.way.last().cloned() {
            let next = post.call.and_then(|call| call.group.others().find_map(|(_, pe)| self.step(&call, pe)));
            match next {
                Some(Err(start)) => return Some(start),
                Some(Ok(step)) => self.way.push(step),
                None => {
                    self.done.insert(pe);
                    self.way.pop();
                }
            }
        }
        None
    }

    /// The edge from a PE in this call to `pe`, if that PE is in another call: a further PE for the path, or its index
    /// on the path.
    fn step(&mut self, call: &CallId, pe: Pe) -> Option<Result<(Pe, Post), usize>> {
        if self.done.contains(&pe) {
            return None;
        }
        let post = self.seen.entry(pe).or_insert_with(|| post_of(&self.ops, pe)).clone()?;
        // Another thread of that PE may still make the call.
        post.call.filter(|other| !other.is_same(call) && !post.one_of_many)?;
        Some(self.way.iter().position(|(on_way, _)| *on_way == pe).map_or(Ok((pe, post)), Err))
    }
}

/// A peer's post; `None` if it does not wait, or cannot be read.
pub(super) fn post_of(ops: &Operations<'_>, pe: Pe) -> Option<Post> {
    let mut words = Box::new([0u64; POST]);
    let to = words.as_mut_ptr().cast();
    // SAFETY: the words are as many as are read, and are not freed if the get failed.
    if unsafe { ops.get(to, ops.comm.board.address(), POST * 8, pe) }.is_err() {
        // A get that the end of the wait has interrupted may still write them, as long as the rails exist.
        std::mem::forget(words);
        return None;
    }
    Post::decode(&words, pe, ops.comm.job.n_pes)
}
