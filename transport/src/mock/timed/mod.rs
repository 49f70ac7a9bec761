//! A fabric on which everything takes its time, for simulations of many PEs in one thread.
//!
//! Nothing is lost or reordered here, unless a PE dies. What each thing costs follows LogGP ([`Costs`]): a PE is busy
//! while it posts and while it takes in what has arrived, as PEs are whose CPU moves the bytes; messages between hosts
//! pass both hosts' NICs one at a time; and nothing arrives before its PE polls. The time is that of
//! [`symrail_core::simulation`].
//!
//! | file | concept |
//! |---|---|
//! | here | costs, counters, and the fabric as simulations use it |
//! | `state` | what is under way, and whose turn it is |
//! | `calendar` | what happens when |
//! | `nics` | how long a message is on its way |
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

/// What a message costs, in nanoseconds, and in picoseconds for each byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Link {
    /// The sender is busy (LogGP's o).
    pub post: u64,
    /// It is on its way (L).
    pub latency: u64,
    /// The receiver is busy (o at its end).
    pub arrival: u64,
    /// For each byte on its way (G).
    pub byte_ps: u64,
    /// For each byte, the CPU at either end.
    pub copy_ps: u64,
}

/// What things cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Costs {
    /// From one host to another.
    pub between_hosts: Link,
    /// Within a host.
    pub on_host: Link,
    /// Nanoseconds between two messages of a NIC (g).
    pub gap: u64,
    /// Nanoseconds for which the first message over a connection waits.
    pub connect: u64,
}

impl Link {
    /// Nanoseconds from a call that posts a message of so many bytes to the end of taking it in.
    #[must_use]
    pub fn message(&self, bytes: u64) -> u64 {
        self.post + self.latency + self.arrival + bytes * (self.byte_ps + 2 * self.copy_ps) / 1000
    }
}

/// What a PE has exchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, writes, requests to read and answers to them that it has sent, and their bytes.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Those that it has taken in.
    pub received: u64,
    /// Bytes of the largest one that it has sent.
    pub largest: u64,
    /// Connections of its rails.
    pub connections: u32,
}

impl Traffic {
    /// What has been exchanged since `before`; the largest is that since the beginning.
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

/// A fabric. Clones are the same one.
#[derive(Clone)]
pub struct TimedFabric(Arc<Mutex<State>>);

impl TimedFabric {
    /// A fabric between PEs on these hosts, numbered from 0. Latencies vary by a sixteenth, as `seed` has it. Bytes of
    /// writes above `carried` take their time and are counted, but are not moved: memory for them is not needed then.
    #[must_use]
    pub fn new(costs: Costs, hosts: &[u32], carried: usize, seed: u64) -> Self {
        TimedFabric(Arc::new(Mutex::new(State::new(costs, hosts, carried, seed))))
    }

    /// A new rail of a PE.
    #[must_use]
    pub fn open(&self, pe: Pe) -> Box<dyn Rail> {
        let (id, address) = self.state().open(pe);
        Box::new(TimedRail::new(self.clone(), (pe, id), address))
    }

    /// Has a PE run at this time, if it does not before.
    pub fn run_at(&self, pe: Pe, time: u64) {
        self.state().run_at(pe, time);
    }

    /// A PE has run until `now`. It runs again when something arrives, or after some time without.
    pub fn waits(&self, pe: Pe, now: u64) {
        self.state().waits(pe, now);
    }

    /// The PE that runs next, and when. `None`: nothing will ever happen.
    #[must_use]
    pub fn next(&self) -> Option<(u64, Pe)> {
        self.state().next()
    }

    /// A PE dies at this time: it never runs again, and what is sent to it fails.
    pub fn kill_at(&self, pe: Pe, time: u64) {
        self.state().kill_at(pe, time);
    }

    /// What a PE has exchanged so far.
    #[must_use]
    pub fn traffic(&self, pe: Pe) -> Traffic {
        self.state().traffic(pe)
    }

    /// How many things have happened on the fabric.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().events()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        symrail_core::lock(&self.0)
    }
}
