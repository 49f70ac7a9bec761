//! The table: a line for each job, each of its PEs, and each of their lanes.

use std::collections::BTreeMap;
use std::time::Duration;

use symrail::observe::figures::Figures;
use symrail_transport::endpoint::{LaneCounters, LaneSpeed};

/// The change between two samples.
pub(super) struct Table {
    /// The number of PEs and jobs.
    title: String,
    rows: Vec<Row>,
}

/// What a line is about, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Job,
    Pe,
    Lane,
}

struct Row {
    level: Level,
    /// Cells under the first headings.
    cells: Vec<String>,
}

const HEADINGS: [&str; 15] = [
    "PE",
    "PID",
    "endpoint",
    "rail",
    "puts/s",
    "gets/s",
    "msgs/s",
    "reqs/ack",
    "MB/s",
    "delayed/s",
    "failed",
    "p50",
    "p99",
    "bandwidth",
    "latency",
];
/// The most characters of a name that are shown.
const LONGEST_NAME: usize = 32;

impl Table {
    /// `before` and `now` by process.
    pub fn between(before: &BTreeMap<u32, Figures>, now: &BTreeMap<u32, Figures>, time: Duration) -> Table {
        let mut pes: Vec<_> = now.iter().collect();
        let job = |figures: &Figures| (figures.n_pes, figures.job);
        pes.sort_by_key(|(pid, figures)| (job(figures), figures.pe, **pid));
        let seconds = time.as_secs_f64();
        let nothing = Figures::default();
        let (mut rows, mut jobs) = (Vec::new(), 0);
        for pes in pes.chunk_by(|(_, a), (_, b)| job(a) == job(b)) {
            jobs += 1;
            let (mut total, mut of_pes) = (LaneCounters::default(), Vec::new());
            for (pid, figures) in pes {
                // A process that has left one job and joined another starts from zero.
                let earlier = before.get(pid).filter(|earlier| earlier.age_us <= figures.age_us).unwrap_or(&nothing);
                let name = [format!("{}/{}", figures.pe, figures.n_pes), pid.to_string()];
                let row = |level, place: [&str; 2], counters: &LaneCounters, speed: Option<LaneSpeed>| Row {
                    level,
                    cells: [
                        &name[..],
                        &place.map(plain),
                        &figures_of(counters, seconds),
                        &speed.map_or_else(Vec::new, cells_of),
                    ]
                    .concat(),
                };
                if figures.lanes.is_empty() {
                    let cells = [&name[..], &["-", "all PEs are mapped"].map(String::from)].concat();
                    of_pes.push(Row { level: Level::Pe, cells });
                    continue;
                }
                let (mut all, mut lanes) = (LaneCounters::default(), Vec::new());
                for (i, lane) in figures.lanes.iter().enumerate() {
                    let earlier = earlier.lanes.get(i).map(|lane| lane.counters).unwrap_or_default();
                    let change = change(&earlier, &lane.counters);
                    lanes.push(row(Level::Lane, [&lane.owner, &lane.rail], &change, lane.speed));
                    all = all.with(&change, u64::saturating_add);
                }
                total = total.with(&all, u64::saturating_add);
                of_pes.push(row(Level::Pe, ["all", ""], &all, None));
                of_pes.extend(lanes);
            }
            let name = [format!("all/{}", pes[0].1.n_pes), String::new(), "all".into(), String::new()];
            rows.push(Row { level: Level::Job, cells: [&name[..], &figures_of(&total, seconds)].concat() });
            rows.extend(of_pes);
        }
        let fabrics: std::collections::BTreeSet<_> =
            now.values().map(|f| plain(&f.fabric)).filter(|fabric| !fabric.is_empty()).collect();
        let fabrics: Vec<_> = fabrics.into_iter().collect();
        let s = |n: usize| if n == 1 { "" } else { "s" };
        let pes = now.len();
        let title = format!(
            "{pes} PE{} of {jobs} job{} on this host; {}",
            s(pes),
            s(jobs),
            if fabrics.is_empty() { "no wire".into() } else { fabrics.join(", ") }
        );
        Table { title, rows }
    }

    /// The lines of the table, limited to `room` lines and columns. If there are too many, lanes are left out first,
    /// then PEs, then the rest.
    pub fn lines(&self, room: Option<(usize, usize)>) -> Vec<String> {
        let Some((height, width)) = room else { return self.up_to(Level::Lane) };
        let levels = [Level::Lane, Level::Pe, Level::Job];
        let fits = |level: &Level| self.rows.iter().filter(|row| row.level <= *level).count() + 3 <= height;
        let level = levels.into_iter().find(fits).unwrap_or(Level::Job);
        let mut lines = self.up_to(level);
        let left_out = self.rows.len() + 2 - lines.len() + lines.len().saturating_sub(height.saturating_sub(1));
        lines.truncate(height.saturating_sub(1));
        if left_out > 0 {
            lines.push(format!("{left_out} lines left out, for lack of room; --pid shows single PEs"));
        }
        lines.iter().map(|line| line.chars().take(width).collect()).collect()
    }

    fn up_to(&self, level: Level) -> Vec<String> {
        let rows: Vec<&[String]> =
            self.rows.iter().filter(|row| row.level <= level).map(|row| &row.cells[..]).collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.len());
            cells.chain([HEADINGS[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
        let headings = HEADINGS.map(String::from);
        let line = |row: &[String]| {
            // Names are left-aligned, figures right-aligned.
            let cell = |(i, (cell, &width)): (usize, (&String, &usize))| match i {
                2 | 3 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            };
            let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
            cells.join("  ").trim_end().to_owned()
        };
        [self.title.clone(), line(&headings)].into_iter().chain(rows.into_iter().map(line)).collect()
    }
}

/// A name that a process reports, made safe to print: short, and without terminal control characters.
fn plain(name: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    name.chars().take(LONGEST_NAME).map(shown).collect()
}

/// The increments of a lane's counters.
fn change(before: &LaneCounters, now: &LaneCounters) -> LaneCounters {
    LaneCounters { failed: now.failed, ..now.with(before, u64::saturating_sub) }
}

/// The cells for the increments in some seconds.
fn figures_of(change: &LaneCounters, seconds: f64) -> [String; 9] {
    // Every field is named, so that the compiler asks whether a new one has a column. The last three have none.
    let LaneCounters {
        writes,
        reads,
        messages,
        requests,
        acknowledgements,
        bytes,
        delayed,
        failed,
        latency,
        given_up: _,
        unauthenticated: _,
        latency_ns: _,
    } = *change;
    let rate = |n: u64| amount(n as f64 / seconds);
    let megabytes = format!("{:.1}", bytes as f64 / seconds / 1e6);
    let together = match acknowledgements {
        0 => "-".into(),
        answers => format!("{:.1}", requests as f64 / answers as f64),
    };
    let latency = |part| latency.bound_ns(part).map_or_else(|| "-".into(), |ns| format!("<{}", time(ns)));
    [
        rate(writes),
        rate(reads),
        rate(messages),
        together,
        megabytes,
        rate(delayed),
        failed.to_string(),
        latency(0.5),
        latency(0.99),
    ]
}

/// The cells for a measured speed.
fn cells_of(speed: LaneSpeed) -> Vec<String> {
    vec![format!("{:.1} MB/s", speed.bandwidth as f64 / 1e6), time(speed.latency)]
}

/// A number with about three digits.
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

#[cfg(test)]
mod tests {
    use symrail::observe::figures::Lane;
    use symrail_transport::endpoint::Latency;

    use super::*;

    fn pe(pe: u32, age_us: u64, bytes: u64) -> Figures {
        let mut latency = Latency::default();
        latency.0[13] = bytes;
        let counters = LaneCounters { writes: 2 * bytes, bytes, failed: 1, latency, ..LaneCounters::default() };
        let lane = Lane { owner: "proxy".into(), rail: "127.0.0.2".into(), counters, speed: None };
        Figures { pe, n_pes: 2, fabric: "tcp".into(), age_us, lanes: vec![lane], ..Figures::default() }
    }

    fn words(lines: &[String]) -> Vec<String> {
        lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn rates_are_changes_over_time() {
        let before = BTreeMap::from([(10, pe(1, 5, 4_000_000)), (11, pe(0, 500, 9_000_000))]);
        let now = BTreeMap::from([(10, pe(1, 9, 8_000_000)), (11, pe(0, 7, 1_000_000)), (12, Figures::default())]);
        let lines = words(&Table::between(&before, &now, Duration::from_secs(2)).lines(None));
        assert_eq!(lines[0], "3 PEs of 2 jobs on this host; tcp");
        assert!(lines[2].starts_with("all/0 all") && lines[3].starts_with("0/0 12 - all PEs are mapped"), "{lines:?}");
        assert_eq!(lines[4], "all/2 all 5.00M 0 0 - 2.5 0 2 <16.4 us <16.4 us");
        assert_eq!(lines[5], "0/2 11 all 1.00M 0 0 - 0.5 0 1 <16.4 us <16.4 us");
        // Process 11 has joined a new job: all of its figures are new.
        assert_eq!(lines[6], "0/2 11 proxy 127.0.0.2 1.00M 0 0 - 0.5 0 1 <16.4 us <16.4 us");
        assert_eq!(lines[8], "1/2 10 proxy 127.0.0.2 4.00M 0 0 - 2.0 0 1 <16.4 us <16.4 us");
    }

    #[test]
    fn measured_speeds_are_shown_with_their_lane() {
        let mut figures = pe(0, 1, 1);
        figures.lanes[0].speed = Some(LaneSpeed { bandwidth: 23_700_000, latency: 20_100_000 });
        let lines = words(
            &Table::between(&BTreeMap::new(), &BTreeMap::from([(1, figures)]), Duration::from_secs(1)).lines(None),
        );
        assert!(lines[1].ends_with("p50 p99 bandwidth latency"), "{lines:?}");
        assert!(lines[4].ends_with(" 23.7 MB/s 20.1 ms") && lines[3].ends_with("us"), "{lines:?}");
    }

    #[test]
    fn jobs_of_one_size_are_told_apart() {
        let now = BTreeMap::from([(1, pe(0, 1, 1)), (2, Figures { job: 9, ..pe(0, 1, 1) })]);
        let lines = words(&Table::between(&BTreeMap::new(), &now, Duration::from_secs(1)).lines(None));
        assert_eq!(lines.iter().filter(|line| line.starts_with("all/2")).count(), 2, "{lines:?}");
    }

    #[test]
    fn what_does_not_fit_is_left_out_the_details_first() {
        let now: BTreeMap<u32, Figures> = (0..12).map(|i| (100 + i, pe(i, 1, 1))).collect();
        let table = Table::between(&BTreeMap::new(), &now, Duration::from_secs(1));
        for (height, lines, lanes, pes) in
            [(40, 27, 12, 12), (20, 16, 0, 12), (10, 4, 0, 0), (3, 3, 0, 0), (0, 1, 0, 0)]
        {
            let shown = table.lines(Some((height, 60)));
            let text = shown.join("\n");
            let found = (shown.len(), text.matches("proxy").count(), text.matches(" all").count());
            assert_eq!(found.0, lines, "{height}: {text}");
            assert_eq!(found.1, lanes, "{height}: {text}");
            assert!(found.2 >= pes, "{height}: {text}");
            assert!(shown.iter().all(|line| line.len() <= 60), "{text}");
        }
    }

    #[test]
    fn names_do_nothing_to_a_terminal() {
        let mut evil = pe(0, 1, u64::MAX / 2);
        evil.fabric = "tcp\x1b]0;title\x07\x1b[2J".into();
        evil.lanes[0].rail = format!("\x1b[31mred\r\n\u{202e}\u{9b}{}", "x".repeat(300));
        evil.lanes[0].counters.latency = Latency([u64::MAX; 32]);
        let now = BTreeMap::from([(1, evil.clone()), (2, evil)]);
        let text = Table::between(&BTreeMap::new(), &now, Duration::from_secs(1)).lines(None).join("\n");
        assert!(text.chars().all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic()), "{text:?}");
        assert!(text.contains("?[31mred??") && !text.contains(&"x".repeat(LONGEST_NAME)), "{text}");
    }
}
