//! `symrail info`: what this machine has, what a PE started here would use, and why.
//!
//! [`report`] is the data, which `--json` prints as it is; [`text`] prints it for people. Each of the other files finds
//! out about one thing, and none of them fails: what is missing is an answer, with what to install.
//!
//! | file | asks |
//! |---|---|
//! | [`host`] | the kernel: cores, NUMA nodes, memory, limits |
//! | [`libraries`] | what is loaded at run time, and from where |
//! | [`libfabric`] | libfabric: providers, rails, what they grant |
//! | [`ibverbs`] | libibverbs: devices, ports, GIDs |
//! | [`cuda`] | the CUDA driver: GPUs |
//! | [`chosen`] | the transport: what a PE started here would use |
//! | [`collectives`] | tables that collectives choose by |

mod chosen;
mod collectives;
mod cuda;
mod host;
mod ibverbs;
mod libfabric;
pub mod libraries;
mod report;
mod text;

use crate::print;
use symrail_transport::Error;
use symrail_transport::env::{Settings, render};

use report::{Report, Setting};

/// The arguments of `symrail info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print every environment variable with its value, default and meaning (instead of the rest)
    #[arg(long)]
    env: bool,
}

/// Runs `symrail info` and returns its exit code: 0, or 2 when a variable's value is not accepted.
pub fn main(args: &Args) -> i32 {
    let (settings, problem) = match Settings::from_env() {
        Ok(settings) => (settings, None),
        // The table is what helps whoever set a wrong value; the rest would describe something else than asked for.
        Err(problem) if args.env => (Settings::default(), Some(problem)),
        Err(problem) => return refuse(&problem),
    };
    let printed = match (args.env, args.json) {
        (true, false) => table(&settings),
        (true, true) => json(&Setting::all(&settings)),
        (false, true) => json(&find_out(&settings)),
        (false, false) => text::of(&find_out(&settings)),
    };
    if let Err(reason) = print::out(&printed) {
        return print::failed("symrail info", &reason);
    }
    problem.map_or(0, |problem| refuse(&problem))
}

fn refuse(problem: &Error) -> i32 {
    print::error("symrail", problem);
    2
}

/// All variables, and what is wrong with names.
fn table(settings: &Settings) -> String {
    let warnings = settings.unknown.iter().map(|unknown| format!("warning: {unknown}\n"));
    render::text(settings) + &warnings.collect::<String>()
}

fn json(value: &impl serde::Serialize) -> String {
    // Maps with other keys than strings could fail; there are none.
    serde_json::to_string_pretty(value).map_or_else(|error| error.to_string(), |text| text + "\n")
}

fn find_out(settings: &Settings) -> Report {
    let (host, machine) = host::find_out(settings);
    let gpus = cuda::find_out();
    let place = chosen::Place::new(settings, &machine, &gpus);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        host,
        libfabric: libfabric::find_out(settings, &machine, &place),
        ibverbs: ibverbs::find_out(settings, &machine, &place),
        chosen: chosen::find_out(settings, &machine, &place),
        collectives: collectives::find_out(settings),
        cuda: gpus,
        changed: Setting::changed(settings),
        unknown: settings.unknown.iter().map(ToString::to_string).collect(),
    }
}
