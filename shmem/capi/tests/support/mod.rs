//! Compiling C programs with `symrail cc` and running them with `symrail run`.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

#[path = "../../../../tests/support/libraries.rs"]
mod libraries;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libraries::build;
pub use libraries::{missing, succeed};

/// How PEs reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Loads and stores.
    Mapped,
    /// `tcp;ofi_rxm` with two rails: as many hosts as PEs.
    Wire,
    /// The given number of hosts, with one rail of `tcp;ofi_rxm` between them.
    Hosts(u32),
}

pub const LAYOUTS: [Layout; 2] = [Layout::Mapped, Layout::Wire];

/// Seconds that a job may take.
const LIMIT: &str = "120";

/// The output of a command and how it ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub said: String,
}

impl Outcome {
    fn of(output: &Output) -> Outcome {
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        Outcome { code: output.status.code(), said }
    }
}

/// The folder of the program `symrail` and of the libraries for C, which are built first.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// An empty folder for a test's files.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles a program of `tests/programs` with `symrail cc` or, for C++, `symrail c++`, once. Returns `None`, after a
/// message, if there is no such compiler.
pub fn compile(name: &str) -> Option<PathBuf> {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let cxx = Path::new(name).extension().is_some_and(|e| e == "cpp");
    let (tool, compiler, standard) = if cxx { ("c++", "c++", "-std=c++11") } else { ("cc", "cc", "-std=c11") };
    if missing(compiler) {
        return None;
    }
    // A test that failed meanwhile must not make others fail.
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = compiled.get(name) {
        return Some(program.clone());
    }
    let program = folder(&format!("{}-{name}", env!("CARGO_CRATE_NAME"))).join("program");
    let mut command = Command::new(built().join("symrail"));
    command.args([tool, standard, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_DEFAULT_SOURCE", "-o"]);
    succeed(command.arg(&program).arg(source(name)));
    compiled.insert(name.to_owned(), program.clone());
    Some(program)
}

/// Runs a command that starts a job, once few enough other jobs run.
pub fn job(command: &mut Command) -> Outcome {
    let _slot = libraries::job_slot(built());
    Outcome::of(&command.stdin(Stdio::null()).output().unwrap())
}

/// A command without a user's settings.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    libraries::remove_settings(&mut command, &["SYMRAIL_", "SHMEM_", "SMA_"]);
    command
}

/// Runs a job.
pub fn run(program: &Path, args: &[&str], pes: u32, layout: Layout, env: &[(&str, &str)]) -> Outcome {
    let mut command = command(built().join("symrail"));
    command.args(["run", "-n", &pes.to_string(), "--timeout", LIMIT]).envs(env.iter().copied());
    let wire = match layout {
        Layout::Mapped => None,
        Layout::Wire => Some((pes, "2")),
        Layout::Hosts(hosts) => Some((hosts, "1")),
    };
    if let Some((hosts, rails)) = wire {
        command.args(["--hosts", &hosts.to_string(), "--rails", rails]);
        command.env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
    }
    job(command.arg("--").arg(program).args(args))
}

/// Makes a call for each case, on as many threads as there are cores: a job mostly waits, or runs on one.
pub fn each<T: Sync>(cases: &[T], call: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            call(case);
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
}

/// Runs a job that has to succeed.
pub fn run_well(program: &Path, pes: u32, layout: Layout) {
    let outcome = run(program, &[], pes, layout, &[]);
    assert_eq!(outcome.code, Some(0), "{pes} PEs, {layout:?}: {}", outcome.said);
}
