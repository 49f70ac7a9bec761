//! `symrail top`: the activity of the PEs on this host, as a table that refreshes.
//!
//! The PEs publish the figures themselves ([`symrail::observe::figures`]); the display shows their change between two
//! samples. `--prometheus` publishes the figures as metrics in its place.
//!
//! | file | concept |
//! |---|---|
//! | `table` | the display |
//! | `open_metrics` | the figures as OpenMetrics text |
//! | `exporter` | publishing that text over HTTP or in a file |

mod exporter;
mod open_metrics;
mod table;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use console::Term;
use symrail::observe::figures::{self, Figures};

use crate::print;
use exporter::Target;
use table::Table;

/// Arguments of `symrail top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds between two samples
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    delay: f64,
    /// Show N tables, or publish N samples, and end; without it, tables go on until Ctrl-C or until no PE is left
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Publish the figures as OpenMetrics text until Ctrl-C, whether PEs run or not: over HTTP on this port of 127.0.0.1
    /// (or ADDRESS:PORT) at /metrics, whatever -d, or in a file that each sample replaces and that stays (`-`: standard
    /// output)
    #[arg(long, value_name = "PORT|FILE", value_parser = Target::parse)]
    prometheus: Option<Target>,
    /// Only PEs of these processes
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// PEs of other users, too, as far as this user may look into them (root may)
    #[arg(short, long)]
    all_users: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.05..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.05 to 3600 seconds".into()) }
}

/// A sample of all PEs.
struct Snapshot {
    at: Instant,
    /// Keyed by process; a process has one PE at a time.
    pes: BTreeMap<u32, Figures>,
}

impl Snapshot {
    fn take(args: &Args) -> Snapshot {
        let wanted = |pid| args.pid.is_empty() || args.pid.contains(&pid);
        Snapshot { pes: figures::find(args.all_users, wanted), at: Instant::now() }
    }
}

/// Publishes metrics; returns the exit code.
fn publish(args: &Args, target: &Target) -> i32 {
    let metrics = || open_metrics::text(&Snapshot::take(args).pes);
    let (place, result) = match target {
        Target::Http(address) => (address.to_string(), serve(args, *address, metrics)),
        Target::File(path) => (path.display().to_string(), write(args, Some(path), metrics)),
        Target::Stdout => ("standard output".into(), write(args, None, metrics)),
    };
    let Err(reason) = result else { return 0 };
    if *target == Target::Stdout {
        return print::failed("symrail top", &reason);
    }
    print::error("symrail top", format_args!("--prometheus {place}: {reason}"));
    1
}

fn serve(args: &Args, address: std::net::SocketAddr, metrics: impl Fn() -> String) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    // Port 0 is any free one.
    print::out(&format!("metrics at http://{}/metrics\n", listener.local_addr()?))?;
    exporter::serve(&listener, args.count, metrics)
}

fn write(args: &Args, path: Option<&Path>, metrics: impl Fn() -> String) -> std::io::Result<()> {
    let mut written = 0;
    loop {
        exporter::write(path, &metrics())?;
        written += 1;
        if args.count == Some(written) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs_f64(args.delay));
    }
}

/// Runs `symrail top`; returns the exit code.
pub fn main(args: &Args) -> i32 {
    if let Some(target) = &args.prometheus {
        return publish(args, target);
    }
    let mut before = Snapshot::take(args);
    if before.pes.is_empty() {
        let others = if args.all_users { "that you may look into" } else { "of yours; --all-users shows others'" };
        print::error("symrail top", format_args!("no PE runs on this host {others}"));
        return 1;
    }
    let in_place = std::io::stdout().is_terminal();
    let mut shown = 0;
    loop {
        std::thread::sleep(Duration::from_secs_f64(args.delay));
        let now = Snapshot::take(args);
        if now.pes.is_empty() {
            return 0;
        }
        let table = Table::between(&before.pes, &now.pes, now.at - before.at);
        let room = Term::stdout().size_checked().map(|(lines, columns)| (lines.into(), columns.into()));
        let lines = table.lines(room.filter(|_| in_place));
        // Cursor home, the table with the rest of each line cleared, then everything below cleared.
        let text = if in_place {
            format!("\x1b[H{}\x1b[J", lines.iter().map(|line| format!("{line}\x1b[K\r\n")).collect::<String>())
        } else {
            lines.join("\n") + "\n\n"
        };
        if let Err(reason) = print::out(&text) {
            return print::failed("symrail top", &reason);
        }
        shown += 1;
        if args.count == Some(shown) {
            return 0;
        }
        before = now;
    }
}
