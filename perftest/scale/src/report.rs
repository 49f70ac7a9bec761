//! The report of a simulation.

use serde::Serialize;
use symrail::Pe;

use crate::job::{Done, Job};
use crate::model::bound;
use crate::work::{Posted, Work};
use crate::{Options, Result};

/// One work of all PEs.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The work.
    pub work: String,
    /// Nanoseconds of virtual time, and the least that its messages need.
    pub took: u64,
    /// See above.
    pub bound: Option<u64>,
    /// Messages sent: by all PEs, and by the PE that sent most.
    pub messages: u64,
    /// See above.
    pub most_messages: u64,
    /// Messages received by the PE that received most.
    pub most_received: u64,
    /// Bytes of the largest message so far.
    pub largest: u64,
    /// Each PE's requests to its rails.
    pub posted: Vec<Posted>,
    /// New connections of the PE that made most.
    pub most_connections: u32,
    /// Bytes that a PE holds afterwards, if the program counts ([`Counting`](crate::memory::Counting)).
    pub held: Held,
    /// PEs that died, in order.
    pub dead: Vec<Pe>,
    /// PEs that failed otherwise, and why.
    pub failed: Vec<(Pe, String)>,
}

/// Bytes that PEs hold, without heaps and stacks.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Held {
    /// The mean, and the value of the PE that holds most.
    pub mean: u64,
    /// See above.
    pub most: u64,
}

/// A whole simulation.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// PEs.
    pub pes: u32,
    /// Hosts.
    pub hosts: u32,
    /// The seed.
    pub seed: u64,
    /// Bytes that a PE holds after joining, including shared tables.
    pub joined: Held,
    /// The works.
    pub rows: Vec<Row>,
}

/// Lets all PEs of a job do these works one after the other.
///
/// # Errors
/// A PE cannot join; no memory. Later failures are in the report.
pub fn simulate(options: &Options, works: &[Work]) -> Result<Report> {
    let mut job = Job::new(options, works.to_vec())?;
    let shared = job.shared_bytes as u64 * u64::from(options.pes);
    let joined = held(job.held(), shared);
    let mut rows = Vec::new();
    while let Some(done) = job.next_work() {
        rows.push(row(options, done, shared));
    }
    job.end();
    let Options { pes, hosts, seed, .. } = *options;
    Ok(Report { pes, hosts, seed, joined, rows })
}

fn held(each: &[i64], shared: u64) -> Held {
    let bytes = |held: i64| u64::try_from(held).unwrap_or(0);
    let sum: u64 = each.iter().copied().map(bytes).sum();
    Held { mean: sum / each.len() as u64 + shared, most: each.iter().copied().max().map_or(0, bytes) + shared }
}

fn row(options: &Options, done: Done, shared: u64) -> Row {
    let Done { work, took, outcomes, traffic, held: each, dead } = done;
    let posted = outcomes.iter().map(|outcome| outcome.posted).collect();
    let failed = |(outcome, pe): (crate::job::Outcome, Pe)| Some((pe, outcome.error?));
    let failed = outcomes.into_iter().zip(0..).filter_map(failed).filter(|(pe, _)| !dead.contains(pe)).collect();
    Row {
        bound: bound(options, &work),
        work: format!("{work:?}"),
        took,
        posted,
        messages: traffic.iter().map(|traffic| traffic.sent).sum(),
        most_messages: traffic.iter().map(|traffic| traffic.sent).max().unwrap_or(0),
        most_received: traffic.iter().map(|traffic| traffic.received).max().unwrap_or(0),
        largest: traffic.iter().map(|traffic| traffic.largest).max().unwrap_or(0),
        most_connections: traffic.iter().map(|traffic| traffic.connections).max().unwrap_or(0),
        held: held(&each, shared),
        dead,
        failed,
    }
}
