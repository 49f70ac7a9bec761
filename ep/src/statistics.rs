//! Statistics of a call: rows, bytes by path, and times.

use std::time::{Duration, Instant};

use symrail::{Pe, Runtime};

/// Rows and bytes of one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of rows, each with its scales and slots.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Statistics of the last call on buffers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The name of the call.
    pub call: &'static str,
    /// Tokens for each rank; rows for each rank in a combine.
    pub to_ranks: Vec<u32>,
    /// Tokens from each rank; rows from each rank in a combine.
    pub from_ranks: Vec<u32>,
    /// Slots (high throughput) or rows (low latency) of each of this rank's experts, if the call counts them.
    pub per_expert: Vec<u32>,
    /// Traffic that stayed on this rank.
    pub own: Traffic,
    /// Traffic that was written to mapped memory of other ranks.
    pub mapped: Traffic,
    /// Traffic over rails.
    pub wire: Traffic,
    /// The duration of each phase, in order.
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

    /// Ends a phase that began at `since`, and records it in the trace if there is one.
    pub(crate) fn phase(&mut self, rt: &Runtime, name: &'static str, since: Instant) -> Instant {
        let now = Instant::now();
        rt.trace_phase(name, since, now - since);
        self.phases.push((name, now - since));
        now
    }
}
