//! `symrail perf scale`: jobs of thousands of PEs, simulated on a virtual clock.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use symrail_scale::{Joining, Options, Report, Work, join, simulate};

use super::error::{Error, Result};
use crate::print;

/// Partners of each PE in the all-to-all.
const PARTNERS: u32 = 64;
/// Bytes of the broadcast.
const BROADCAST: usize = 1 << 20;

/// The arguments of `symrail perf scale`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many PEs to simulate
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=32768))]
    pes: u32,
    /// On how many hosts; 64 PEs a host if not given
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u32).range(1..))]
    hosts: Option<u32>,
    /// What chance has it: the same seed brings the same figures
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// One PE of a hundred dies in this
    #[arg(long, value_name = "WHERE", value_enum)]
    dies: Option<Dies>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Where PEs die.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Dies {
    /// While PEs join
    Joining,
    /// While PEs connect
    Connecting,
    /// In a barrier
    Barrier,
}

impl Args {
    fn options(&self) -> Options {
        let hosts = self.hosts.unwrap_or_else(|| self.pes.div_ceil(64));
        let mut options = Options::new(self.pes, hosts);
        options.seed = self.seed;
        options.dies_in = self.dies.and_then(|dies| match dies {
            Dies::Joining => None,
            Dies::Connecting => Some(Work::AllToAll(PARTNERS)),
            Dies::Barrier => Some(Work::Barrier),
        });
        options
    }

    /// Collectives twice: the first ones connect.
    fn works(&self) -> Vec<Work> {
        match self.dies {
            Some(Dies::Joining) => Vec::new(),
            Some(Dies::Connecting) => vec![Work::AllToAll(PARTNERS)],
            Some(Dies::Barrier) => vec![Work::Barrier],
            None => {
                let (sum, broadcast) = (Work::Sum, Work::Broadcast(BROADCAST));
                let first = [Work::Ring, Work::AllToAll(PARTNERS), Work::Team, Work::Barrier, Work::Barrier];
                first.into_iter().chain([sum.clone(), sum, broadcast.clone(), broadcast]).collect()
            }
        }
    }
}

/// What comes out.
#[derive(serde::Serialize)]
struct Figures {
    joining: Joining,
    after: Report,
}

pub fn run(args: &Args) -> Result<i32> {
    let (options, begun) = (args.options(), Instant::now());
    let joining = join(&options, matches!(args.dies, Some(Dies::Joining)));
    print::out(&in_words(&joining)).map_err(Error::Output)?;
    let after = simulate(&options, &args.works())
        .map_err(|error| Error::System { what: "the simulation".into(), reason: error.to_string() })?;
    let figures = Figures { joining, after };
    if let Some(path) = &args.json {
        let failed = |reason: String| Error::System { what: format!("writing {}", path.display()), reason };
        let text = serde_json::to_string_pretty(&figures).map_err(|error| failed(error.to_string()))?;
        std::fs::write(path, text).map_err(|error| failed(error.to_string()))?;
    }
    print::out(&text(&figures.after, begun.elapsed().as_secs_f64())).map_err(Error::Output)?;
    let expected = args.dies.is_some();
    let Figures { joining, after } = figures;
    let failed = !joining.failed.is_empty() || joining.stuck > 0 || after.rows.iter().any(|row| !row.failed.is_empty());
    Ok(i32::from(failed && !expected))
}

fn in_words(joining: &Joining) -> String {
    let Joining { took, messages, most_messages, of_root, largest, relays, height, dead, failed, stuck, .. } = joining;
    let mut text = format!(
        "# joining: {:.1} ms, {messages} messages, {most_messages} of the busiest PE, {of_root} of the root, \
         the largest {largest} bytes; {relays} relays, {height} one behind the other\n",
        *took as f64 / 1e6
    );
    if !dead.is_empty() {
        let _ = writeln!(text, "# PEs {dead:?} died; {} gave up, {stuck} neither", failed.len());
    }
    for (pe, why) in failed.iter().take(4) {
        let _ = writeln!(text, "# PE {pe}: {why}");
    }
    text
}

fn text(report: &Report, seconds: f64) -> String {
    let Report { pes, hosts, seed, joined, .. } = report;
    let mut text = format!(
        "# simulated: {pes} PEs on {hosts} hosts, seed {seed}, {seconds:.1} s of this machine's time\n\
         # a PE that has joined holds {} bytes\n\
         {:<20} {:>12} {:>12} {:>6} {:>10} {:>9} {:>9} {:>9} {:>10} {:>8}\n",
        joined.mean, "work", "us", "bound(us)", "ratio", "messages", "most", "largest", "connects", "held(B)", "failed"
    );
    for row in &report.rows {
        let micros = |nanos: u64| format!("{:.1}", nanos as f64 / 1e3);
        let bound = row.bound.map_or_else(|| "-".into(), micros);
        let ratio = row.bound.map_or_else(|| "-".into(), |bound| format!("{:.2}", row.took as f64 / bound as f64));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<20} {:>12} {bound:>12} {ratio:>6} {:>10} {:>9} {:>9} {:>9} {:>10} {:>8}",
            row.work,
            micros(row.took),
            row.messages,
            row.most_messages,
            row.largest,
            row.most_connections,
            row.held.mean,
            row.failed.len()
        );
        for (pe, why) in row.failed.iter().take(4) {
            let _ = writeln!(text, "# PE {pe}: {why}");
        }
    }
    text
}
