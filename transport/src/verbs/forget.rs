//! Destinations that are forgotten, whose queue pairs serve others.
//!
//! A queue pair keeps its number. What is left of its former connection must not be taken for part of the next one:
//! - work requests and receives that it discards in the error state: its completions, which are read before it is reset;
//! - asynchronous events, which are read before, too;
//! - packets that are still on the way, or that a peer sends because it does not know yet: the queue pair drops them for a
//!   second or more in the error state, and the next connection has another
//!   [packet sequence number](super::address::Address::of).

use super::domain::errno_fault;
use super::open::{PeerState, VerbsRail};
use crate::error::Fault;
use crate::rail::Dest;

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
        match peer.state {
            // First: without it, nothing may end what is outstanding.
            PeerState::Leaving { marked: false } => {
                let marked = self.post_last(index);
                self.peers[index].state = PeerState::Leaving { marked };
                false
            }
            PeerState::Leaving { marked: true } if !peer.sent.is_empty() => false,
            PeerState::Leaving { marked: true } => {
                if let Err(error) = peer.queue.reset(&self.path) {
                    tracing::warn!("the queue pair of destination {dest} cannot be used again: {error}");
                    return false;
                }
                peer.sent.reset();
                (peer.state, peer.theirs) = (PeerState::Waiting, None);
                self.slots.leave(dest);
                true
            }
            PeerState::Ready | PeerState::Failed(_) | PeerState::Waiting => {
                // One that is renewed and waits for the other end has no error state yet.
                if matches!(peer.state, PeerState::Waiting)
                    && let Err(error) = peer.queue.fail()
                {
                    tracing::warn!("destination {dest}: {error}");
                }
                peer.state = PeerState::Leaving { marked: false };
                false
            }
        }
    }
}
