//! `symrail doctor`: what this machine lacks, or does wrong, for the fastest paths, each with the command that mends it.
//!
//! The facts are those of `symrail info` ([`crate::info`]) and of the kernel; a [`Finding`] is a judgement of one.
//!
//! | file | judges |
//! |---|---|
//! | [`finding`] | a judgement, and the list of them |
//! | [`libraries`] | the libraries that are loaded at run time, beside the hardware that needs them |
//! | [`network`] | rails, interfaces that are none, RDMA ports, the loopback interface |
//! | [`limits`] | limits of a process and of its container |
//! | [`gpus`] | GPUs: access to one another and by NICs |
//! | [`host`] | access of PEs to one another's memory, NUMA, huge pages, settings |

mod finding;
mod gpus;
mod host;
mod libraries;
mod limits;
mod network;

use std::path::{Path, PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use symrail_transport::env::Settings;

use crate::info::report::Report;
use crate::{info, print};
use finding::{Examination, Finding};

/// The arguments of `symrail doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is judged.
struct Host<'a> {
    settings: &'a Settings,
    report: &'a Report,
    /// The kernel's `/sys`, or `SYMRAIL_SYSFS`.
    sys: PathBuf,
}

impl Host<'_> {
    /// A file of the kernel's, without white space around.
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.sys.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The names in a folder of the kernel's, in order.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.sys.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The RDMA devices of the kernel.
    fn rdma(&self) -> Vec<String> {
        self.names("class/infiniband")
    }

    /// The PCI addresses of NVIDIA's GPUs.
    fn nvidia(&self) -> Vec<String> {
        let is_gpu = |pci: &String| {
            let of = |file| self.read(format!("bus/pci/devices/{pci}/{file}")).unwrap_or_default();
            of("vendor") == "0x10de" && of("class").starts_with("0x03")
        };
        self.names("bus/pci/devices").into_iter().filter(is_gpu).collect()
    }
}

/// A limit of this process, soft and hard; `None` stands for no limit.
fn limit(which: Resource) -> (Option<u64>, Option<u64>) {
    let finite = |limit| (limit != RLIM_INFINITY).then_some(limit);
    getrlimit(which).map_or((None, None), |(soft, hard)| (finite(soft), finite(hard)))
}

/// Runs `symrail doctor` and returns its exit code: 0, 1 when there is a problem, or 2 when a variable's value is not
/// accepted.
pub fn main(args: &Args) -> i32 {
    let settings = match Settings::from_env() {
        Ok(settings) => settings,
        Err(problem) => return info::refuse(&problem),
    };
    let found = examine(&settings);
    let printed = if args.json { info::json(&found) } else { found.text() };
    match print::out(&printed) {
        Ok(()) => i32::from(found.problems > 0),
        Err(reason) => print::failed("symrail doctor", &reason),
    }
}

fn examine(settings: &Settings) -> Examination {
    let report = info::find_out(settings);
    let sys = settings.sysfs.clone().unwrap_or_else(|| "/sys".into());
    let host = Host { settings, report: &report, sys };
    let parts: [fn(&Host<'_>) -> Vec<Finding>; 5] =
        [libraries::judge, network::judge, limits::judge, gpus::judge, host::judge];
    Examination::new(parts.iter().flat_map(|judge| judge(&host)).collect())
}
