//! `symrail top`: the activity of the PEs on this host, as a table that refreshes.
//!
//! The PEs publish the figures themselves ([`symrail::observe::figures`]); the display shows their change between two
//! samples.

mod table;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use console::Term;
use symrail::observe::figures::{self, Figures};

use crate::print;
use table::Table;

/// Arguments of `symrail top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds between two samples
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    delay: f64,
    /// Show N tables and end; without it, go on until Ctrl-C or until no PE is left
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
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

/// Runs `symrail top`; returns the exit code.
pub fn main(args: &Args) -> i32 {
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
