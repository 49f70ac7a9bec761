//! The figures of PEs as OpenMetrics text, which Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use symrail::observe::figures::{Figures, Lane};
use symrail_transport::endpoint::{LaneCounters, LaneSpeed, Latency};

/// The media type of [`text`].
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A counter of lanes: the name of its family, its unit if it has one, its description, and its value.
type Counter = (&'static str, Option<&'static str>, &'static str, fn(&LaneCounters) -> u64);

const COUNTERS: [Counter; 10] = [
    ("symrail_writes", None, "Writes posted.", |c| c.writes),
    ("symrail_reads", None, "Reads posted.", |c| c.reads),
    ("symrail_messages", None, "Messages posted.", |c| c.messages),
    ("symrail_requests", None, "Requests that were put into messages.", |c| c.requests),
    ("symrail_acknowledgements", None, "Answers that acknowledged requests.", |c| c.acknowledgements),
    ("symrail_posted_bytes", Some("bytes"), "Bytes of writes, reads and messages.", |c| c.bytes),
    ("symrail_delayed_posts", None, "Posts that had to wait because a queue was full.", |c| c.delayed),
    ("symrail_failed_work_requests", None, "Work requests that failed.", |c| c.failed),
    ("symrail_failovers", None, "How often the endpoint has given up a lane.", |c| c.given_up),
    ("symrail_unauthenticated_messages", None, "Messages and immediates dropped for their token.", |c| {
        c.unauthenticated
    }),
];

/// A figure of a PE: the name of its family, its unit if it has one, its description, and its value.
type Gauge = (&'static str, Option<&'static str>, &'static str, fn(&Figures) -> f64);

const GAUGES: [Gauge; 2] = [
    ("symrail_heap_bytes", Some("bytes"), "Bytes of the symmetric heap.", |figures| figures.heap as f64),
    ("symrail_age_seconds", Some("seconds"), "Time since the PE joined its job.", |figures| {
        figures.age_us as f64 / 1e6
    }),
];

/// A measured speed of a lane: the name of its family, its unit if it has one, its description, and its value.
type Measure = (&'static str, Option<&'static str>, &'static str, fn(&LaneSpeed) -> f64);

const SPEEDS: [Measure; 2] = [
    ("symrail_lane_bandwidth", None, "Measured bandwidth in bytes in a second.", |speed| speed.bandwidth as f64),
    ("symrail_lane_latency_seconds", Some("seconds"), "Measured latency.", |speed| speed.latency as f64 / 1e9),
];

/// The metrics of PEs, given by process.
pub(super) fn text(pes: &BTreeMap<u32, Figures>) -> String {
    let mut text = String::new();
    let pes: Vec<(String, &Figures)> = pes.iter().map(|(pid, figures)| (labels(*pid, figures), figures)).collect();
    family(&mut text, "symrail_pe_info", "gauge", None, "A PE, and the provider or backend under its rails.");
    for (of, figures) in &pes {
        let _ =
            writeln!(text, "symrail_pe_info{{{of},n_pes=\"{}\",fabric={}}} 1", figures.n_pes, quoted(&figures.fabric));
    }
    family(&mut text, "symrail_peers", "gauge", None, "Other PEs of the job, by the path to their heaps.");
    for (of, figures) in &pes {
        let others = figures.n_pes.saturating_sub(1);
        let mapped = figures.mapped.min(others);
        for (class, count) in [("mapped", mapped), ("wire", others - mapped)] {
            let _ = writeln!(text, "symrail_peers{{{of},class=\"{class}\"}} {count}");
        }
    }
    for (name, unit, help, value) in GAUGES {
        family(&mut text, name, "gauge", unit, help);
        for (of, figures) in &pes {
            let _ = writeln!(text, "{name}{{{of}}} {}", value(figures));
        }
    }
    let lanes: BTreeMap<String, LaneCounters> = lanes(&pes);
    for (name, unit, help, value) in COUNTERS {
        family(&mut text, name, "counter", unit, help);
        for (of, counters) in &lanes {
            let _ = writeln!(text, "{name}_total{{{of}}} {}", value(counters));
        }
    }
    let name = "symrail_work_request_seconds";
    family(&mut text, name, "histogram", Some("seconds"), "Time from post to completion, of one work request in 16.");
    for (of, counters) in &lanes {
        histogram(&mut text, name, of, counters);
    }
    for (name, unit, help, value) in SPEEDS {
        family(&mut text, name, "gauge", unit, help);
        for (of, figures) in &pes {
            for lane in &figures.lanes {
                if let Some(speed) = &lane.speed {
                    let _ = writeln!(text, "{name}{{{}}} {}", lane_labels(of, lane), value(speed));
                }
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

/// The head of a family of metrics.
fn family(text: &mut String, name: &str, kind: &str, unit: Option<&str>, help: &str) {
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if let Some(unit) = unit {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {help}");
}

/// The counters of all lanes by their labels. Host endpoints of several contexts have the same labels, which are one
/// series: their sum.
fn lanes(pes: &[(String, &Figures)]) -> BTreeMap<String, LaneCounters> {
    let mut lanes: BTreeMap<String, LaneCounters> = BTreeMap::new();
    for (of, figures) in pes {
        for lane in &figures.lanes {
            let counters = lanes.entry(lane_labels(of, lane)).or_default();
            *counters = counters.with(&lane.counters, u64::saturating_add);
        }
    }
    lanes
}

fn histogram(text: &mut String, name: &str, of: &str, counters: &LaneCounters) {
    let mut count = 0u64;
    for (bucket, more) in counters.latency.0.iter().enumerate() {
        count = count.saturating_add(*more);
        // The last one counts all longer times.
        let bound =
            if bucket + 1 < Latency::BUCKETS { format!("{}", (2u64 << bucket) as f64 / 1e9) } else { "+Inf".into() };
        let _ = writeln!(text, "{name}_bucket{{{of},le=\"{bound}\"}} {count}");
    }
    let _ = writeln!(text, "{name}_sum{{{of}}} {}", counters.latency_ns as f64 / 1e9);
    let _ = writeln!(text, "{name}_count{{{of}}} {count}");
}

/// The labels of a PE.
fn labels(pid: u32, figures: &Figures) -> String {
    format!("job_id=\"{:016x}\",pe=\"{}\",pid=\"{pid}\"", figures.job, figures.pe)
}

/// The labels of a PE's lane.
fn lane_labels(of: &str, lane: &Lane) -> String {
    format!("{of},endpoint={},rail={}", quoted(&lane.owner), quoted(&lane.rail))
}

/// A label's value. What processes report need not be true, or harmless.
fn quoted(name: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    format!("\"{}\"", name.chars().map(shown).collect::<String>().replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pe(pe: u32, lanes: &[(&str, &str, u64)]) -> Figures {
        let lane = |&(owner, rail, bytes): &(&str, &str, u64)| {
            let mut counters =
                LaneCounters { bytes, delayed: 3, given_up: 1, latency_ns: 5000, ..LaneCounters::default() };
            counters.latency.0[11] = 2;
            counters.latency.0[31] = 1;
            Lane {
                owner: owner.into(),
                rail: rail.into(),
                counters,
                speed: (rail == "b").then_some(LaneSpeed { bandwidth: 9, latency: 5000 }),
            }
        };
        let lanes = lanes.iter().map(lane).collect();
        Figures {
            pe,
            n_pes: 4,
            mapped: 1,
            job: 0xab,
            fabric: "tcp".into(),
            heap: 4096,
            age_us: 1_500_000,
            lanes,
            ..Figures::default()
        }
    }

    /// Lines of a family, without its head.
    fn samples(text: &str, name: &str) -> Vec<String> {
        text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).map(String::from).collect()
    }

    #[test]
    fn every_lane_of_every_pe_has_its_counters() {
        let pes = BTreeMap::from([(10, pe(0, &[("host", "a", 5), ("proxy", "b", 7)])), (11, pe(1, &[]))]);
        let text = text(&pes);
        let of = |pe, pid| format!("job_id=\"00000000000000ab\",pe=\"{pe}\",pid=\"{pid}\"");
        assert_eq!(
            samples(&text, "symrail_posted_bytes_total"),
            [
                format!("symrail_posted_bytes_total{{{},endpoint=\"host\",rail=\"a\"}} 5", of(0, 10)),
                format!("symrail_posted_bytes_total{{{},endpoint=\"proxy\",rail=\"b\"}} 7", of(0, 10)),
            ]
        );
        assert_eq!(
            samples(&text, "symrail_peers"),
            [(0, 10, "mapped", 1), (0, 10, "wire", 2), (1, 11, "mapped", 1), (1, 11, "wire", 2)]
                .map(|(pe, pid, class, n)| format!("symrail_peers{{{},class=\"{class}\"}} {n}", of(pe, pid)))
        );
        assert!(text.contains(&format!("symrail_pe_info{{{},n_pes=\"4\",fabric=\"tcp\"}} 1", of(1, 11))), "{text}");
        let speed = format!("symrail_lane_latency_seconds{{{},endpoint=\"proxy\",rail=\"b\"}} 0.000005", of(0, 10));
        assert_eq!(samples(&text, "symrail_lane_latency_seconds"), [speed]);
        assert!(text.contains(&format!("symrail_age_seconds{{{}}} 1.5", of(1, 11))), "{text}");
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }

    #[test]
    fn latencies_are_a_cumulative_histogram() {
        let text = text(&BTreeMap::from([(1, pe(0, &[("host", "a", 1)]))]));
        let buckets = samples(&text, "symrail_work_request_seconds_bucket");
        let value = |bound: &str| {
            let le = format!("le=\"{bound}\"}} ");
            buckets.iter().find_map(|line| line.split_once(&le).map(|(_, value)| value.to_owned()))
        };
        assert_eq!(buckets.len(), Latency::BUCKETS);
        assert_eq!(
            ["0.000002048", "0.000004096", "2.147483648", "+Inf"].map(value),
            ["0", "2", "2", "3"].map(|n| Some(n.into()))
        );
        assert!(samples(&text, "symrail_work_request_seconds_count")[0].ends_with(" 3"));
        assert!(samples(&text, "symrail_work_request_seconds_sum")[0].ends_with(" 0.000005"));
    }

    #[test]
    fn lanes_with_the_same_labels_are_one_series() {
        let text = text(&BTreeMap::from([(1, pe(0, &[("host", "a", 5), ("host", "a", 6)]))]));
        let bytes = samples(&text, "symrail_posted_bytes_total");
        assert!(bytes.len() == 1 && bytes[0].ends_with(" 11"), "{bytes:?}");
    }

    /// What a stranger's process reports stays inside of its label.
    #[test]
    fn names_cannot_end_their_label_or_line() {
        let text = text(&BTreeMap::from([(1, pe(0, &[("host", "a\"} 1\nsymrail_x 1\\", 5)]))]));
        assert!(text.contains("rail=\"a\\\"} 1?symrail_x 1\\\\\"} 5\n"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("symrail_")), "{text}");
        assert!(!text.contains("\nsymrail_x"));
    }

    /// Every metric belongs to the family whose head precedes it, and no family appears twice.
    #[test]
    fn families_are_whole() {
        let text = text(&BTreeMap::from([(1, pe(0, &[("host", "a", 1)])), (2, pe(1, &[("proxy", "b", 1)]))]));
        let mut families: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            let mut words = line.split([' ', '{']);
            match (words.next(), words.next()) {
                (Some("#"), Some("TYPE")) => {
                    let (name, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                    assert!(families.iter().all(|(other, _)| other != name), "{name} twice");
                    families.push((name.into(), kind.into()));
                }
                (Some("#"), _) => {}
                (Some(name), _) => {
                    let suffixes: &[&str] = match families.last().map(|(_, kind)| kind.as_str()) {
                        Some("counter") => &["_total"],
                        Some("histogram") => &["_bucket", "_sum", "_count"],
                        _ => &[""],
                    };
                    let of = families.last().map_or("", |(name, _)| name);
                    assert!(suffixes.iter().any(|suffix| name == format!("{of}{suffix}")), "{line} in {of}");
                }
                _ => {}
            }
        }
        assert_eq!(families.len(), 1 + 1 + GAUGES.len() + COUNTERS.len() + 1 + SPEEDS.len());
    }
}
