//! Peers that come and go, of an endpoint that has no job.
//!
//! A number is given to one peer only. What is kept for it is freed once the peer was removed and nothing is under way to
//! it, and the record goes to another number. So the invariant: **a number that was removed has no record, and never gets
//! one again.** A message that a removed peer had sent before, or sends because it does not know yet, names a number
//! without a record as its source, and is dropped before anything of it is read; a handle of the peer that a caller still
//! has is refused. Neither can be taken for one of another peer, whichever record that one has.

use super::{Core, Endpoint};
use crate::pe::Pe;
use crate::wire::FROM_HOST;

impl Endpoint {
    /// Gives records only to peers that are connected, and refuses all that concerns others. The caller calls it before
    /// it connects the first.
    pub fn know_only_connected(&mut self) {
        self.core.lanes.know_only_connected(self.core.profile.me());
    }

    /// Removes `pe` for the reason `why`: as [`Endpoint::has_left`], and afterwards it is forgotten, if the endpoint
    /// [knows only peers that are connected](Endpoint::know_only_connected).
    pub fn remove(&mut self, pe: Pe, why: &str) {
        self.has_left(pe, why);
        let Core { lanes, recovery, profile, .. } = &mut self.core;
        if pe != profile.me() && lanes.knows_only_connected() && !recovery.removed.contains(&pe) {
            recovery.removed.push(pe);
        }
    }

    /// Takes a peer that was forgotten since the last call.
    pub fn next_forgotten(&mut self) -> Option<Pe> {
        self.core.recovery.forgotten.pop()
    }

    /// Forgets the removed peers to which nothing is under way. The endpoint calls it once a second.
    #[cold]
    pub(super) fn forget_removed(&mut self) {
        let mut removed = std::mem::take(&mut self.core.recovery.removed);
        removed.retain(|&pe| {
            if self.core.recovery.is_leaving(pe) {
                return true;
            }
            // One that was lost before may have got messages since.
            self.core.drop_messages(pe);
            if !self.core.is_over_with(pe) {
                self.rails_leave(pe);
                return true;
            }
            let over = self.rails_forget(pe);
            if over {
                self.forget(pe);
            }
            !over
        });
        self.core.recovery.removed = removed;
    }

    fn rails_leave(&mut self, pe: Pe) {
        let host = self.core.profile.answer_to(pe, FROM_HOST);
        for rail in &mut self.rails {
            rail.leave(pe);
            rail.leave(host);
        }
    }

    /// Whether all rails have forgotten a peer, each of which is told.
    fn rails_forget(&mut self, pe: Pe) -> bool {
        let host = self.core.profile.answer_to(pe, FROM_HOST);
        self.rails.iter_mut().fold(true, |all, rail| rail.forget(pe) & rail.forget(host) & all)
    }

    fn forget(&mut self, pe: Pe) {
        let host = self.core.profile.answer_to(pe, FROM_HOST);
        let Core { lanes, profile, recovery, paths, segmentation, regions, queue, .. } = &mut self.core;
        lanes.forget(pe);
        paths.forget(pe);
        segmentation.forget(pe);
        regions.forget_all_of(pe);
        recovery.forget(pe, profile.n_pes());
        for dest in [pe, host] {
            profile.forget(dest);
            for lane in 0..self.rails.len() {
                queue.take_waiting(lane, dest);
            }
        }
        recovery.forgotten.push(pe);
    }
}

impl Core {
    /// Whether nothing is under way to a peer that was removed.
    fn is_over_with(&self, pe: Pe) -> bool {
        let host = self.profile.answer_to(pe, FROM_HOST);
        self.ops.on(pe).is_empty() && ![pe, host].iter().any(|&dest| self.queue.has_any(dest))
    }
}
