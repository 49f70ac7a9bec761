//! Destinations that are forgotten, whose queue pairs serve others.
//!
//! A queue pair keeps its number. What is left of its former connection must not be taken for part of the next one:
//! - work requests and receives that it discards in the error state: its completions, which are read before it is reset;
//! - asynchronous events, which are read before, too;
//! - packets that are still on the way, or that a peer sends because it does not know yet: the queue pair drops them for a
//!   second or more in the error state, and the next connection has another
//!   [packet sequence number](super::address::Address::of).

use super::domain::errno_fault;
use super::open::{Peer, PeerState, VerbsRail};
use crate::error::Fault;
use crate::rail::Dest;

/// Calls, and so seconds, within which the work requests of a failed queue pair end, unless its device has failed.
const MOST_CALLS: u32 = 30;
/// In the place of the number of calls: the queue pair is left as it is.
const GIVEN_UP: u32 = MOST_CALLS + 1;

/// Why nothing is posted to a destination that is being forgotten.
pub(super) fn left() -> Fault {
    Fault { retryable: true, ..errno_fault(libc::ENOTCONN, "the destination is being forgotten") }
}

impl VerbsRail {
    /// [`Rail::forget`](crate::rail::Rail::forget). Each step takes a call, and a second passes between two calls.
    pub(super) fn forget_destination(&mut self, dest: Dest) -> bool {
        let Some(index) = self.index(dest) else { return true };
        if self.peers[index].theirs.is_none() {
            // Its queue pair was never connected.
            self.slots.leave(dest);
            return true;
        }
        self.flush();
        self.poll_events();
        self.fail_peer(index, &left());
        let peer = &mut self.peers[index];
        let PeerState::Leaving { marked, calls } = peer.state else {
            // One that is renewed and waits for the other end has no error state yet.
            if matches!(peer.state, PeerState::Waiting)
                && let Err(error) = peer.queue.fail()
            {
                tracing::warn!("destination {dest}: {error}");
            }
            peer.state = PeerState::Leaving { marked: false, calls: 0 };
            return false;
        };
        match calls {
            MOST_CALLS => return self.replace(dest, index, "its work requests have not ended for so long"),
            GIVEN_UP => return true,
            _ => {}
        }
        // First: without it, nothing may end what is outstanding.
        if !marked {
            let marked = self.post_last(index);
            self.peers[index].state = PeerState::Leaving { marked, calls: calls + 1 };
            return false;
        }
        peer.state = PeerState::Leaving { marked, calls: calls + 1 };
        if !peer.sent.is_empty() {
            return false;
        }
        if let Err(error) = peer.queue.reset(&self.path) {
            return self.replace(dest, index, &error.to_string());
        }
        peer.sent.reset();
        (peer.state, peer.theirs) = (PeerState::Waiting, None);
        self.slots.leave(dest);
        true
    }

    /// Destroys a queue pair that cannot be used again, and makes another one for its place. Where the device makes none,
    /// perhaps because it has failed, the place stays unused.
    fn replace(&mut self, dest: Dest, index: usize, why: &str) -> bool {
        let rail = &self.caps.name;
        tracing::warn!("rail {rail}: the queue pair of destination {dest} cannot be used again: {why}");
        let made = self.another_peer();
        let peer = &mut self.peers[index];
        match made {
            Ok(Peer { queue, .. }) => {
                peer.queue = queue;
                peer.sent.abandon(&mut self.credits);
                (peer.state, peer.theirs) = (PeerState::Waiting, None);
                self.slots.leave(dest);
            }
            Err(error) => {
                tracing::warn!("rail {rail}: no other takes its place: {error}");
                peer.state = PeerState::Leaving { marked: true, calls: GIVEN_UP };
            }
        }
        true
    }
}
