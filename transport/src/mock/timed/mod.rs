//! A fabric that models the time of each step, for simulations of many PEs in one thread.
//!
//! Nothing is lost or reordered, unless a PE dies. The costs follow LogGP ([`Costs`]). A PE is busy while it posts and
//! while it receives, as PEs are whose CPU moves the bytes. Messages between hosts pass both hosts' NICs one at a time.
//! Nothing arrives before its PE polls. The time is that of [`symrail_core::simulation`].
//!
//! | file | concept |
//! |---|---|
//! | here | costs, counters, and the fabric as simulations use it |
//! | `state` | what is under way, and which PE runs next |
//! | `calendar` | events by time |
//! | `nics` | the transfer time of a message |
//! | `rail` | a PE's rail |

mod calendar;
mod nics;
mod rail;
mod state;

use std::sync::{Arc, Mutex, MutexGuard};

pub use self::calendar::Calendar;
pub use self::nics::Nics;
use self::rail::TimedRail;
use self::state::State;
use crate::pe::Pe;
use crate::rail::Rail;

/// The costs of a message, in nanoseconds, and in picoseconds per byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Link {
    /// Time for which the sender is busy (LogGP's o).
    pub post: u64,
    /// Latency (L).
    pub latency: u64,
    /// Time for which the receiver is busy (o at its end).
    pub arrival: u64,
    /// Transfer time per byte (G).
    pub byte_ps: u64,
    /// CPU time per byte at either end.
    pub copy_ps: u64,
}

/// The costs of a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Costs {
    /// Costs between hosts.
    pub between_hosts: Link,
    /// Costs within a host.
    pub on_host: Link,
    /// Nanoseconds between two messages of a NIC (g).
    pub gap: u64,
    /// Nanoseconds by which the first message over a connection is delayed.
    pub connect: u64,
}

impl Link {
    /// Nanoseconds from the call that posts a message of so many bytes until the receiver has handled it.
    #[must_use]
    pub fn message(&self, bytes: u64) -> u64 {
        self.post + self.latency + self.arrival + bytes * (self.byte_ps + 2 * self.copy_ps) / 1000
    }
}

/// The traffic of a PE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of messages, writes, read requests and read answers that the PE has sent.
    pub sent: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Number of those that the PE has received.
    pub received: u64,
    /// Bytes of the largest that the PE has sent.
    pub largest: u64,
    /// Number of its rails' connections.
    pub connections: u32,
}

impl Traffic {
    /// The traffic since `before`; `largest` covers all time.
    #[must_use]
    pub fn since(&self, before: &Traffic) -> Traffic {
        Traffic {
            sent: self.sent - before.sent,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            received: self.received - before.received,
            largest: self.largest,
            connections: self.connections - before.connections,
        }
    }
}

/// A fabric. Clones share their state.
#[derive(Clone)]
pub struct TimedFabric(Arc<Mutex<State>>);

impl TimedFabric {
    /// A fabric between PEs on these hosts, numbered from 0. Latencies vary randomly by a sixteenth, from `seed`.
    /// Writes of more than `carried` bytes cost their time and are counted, but no bytes are moved, so they need no
    /// memory.
    #[must_use]
    pub fn new(costs: Costs, hosts: &[u32], carried: usize, seed: u64) -> Self {
        TimedFabric(Arc::new(Mutex::new(State::new(costs, hosts, carried, seed))))
    }

    /// Opens a new rail of a PE.
    #[must_use]
    pub fn open(&self, pe: Pe) -> Box<dyn Rail> {
        let (id, address) = self.state().open(pe);
        Box::new(TimedRail::new(self.clone(), (pe, id), address))
    }

    /// Makes a PE run at this time, unless it runs earlier.
    pub fn run_at(&self, pe: Pe, time: u64) {
        self.state().run_at(pe, time);
    }

    /// Notes that a PE has run until `now`. It runs again when a message arrives, or after some time without one.
    pub fn waits(&self, pe: Pe, now: u64) {
        self.state().waits(pe, now);
    }

    /// The PE that runs next, and its time. `None` if there will be no event.
    #[must_use]
    pub fn next(&self) -> Option<(u64, Pe)> {
        self.state().next()
    }

    /// Kills a PE at this time: it never runs again, and messages to it fail.
    pub fn kill_at(&self, pe: Pe, time: u64) {
        self.state().kill_at(pe, time);
    }

    /// The traffic of a PE so far.
    #[must_use]
    pub fn traffic(&self, pe: Pe) -> Traffic {
        self.state().traffic(pe)
    }

    /// The number of events on the fabric so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().events()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        symrail_core::lock(&self.0)
    }
}
