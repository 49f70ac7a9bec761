//! PEs that wait for one another for ever, as their posts tell.

use std::collections::{BTreeMap, BTreeSet};

use symrail_transport::Pe;

use super::post::{CallId, POST, Post};
use crate::operations::Operations;

/// The PEs of a cycle with what they have posted, and the first of those on the way there.
pub(super) type Cycle = (Vec<(Pe, Post)>, (Pe, Post));

/// A cycle that is reached from this PE's own post.
pub(super) fn search(ops: Operations<'_>, mine: Post) -> Option<Cycle> {
    let me = ops.comm.job.me;
    let way = vec![(me, mine.clone())];
    let seen = [(me, Some(mine))].into();
    let mut search = Search { ops, way, seen, done: BTreeSet::new() };
    let start = search.go_on()?;
    // A cycle behind this PE begins with the first step; one that this PE is in begins with itself.
    let first = search.way.get(1)?.clone();
    Some((search.way.split_off(start), first))
}

/// Follows who waits for whom.
struct Search<'rt> {
    ops: Operations<'rt>,
    /// The PEs from which it has gone on, with their posts, up to where it is.
    way: Vec<(Pe, Post)>,
    seen: BTreeMap<Pe, Option<Post>>,
    /// PEs from which no cycle is reached.
    done: BTreeSet<Pe>,
}

impl Search<'_> {
    /// Goes on from the last one on the way. Returns where on the way the cycle begins.
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

    /// Who waits in this call waits for `pe`, if that one is in another call: one more on the way, or where on the way
    /// it is.
    fn step(&mut self, call: &CallId, pe: Pe) -> Option<Result<(Pe, Post), usize>> {
        if self.done.contains(&pe) {
            return None;
        }
        let post = self.seen.entry(pe).or_insert_with(|| post_of(&self.ops, pe)).clone()?;
        // Another thread of a PE may come yet.
        post.call.filter(|other| !other.is_same(call) && !post.one_of_many)?;
        Some(self.way.iter().position(|(on_way, _)| *on_way == pe).map_or(Ok((pe, post)), Err))
    }
}

/// What a peer waits in; nothing if it does not wait, or cannot be asked.
pub(super) fn post_of(ops: &Operations<'_>, pe: Pe) -> Option<Post> {
    let mut words = [0u64; POST];
    let to = words.as_mut_ptr().cast();
    // SAFETY: the words are this call's own, and as many as are read.
    unsafe { ops.get(to, ops.comm.board.address(), POST * 8, pe) }.ok()?;
    Post::decode(&words, pe, ops.comm.job.n_pes)
}
