//! `--json`: an array of records that is complete after every result; and what a drawing has of them.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use symrail_core::Escaped;

use super::Conditions;
use super::file::Output;
use crate::perf::catalog::Test;
use crate::perf::error::{Error, Result};
use crate::perf::plan::Target;
use crate::perf::sample::Figures;

/// One test at one size. Users may rely on the fields' names and order; new fields are added at the end.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Record {
    pub test: &'static str,
    device: String,
    /// `mapped` if no transport carried the data, `copies` for plain copies, otherwise the transport.
    transport: String,
    provider: String,
    rails: usize,
    hosts: usize,
    pub size: usize,
    pub unit: &'static str,
    /// Mean latency or rate: everything over the whole time.
    value: f64,
    /// Over samples, as are `p99`, `best` and `worst`.
    pub p50: f64,
    /// The value that 99 of 100 samples met: a latency that they did not exceed, a rate that they reached.
    p99: f64,
    iters: u64,
    warmup: u64,
    best: f64,
    worst: f64,
    /// Operations that a sample covers.
    batch: u64,
    /// Operations in flight before they are awaited; none if each is awaited.
    window: Option<usize>,
    n_pes: u32,
    /// The behaviour of the target of single operations: `busy` or `idle`.
    target: Option<&'static str>,
    rail_names: Vec<String>,
    /// The machine of PE 0, and its load over the last minute.
    host: String,
    load: f64,
    date: String,
    version: &'static str,
    commit: &'static str,
}

/// The commit that this program was built from.
pub(super) const COMMIT: &str = env!("BUILT_FROM_COMMIT");
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

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
            best: figures.best,
            worst: figures.worst,
            batch: figures.batch,
            window: conditions.plan.window_of(test),
            n_pes: conditions.n_pes,
            target: conditions.plan.target.map(|target| match target {
                Target::Computes => "busy",
                Target::Waits => "idle",
            }),
            rail_names: if wired { conditions.rails.clone() } else { Vec::new() },
            host: conditions.machine.clone(),
            load: load(),
            date: now(),
            version: VERSION,
            commit: COMMIT,
        }
    }
}

/// What a drawing has of a record.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Point {
    pub test: String,
    pub size: usize,
    pub unit: String,
    pub p50: f64,
    /// The name of an earlier run: that of its file, without the ending.
    #[serde(skip)]
    pub run: Option<String>,
}

impl From<&Record> for Point {
    fn from(record: &Record) -> Point {
        let (test, unit) = (record.test.to_owned(), record.unit.to_owned());
        Point { test, size: record.size, unit, p50: record.p50, run: None }
    }
}

/// The points of an earlier run's file.
pub(super) fn points(path: &Path) -> Result<Vec<Point>> {
    let refuse = |why: String| {
        let path = path.to_string_lossy();
        Error::Arguments(format!("--beside {}: {why}; use a file that --json has written", Escaped(&path)))
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let mut points: Vec<Point> = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let run = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    points.iter_mut().for_each(|point| point.run.clone_from(&run));
    Ok(points)
}

/// The time in ISO 8601.
pub(super) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The machine's load over the last minute.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

/// The array, in a file.
pub(super) struct Array {
    file: Output,
    /// The offset of the next record: behind the last one.
    end: u64,
    records: usize,
}

const HEAD: &str = "[\n";
const TAIL: &str = "\n]\n";

impl Array {
    /// Begins an empty array.
    pub fn begin(path: &Path) -> Result<Array> {
        let mut file = Output::begin(path)?;
        // A stream gets the array's end after the last record.
        let tail = if file.is_regular() { "]\n" } else { "" };
        file.write_at(0, &format!("{HEAD}{tail}"))?;
        Ok(Array { file, end: HEAD.len() as u64, records: 0 })
    }

    /// Adds a record and, in a regular file, the array's end, in one write.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        // Plain numbers and strings always serialise.
        let Ok(record) = serde_json::to_string(record) else { return Ok(()) };
        let text = format!("{}{record}", if self.records == 0 { "" } else { ",\n" });
        self.file.write_at(self.end, &format!("{text}{}", if self.file.is_regular() { TAIL } else { "" }))?;
        self.end += text.len() as u64;
        self.records += 1;
        Ok(())
    }

    /// Ends the array of a stream.
    pub fn finish(&mut self) -> Result<()> {
        let tail = if self.records == 0 { &TAIL[1..] } else { TAIL };
        if self.file.is_regular() { Ok(()) } else { self.file.write_at(self.end, tail) }
    }
}
