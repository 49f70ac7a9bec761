//! `symrail top`: what the PEs on this host are doing, as a table that refreshes.
//!
//! The figures are the PEs' own ([`symrail::observe::figures`]); what is shown is their change between two looks.

mod table;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use symrail::observe::figures::{self, Figures};

use table::Table;

/// Arguments of `symrail top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds between two looks
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    delay: f64,
    /// Show N tables and end; without it, go on until Ctrl-C or until no PE is left
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only PEs of these processes
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.05..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.05 to 3600 seconds".into()) }
}

/// A look at all PEs.
struct Look {
    at: Instant,
    /// By process; a process has one PE at a time.
    pes: BTreeMap<u32, Figures>,
}

impl Look {
    fn take(wanted: &[u32]) -> Look {
        let wanted = |(pid, _): &(u32, File)| wanted.is_empty() || wanted.contains(pid);
        let found = figures::find().into_iter().filter(wanted);
        let pes = found.filter_map(|(pid, file)| Some((pid, figures::read(&file).ok()?))).collect();
        Look { at: Instant::now(), pes }
    }
}

/// Runs `symrail top`; returns the exit code.
pub fn main(args: &Args) -> i32 {
    let mut before = Look::take(&args.pid);
    if before.pes.is_empty() {
        eprintln!("symrail top: no PE runs on this host that you may look at (yours, or all as root)");
        return 1;
    }
    let in_place = std::io::stdout().is_terminal();
    let mut shown = 0;
    loop {
        std::thread::sleep(Duration::from_secs_f64(args.delay));
        let now = Look::take(&args.pid);
        if now.pes.is_empty() {
            return 0;
        }
        let text = Table::between(&before.pes, &now.pes, now.at - before.at).to_string();
        // Home, the table with the rest of each line cleared, then everything below cleared.
        let text =
            if in_place { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { format!("{text}\n") };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return 0; // whoever read it has gone
        }
        shown += 1;
        if args.count == Some(shown) {
            return 0;
        }
        before = now;
    }
}
