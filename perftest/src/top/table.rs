//! The table: one line per lane.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use symrail::observe::figures::{Figures, Lane};

/// What happened between two looks.
pub(super) struct Table {
    /// PEs and jobs that were seen.
    title: String,
    /// Cells under the first headings.
    rows: Vec<Vec<String>>,
}

const HEADINGS: [&str; 12] =
    ["PE", "PID", "endpoint", "rail", "puts/s", "gets/s", "msgs/s", "MB/s", "delayed/s", "failed", "p50", "p99"];

impl Table {
    /// `before` and `now` by process.
    pub fn between(before: &BTreeMap<u32, Figures>, now: &BTreeMap<u32, Figures>, time: Duration) -> Table {
        let mut pes: Vec<_> = now.iter().collect();
        pes.sort_by_key(|(pid, figures)| (figures.n_pes, figures.pe, **pid));
        let nothing = Figures::default();
        let mut rows = Vec::new();
        for (pid, figures) in pes {
            // A process that has left one job and joined another starts anew.
            let earlier = before.get(pid).filter(|earlier| earlier.age_us <= figures.age_us).unwrap_or(&nothing);
            let name = [format!("{}/{}", figures.pe, figures.n_pes), pid.to_string()];
            if figures.lanes.is_empty() {
                rows.push([name, ["-", "all PEs are mapped"].map(String::from)].concat());
                continue;
            }
            for (i, lane) in figures.lanes.iter().enumerate() {
                let endpoint = if lane.host { "host" } else { "proxy" };
                let none = Lane::default();
                let change = change(earlier.lanes.get(i).unwrap_or(&none), lane);
                let lane_name = [endpoint.to_owned(), lane.rail.clone()];
                let latencies = [latency(&change, 0.5), latency(&change, 0.99)];
                let rates = rates(&change, time.as_secs_f64());
                rows.push([&name[..], &lane_name, &rates, &[lane.failed.to_string()], &latencies].concat());
            }
        }
        let fabrics: std::collections::BTreeSet<_> =
            now.values().map(|f| f.fabric.as_str()).filter(|fabric| !fabric.is_empty()).collect();
        let fabrics: Vec<_> = fabrics.into_iter().collect();
        let title = format!(
            "{} PEs on this host; {}",
            now.len(),
            if fabrics.is_empty() { "no wire".into() } else { fabrics.join(", ") }
        );
        Table { title, rows }
    }
}

/// What was added to a lane's figures.
fn change(before: &Lane, now: &Lane) -> Lane {
    Lane {
        writes: now.writes.saturating_sub(before.writes),
        reads: now.reads.saturating_sub(before.reads),
        messages: now.messages.saturating_sub(before.messages),
        bytes: now.bytes.saturating_sub(before.bytes),
        delayed: now.delayed.saturating_sub(before.delayed),
        latency: now
            .latency
            .iter()
            .enumerate()
            .map(|(i, n)| n.saturating_sub(before.latency.get(i).copied().unwrap_or(0)))
            .collect(),
        ..Lane::default()
    }
}

/// What happened on a lane in some seconds.
fn rates(change: &Lane, seconds: f64) -> [String; 5] {
    let rate = |n: u64| amount(n as f64 / seconds);
    let megabytes = format!("{:.1}", change.bytes as f64 / seconds / 1e6);
    [rate(change.writes), rate(change.reads), rate(change.messages), megabytes, rate(change.delayed)]
}

fn latency(change: &Lane, part: f64) -> String {
    change.latency_ns(part).map_or_else(|| "-".into(), |ns| format!("<{}", time(ns)))
}

/// A number with three digits or so.
fn amount(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns >= 1e9 => format!("{:.1} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.1} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([HEADINGS[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
        writeln!(f, "{}", self.title)?;
        let headings = HEADINGS.map(String::from).to_vec();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let cells = row.iter().zip(&widths).enumerate();
            // Names to the left, figures to the right.
            let cells =
                cells.map(
                    |(i, (cell, &width))| {
                        if (2..4).contains(&i) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                    },
                );
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pe(pe: u32, age_us: u64, bytes: u64) -> Figures {
        let mut latency = vec![0; 32];
        latency[13] = bytes as u32;
        let lane = Lane { rail: "127.0.0.2".into(), writes: 2 * bytes, bytes, failed: 1, latency, ..Lane::default() };
        Figures { pe, n_pes: 2, fabric: "tcp".into(), age_us, lanes: vec![lane], ..Figures::default() }
    }

    #[test]
    fn rates_are_changes_over_time() {
        let before = BTreeMap::from([(10, pe(1, 5, 4_000_000)), (11, pe(0, 500, 9_000_000))]);
        let now = BTreeMap::from([(10, pe(1, 9, 8_000_000)), (11, pe(0, 7, 1_000_000)), (12, Figures::default())]);
        let text = Table::between(&before, &now, Duration::from_secs(2)).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "3 PEs on this host; tcp");
        assert_eq!(lines[2][..4].join(" "), "0/0 12 - all");
        // Process 11 has joined a new job: all of its figures are new.
        assert_eq!(lines[3].join(" "), "0/2 11 proxy 127.0.0.2 1.00M 0 0 0.5 0 1 <16.4 us <16.4 us");
        assert_eq!(lines[4].join(" "), "1/2 10 proxy 127.0.0.2 4.00M 0 0 2.0 0 1 <16.4 us <16.4 us");
    }
}
