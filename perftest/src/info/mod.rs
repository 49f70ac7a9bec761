//! `symrail info`: the hardware and libraries of this machine, the rails that a PE started here would use, and why.
//!
//! [`report`] is the data, which `--json` prints unchanged; [`text`] prints it for people. Each of the other files
//! queries one source, and none of them fails: a missing library is an answer, with a remedy.
//!
//! | file | queries |
//! |---|---|
//! | [`host`] | the kernel: cores, NUMA nodes, memory, limits |
//! | [`libraries`] | the libraries that are loaded at run time, and their files |
//! | [`libfabric`] | libfabric: providers, rails, granted capabilities |
//! | [`ibverbs`] | libibverbs: devices, ports, GIDs |
//! | [`cuda`] | the CUDA driver: GPUs |
//! | [`chosen`] | the transport: the rails that a PE started here would use |
//! | [`dot`] | none: it draws the data for Graphviz (`--dot`) |
//! | [`collectives`] | tables that collectives choose by |
//! | [`protocols`] | the transport: the form of each operation, by size (`--protocols`, instead of the rest) |

mod chosen;
mod collectives;
mod cuda;
mod dot;
pub(crate) mod host;
mod ibverbs;
mod libfabric;
pub mod libraries;
mod protocols;
pub(crate) mod report;
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
    /// Print the form in which each operation travels, by size, and why (instead of the rest)
    #[arg(long, conflicts_with = "env")]
    protocols: bool,
    /// Print a drawing of a PE started here, its rails and the GPUs for Graphviz (`symrail info --dot | dot -Tsvg`)
    #[arg(long, conflicts_with_all = ["env", "protocols", "json"])]
    dot: bool,
}

/// Runs `symrail info` and returns its exit code: 0, 1 when `--protocols` finds no rail, or 2 when a variable's value is
/// not accepted.
pub fn main(args: &Args) -> i32 {
    let (settings, problem) = match Settings::from_env() {
        Ok(settings) => (settings, None),
        // The table helps a user who has set a wrong value; the other sections would not describe the user's settings.
        Err(problem) if args.env => (Settings::default(), Some(problem)),
        Err(problem) => return refuse(&problem),
    };
    if args.protocols {
        return protocols::main(&settings, args.json);
    }
    let printed = match (args.env, args.json) {
        _ if args.dot => dot::of(&find_out(&settings)),
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

pub(crate) fn refuse(problem: &Error) -> i32 {
    print::error("symrail", problem);
    2
}

/// All variables, and the problems of their names.
fn table(settings: &Settings) -> String {
    let warnings = settings.unknown.iter().map(|unknown| format!("warning: {unknown}\n"));
    render::text(settings) + &warnings.collect::<String>()
}

pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Only a map with keys other than strings could fail; there are none.
    serde_json::to_string_pretty(value).map_or_else(|error| error.to_string(), |text| text + "\n")
}

/// Queries all sources, as a PE started here would.
pub(crate) fn find_out(settings: &Settings) -> Report {
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
