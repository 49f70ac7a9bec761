//! Notifications that have arrived and wait for the program.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use symrail_core::lock;

/// The most bytes that wait, with [`OVERHEAD`] for each notification. Beyond, peers' notifications stay in their rings,
/// and their senders wait.
const MOST_BYTES: usize = 64 << 20;
const OVERHEAD: usize = 128;

/// A message from another agent, or from this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The name of the sender.
    pub agent: String,
    /// The message.
    pub message: Vec<u8>,
}

#[derive(Default)]
struct Waiting {
    all: VecDeque<Notification>,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

impl Inbox {
    pub fn has_room(&self) -> bool {
        lock(&self.waiting).bytes < MOST_BYTES
    }

    pub fn add(&self, agent: &str, message: Vec<u8>) {
        let mut waiting = lock(&self.waiting);
        waiting.bytes += message.len() + OVERHEAD;
        waiting.all.push_back(Notification { agent: agent.to_owned(), message });
        self.arrived.notify_one();
    }

    /// The notification that arrived first. It stays if `read` refuses it.
    pub fn take<E>(&self, read: impl FnOnce(&Notification) -> Result<(), E>) -> Option<Result<Notification, E>> {
        let mut waiting = lock(&self.waiting);
        if let Err(refused) = read(waiting.all.front()?) {
            return Some(Err(refused));
        }
        let first = waiting.all.pop_front()?;
        waiting.bytes -= first.message.len() + OVERHEAD;
        Some(Ok(first))
    }

    /// Waits until a notification is there, or for this time.
    pub fn wait(&self, time: Duration) {
        let waiting = lock(&self.waiting);
        if waiting.all.is_empty() {
            drop(self.arrived.wait_timeout(waiting, time).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
