//! What a call did: rows, bytes by path, and times.

use std::time::{Duration, Instant};

use symrail::{Pe, Runtime};

/// Rows and bytes that went one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Rows, with what goes along.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What the last call on buffers did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The call.
    pub call: &'static str,
    /// Tokens for each rank; rows for each rank in a combine.
    pub to_ranks: Vec<u32>,
    /// Tokens from each rank; rows from each rank in a combine.
    pub from_ranks: Vec<u32>,
    /// Slots (high throughput) or rows (low latency) of each of this rank's experts, where the call tells them.
    pub per_expert: Vec<u32>,
    /// What stayed on this rank.
    pub own: Traffic,
    /// What was written to memory of other ranks that this one maps.
    pub mapped: Traffic,
    /// What went over rails.
    pub wire: Traffic,
    /// How long each phase took, in their order.
    pub phases: Vec<(&'static str, Duration)>,
}

impl Statistics {
    pub(crate) fn of(call: &'static str) -> Statistics {
        Statistics { call, ..Statistics::default() }
    }

    /// Counts rows that were sent to a rank.
    pub(crate) fn sent(&mut self, rt: &Runtime, to: Pe, rows: usize, bytes: usize) {
        let way = match to {
            to if to == rt.my_pe() => &mut self.own,
            to if rt.is_mapped(to) => &mut self.mapped,
            _ => &mut self.wire,
        };
        way.rows += rows as u64;
        way.bytes += bytes as u64;
    }

    /// A phase that began then is over. It is in the trace too, if one is made.
    pub(crate) fn phase(&mut self, rt: &Runtime, name: &'static str, since: Instant) -> Instant {
        let now = Instant::now();
        rt.trace_phase(name, since, now - since);
        self.phases.push((name, now - since));
        now
    }
}
