//! Sessions over libfabric's `shm`, kept while another session of this process may use them.
//!
//! The provider reaches an endpoint of the same process through that process's own mapping, which ends with the
//! endpoint: an operation on the way to it would access memory that is not mapped any more.

use std::sync::{Arc, Mutex};

use super::Session;
use symrail_core::lock;

/// The number of owners of sessions over `shm`, and the sessions of those that have ended.
static KEPT: Mutex<(usize, Vec<Arc<Session>>)> = Mutex::new((0, Vec::new()));

/// An owner's share in its session; when the last one of the process is dropped, all these sessions are closed.
pub struct Kept(Arc<Session>);

impl Kept {
    /// `None` where the provider needs no such care.
    #[must_use]
    pub fn new(session: &Arc<Session>) -> Option<Kept> {
        session.rails().iter().any(|rail| rail.provider == "shm").then(|| {
            lock(&KEPT).0 += 1;
            Kept(Arc::clone(session))
        })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut kept = lock(&KEPT);
        kept.0 -= 1;
        kept.1.push(Arc::clone(&self.0));
        let closed = if kept.0 == 0 { std::mem::take(&mut kept.1) } else { Vec::new() };
        // Closing a session takes time.
        drop(kept);
        drop(closed);
    }
}
