//! `SYMRAIL_TRACE`: every work request on a time line, in the format of Chrome's trace viewer, which Perfetto reads too
//! ("Trace Event Format", JSON array).
//!
//! All PEs write to one file: PE 0 creates it, each PE adds its part when it leaves, and PE 0 closes it. On hosts that
//! do not share the file, each host has its own file with its own PEs.

use std::fs::{File, OpenOptions};
use std::io::{Result, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};
use symrail_transport::Pe;
use symrail_transport::endpoint::Record;

use super::Phase;

/// A trace in the making.
pub(crate) struct Trace {
    path: PathBuf,
    pe: Pe,
    /// One moment on the clock of records and on the clock that all hosts share, the latter in microseconds.
    begun: (Instant, f64),
}

/// A row of the picture: work requests of one lane that do not overlap.
struct Row {
    lane: usize,
    /// When the last one ended.
    until: Instant,
}

impl Trace {
    /// Begins a trace; PE 0 empties the file. The others must not write before that.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(path: &Path, pe: Pe) -> Result<Trace> {
        if pe == 0 {
            File::create(path)?.write_all(b"[\n")?;
        }
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Trace { path: path.to_owned(), pe, begun: (Instant::now(), since_epoch.as_secs_f64() * 1e6) })
    }

    /// Adds the records of each endpoint, given with its lanes' names, and the phases of the program's work.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, endpoints: Vec<(Vec<String>, Vec<Record>)>, phases: &[Phase]) -> Result<()> {
        let mut events = vec![self.name_of_process()];
        let mut rows: Vec<Row> = Vec::new();
        let mut lanes_before = 0;
        for (names, mut records) in endpoints {
            records.sort_by_key(|record| record.posted);
            for record in records {
                let lane = lanes_before + usize::from(record.lane);
                let free = rows.iter().position(|row| row.lane == lane && row.until <= record.posted);
                let row = free.unwrap_or_else(|| {
                    let name = names.get(usize::from(record.lane)).map_or("?", String::as_str);
                    events.push(self.name_of_row(rows.len(), name));
                    rows.push(Row { lane, until: record.posted });
                    rows.len() - 1
                });
                rows[row].until = record.posted + record.took;
                events.push(self.event(row, &record));
            }
            lanes_before += names.len();
        }
        if !phases.is_empty() {
            events.push(self.name_of_row(rows.len(), "phases"));
            events.extend(phases.iter().map(|phase| self.phase(rows.len(), phase)));
        }
        let text: String = events.iter().map(|event| format!("{event},\n")).collect();
        self.append(&text)
    }

    /// Closes the array, after all PEs have added their parts. Viewers read the file even without the end.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(&self) -> Result<()> {
        if self.pe != 0 {
            return Ok(());
        }
        self.append(&format!("{}\n]\n", self.name_of_process()))
    }

    fn append(&self, text: &str) -> Result<()> {
        let file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        let mut file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        file.write_all(text.as_bytes())
    }

    fn name_of_process(&self) -> Value {
        json!({"ph": "M", "name": "process_name", "pid": self.pe, "args": {"name": format!("PE {}", self.pe)}})
    }

    fn name_of_row(&self, row: usize, rail: &str) -> Value {
        json!({"ph": "M", "name": "thread_name", "pid": self.pe, "tid": row, "args": {"name": rail}})
    }

    /// Microseconds on the clock that all hosts share.
    fn micros(&self, at: Instant) -> f64 {
        self.begun.1 + at.saturating_duration_since(self.begun.0).as_secs_f64() * 1e6
    }

    fn phase(&self, row: usize, (name, begun, took): &Phase) -> Value {
        json!({
            "ph": "X", "cat": "phase", "name": name, "pid": self.pe, "tid": row,
            "ts": self.micros(*begun), "dur": took.as_secs_f64() * 1e6,
        })
    }

    fn event(&self, row: usize, record: &Record) -> Value {
        let begun = self.micros(record.posted);
        let mut args = json!({"pe": record.pe, "bytes": record.bytes});
        if record.requests > 0 {
            args["requests"] = record.requests.into();
        }
        json!({
            "ph": "X", "cat": "rail", "name": record.what, "pid": self.pe, "tid": row,
            "ts": begun, "dur": record.took.as_secs_f64() * 1e6, "args": args,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn overlapping_work_requests_get_rows_of_their_own() {
        let path = std::env::temp_dir().join(format!("symrail-trace-test-{}.json", std::process::id()));
        let traces = [0, 1].map(|pe| Trace::begin(&path, pe).unwrap());
        let at = |lane, start: u64, took: u64| Record {
            what: "write",
            pe: 1,
            lane,
            bytes: 8,
            requests: 0,
            posted: traces[0].begun.0 + Duration::from_micros(start),
            took: Duration::from_micros(took),
        };
        let host = (vec!["host a".to_owned()], vec![at(0, 30, 5), at(0, 0, 10), at(0, 5, 10)]);
        let proxy = (vec!["a".to_owned(), "b".to_owned()], vec![at(1, 0, 50)]);
        for trace in &traces {
            let phase = ("dispatch", trace.begun.0, Duration::from_micros(20));
            trace.add(vec![host.clone(), proxy.clone()], &[phase]).unwrap();
        }
        traces.iter().for_each(|trace| trace.end().unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let of = |pe: u64, ph: &str| events.iter().filter(move |e| e["pid"] == pe && e["ph"] == ph).collect::<Vec<_>>();
        for pe in [0, 1] {
            let rows: Vec<_> = of(pe, "X").iter().map(|e| e["tid"].as_u64().unwrap()).collect();
            assert_eq!(rows, [0, 1, 0, 2, 3]);
            let names: Vec<_> =
                of(pe, "M").iter().filter(|e| e["name"] == "thread_name").map(|e| &e["args"]["name"]).collect();
            assert_eq!(names, ["host a", "host a", "b", "phases"]);
        }
        let took = |e: &Value| e["dur"].as_f64().unwrap().round();
        assert_eq!(of(0, "X").iter().map(|e| took(e)).collect::<Vec<_>>(), [10.0, 10.0, 5.0, 50.0, 20.0]);
    }
}
