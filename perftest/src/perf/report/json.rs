//! `--json`.

use serde::Serialize;

use super::Conditions;
use crate::perf::catalog::Test;
use crate::perf::sample::Figures;

/// One test at one size. The fields' names and order are for others to rely on.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Record {
    pub test: &'static str,
    device: String,
    /// `mapped` when no transport carried the data, `copies` for plain ones, else the transport.
    transport: String,
    provider: String,
    rails: usize,
    hosts: usize,
    pub size: usize,
    pub unit: &'static str,
    /// All over all the time: mean latency, or rate.
    value: f64,
    pub p50: f64,
    /// What 99 of 100 kept to: a latency that they did not exceed, a rate that they reached.
    p99: f64,
    iters: u64,
    warmup: u64,
}

impl Record {
    pub fn new(test: &Test, conditions: &Conditions, size: usize, figures: &Figures) -> Record {
        let wired = conditions.path == "wire";
        Record {
            test: test.name,
            device: conditions.device.clone(),
            transport: if wired { conditions.transport.clone() } else { conditions.path.clone() },
            provider: if wired { conditions.provider.clone() } else { String::new() },
            rails: if wired { conditions.rails.len() } else { 0 },
            hosts: conditions.hosts,
            size,
            unit: test.unit,
            value: figures.value,
            p50: figures.p50,
            p99: figures.p99,
            iters: figures.iters,
            warmup: figures.warmup,
        }
    }
}

/// The records as an array, one a line.
pub(super) fn array(records: &[Record]) -> String {
    // Plain numbers and strings: there is nothing that could not be written.
    let lines: Vec<String> = records.iter().filter_map(|record| serde_json::to_string(record).ok()).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}
