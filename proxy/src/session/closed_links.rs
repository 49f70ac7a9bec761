//! Links that a session has closed and whose other ends have not closed theirs.
//!
//! Their connections stay until then, so a peer that has seen the goodbye can tell when the session itself has ended:
//! that is when the connection ends.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use symrail_core::lock;

/// A connection, as the question whether its other end is still open. Dropping it ends the connection.
type Connection = Box<dyn FnMut() -> bool + Send>;

#[derive(Default)]
pub(super) struct ClosedLinks(Mutex<Vec<Connection>>);

impl ClosedLinks {
    pub fn add(&self, is_open: Connection) {
        lock(&self.0).push(is_open);
        self.are_over();
    }

    /// Ends the connections of links that both ends have closed. Returns whether no other is left.
    fn are_over(&self) -> bool {
        let mut all = lock(&self.0);
        all.retain_mut(|is_open| is_open());
        all.is_empty()
    }

    /// Waits until all other ends have closed theirs, at most for `limit`.
    pub fn wait(&self, limit: Duration, mut progress: impl FnMut()) {
        let begun = Instant::now();
        while !self.are_over() && begun.elapsed() < limit {
            progress();
            std::thread::yield_now();
        }
    }
}
