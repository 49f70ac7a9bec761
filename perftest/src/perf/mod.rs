//! `symrail perf`: the speed of puts, gets, atomics, signals and barriers, and of the fabric alone.
//!
//! Without a launcher it starts its own PEs, which run this program with the same arguments.
//!
//! | file | concept |
//! |---|---|
//! | `catalog` | the catalog of tests |
//! | `plan` | sizes, iterations, offsets of messages |
//! | `session` | one PE, from joining to the last figure |
//! | `backend` | the operations that tests need |
//! | `host`, `device`, `cuda` | the runtime's host API, the CPU device and a GPU's kernels as backends |
//! | `raw` | bare libfabric and plain copies as backends |
//! | `measure` | the tests, written once for all backends |
//! | `pattern` | data that identifies its source |
//! | `heap` | heap memory of tests |
//! | `memory` | checks that the machine has that memory |
//! | `sample` | times, and their figures |
//! | `scale` | simulations of thousands of PEs |
//! | `report` | tables, JSON, plots |

mod backend;
mod catalog;
mod cuda;
mod device;
mod error;
mod heap;
mod host;
mod measure;
mod memory;
mod pattern;
mod plan;
mod raw;
mod report;
mod sample;
#[cfg(feature = "scale")]
mod scale;
mod session;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use symrail::Settings;
use symrail::bootstrap::is_pe;
use symrail_kernels::cuda::Gpu;
use symrail_transport::env::HeapKind;

pub use plan::size;

use crate::print;
use crate::run::{self, Job};
use catalog::{Device, TESTS, Test};
use error::{Error, Result};
use plan::{Plan, Target};
use report::Files;

/// What `symrail perf` does besides its tests.
#[derive(Debug, clap::Subcommand)]
enum Besides {
    /// Simulate jobs of thousands of PEs on a virtual clock
    #[cfg(feature = "scale")]
    Scale(scale::Args),
}

/// The arguments of `symrail perf`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    besides: Option<Besides>,
    /// What to measure; `all` for everything. Names that begin with raw- are the same on bare libfabric, for comparison in
    /// one run
    #[arg(required = true, value_name = "TEST", value_parser = PossibleValuesParser::new(plan::test_names()))]
    tests: Vec<String>,
    /// How many PEs to start, unless a launcher has
    #[arg(short = 'n', value_name = "N", default_value_t = 2)]
    n: u32,
    /// The smallest size, in bytes or with K, M, G; 1 if not given
    #[arg(short = 'b', value_name = "MIN", value_parser = plan::size)]
    min: Option<usize>,
    /// The largest size; 4M, or MIN if that is larger
    #[arg(short = 'e', value_name = "MAX", value_parser = plan::size)]
    max: Option<usize>,
    /// Iterations of every size; about a second's worth if not given
    #[arg(short = 'i', value_name = "ITERS")]
    iterations: Option<u64>,
    /// Iterations before those, at least 1
    #[arg(short = 'w', value_name = "WARMUP")]
    warmup: Option<u64>,
    /// Operations in a window of the bandwidth and rate tests; 64 if not given
    #[arg(short = 'W', long, value_name = "N")]
    window: Option<usize>,
    /// Threads of get-rate and fetch-rate; 64 with --device cpu, 1024 with cuda, 1 with host
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Who starts the operations
    #[arg(long, value_enum, default_value_t = Device::Host)]
    device: Device,
    /// Give every PE R rails: the addresses 127.0.0.2 and following, unless SYMRAIL_NIC_LIST names some
    #[arg(long, value_name = "R")]
    rails: Option<u32>,
    /// Let the PEs believe that they are on H hosts: with 1 they map each other's memory, with 2 they use the wire.
    /// 2 when rails or a provider are chosen, else 1
    #[arg(long, value_name = "H")]
    hosts: Option<u32>,
    /// Write the figures as JSON: an array that is whole after every result
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the medians, as SVG or PNG by the file's name, after every test
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Figures of an earlier run (--json), which --plot draws beside these; may be given several times
    #[arg(long, value_name = "FILE", requires = "plot")]
    beside: Vec<PathBuf>,
    /// Single operations, 2 ms after the last, while the target computes and never calls the library (get-lat, put-lat,
    /// amo-lat)
    #[arg(long)]
    busy_target: bool,
    /// The same while the target waits in the library, for comparison
    #[arg(long, conflicts_with = "busy_target")]
    idle_target: bool,
}

impl Args {
    fn wants_all(&self) -> bool {
        self.tests.iter().any(|name| name == "all")
    }

    /// The named tests, in the catalog's order.
    fn chosen(&self) -> Vec<&'static Test> {
        let all = self.wants_all();
        let named = |test: &&Test| self.tests.iter().any(|name| name == test.name) || all && test.in_all();
        TESTS.iter().filter(named).collect()
    }

    fn plan(&self) -> Plan {
        let usual = match self.device {
            Device::Host => None,
            Device::Cpu => Some(64),
            Device::Cuda => Some(plan::MOST_THREADS),
        };
        Plan { threads: self.threads.or(usual), on_gpu: self.device == Device::Cuda, ..self.plan_as_given() }
    }

    fn plan_as_given(&self) -> Plan {
        Plan {
            min: self.min,
            max: self.max,
            iterations: self.iterations,
            warmup: self.warmup,
            window: self.window,
            threads: self.threads,
            on_gpu: false,
            target: match (self.busy_target, self.idle_target) {
                (true, _) => Some(Target::Computes),
                (_, true) => Some(Target::Waits),
                _ => None,
            },
        }
    }

    fn files(&self) -> Files<'_> {
        Files { json: self.json.as_deref(), plot: self.plot.as_deref(), beside: &self.beside }
    }

    /// Refuses combinations that make no sense, and returns notes on options that some tests do not use.
    fn check(&self, tests: &[&Test]) -> Result<Vec<String>> {
        let refuse = |why: String| Err(Error::Arguments(why));
        // Nothing else is called: the driver's threads would take the launcher's signals.
        if self.device == Device::Cuda && !Gpu::has_driver() {
            return refuse("--device cuda: this machine has no CUDA driver; use host or cpu".into());
        }
        if self.device == Device::Host && self.threads.is_some_and(|threads| threads != 1) {
            return refuse("--threads is for devices: use --device cpu or cuda".into());
        }
        if self.n < 2 {
            return refuse(format!("-n {}: at least 2 PEs are needed", self.n));
        }
        for test in tests {
            if (self.busy_target || self.idle_target) && !test.can_be_single() {
                return refuse(format!(
                    "--busy-target and --idle-target are for get-lat, put-lat and amo-lat, not for {}",
                    test.name
                ));
            }
            if !test.runs_on(self.device) && !self.wants_all() {
                return refuse(format!("--device {} has no {}; use host", self.device, test.name));
            }
            if self.n != 2 && test.needs_two() && !self.wants_all() {
                return refuse(format!("{} is for 2 PEs, not {}", test.name, self.n));
            }
        }
        self.plan().check()?;
        self.files().check()?;
        self.plan_as_given().unused(tests)
    }

    /// The job of PEs that run this program with the same arguments, `again`.
    fn job(&self, tests: &[&Test], again: &[OsString]) -> Job {
        let is_set = Settings::is_set;
        let chosen = self.rails.is_some() || is_set("SYMRAIL_LIBFABRIC_PROVIDER") || is_set("SYMRAIL_TRANSPORT");
        let mut env = Vec::new();
        let needed = self.plan().heap(tests, self.n).saturating_add(HEAP_SPARE);
        if !is_set(HEAP_SIZE) && needed > Settings::default().heap_size {
            let page = 2 << 20;
            env.push((HEAP_SIZE.to_owned(), needed.checked_next_multiple_of(page).unwrap_or(needed).to_string()));
        }
        let (program, args) =
            again.split_first().map_or_else(Default::default, |(it, args)| (it.clone(), args.to_vec()));
        Job {
            program,
            args,
            n: self.n,
            hosts: Some(self.hosts.unwrap_or(if chosen { 2 } else { 1 })),
            rails: self.rails,
            env,
            ..Job::default()
        }
    }
}

const HEAP_SIZE: &str = "SYMRAIL_HEAP_SIZE";
/// Heap memory for the runtime, besides the area.
const HEAP_SPARE: usize = 16 << 20;

/// Runs `symrail perf` and returns its exit code; `again` is the same command line.
pub fn main(args: &Args, again: &[OsString]) -> i32 {
    match perform(args, again) {
        Ok(code) => code,
        Err(error) => {
            if let Error::Output(reason) = &error {
                return print::failed("symrail perf", reason);
            }
            print::error("symrail perf", &error);
            error.exit_code()
        }
    }
}

fn perform(args: &Args, again: &[OsString]) -> Result<i32> {
    #[cfg(feature = "scale")]
    if let Some(Besides::Scale(args)) = &args.besides {
        return scale::run(args);
    }
    let tests = args.chosen();
    let notes = args.check(&tests)?;
    if is_pe() {
        return session::run(args, &tests, &notes).map(|()| 0);
    }
    // An invalid value is reported here once, not by every PE.
    let settings = Settings::from_iter(std::env::vars_os())?;
    if settings.heap_kind != HeapKind::Device {
        let there = memory::available_to_children();
        memory::check(args.n as usize, args.plan().area(&tests, args.n), there)?;
    }
    run::launch(&args.job(&tests, again))
        .map_err(|reason| Error::Launch { exit_code: reason.exit_code(), reason: reason.to_string() })
}
