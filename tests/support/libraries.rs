//! Libraries for C, for tests that load them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The library of the running test's own package; if the package is a Rust library too, Cargo has built it with the
/// test.
#[allow(dead_code, reason = "not every test that loads libraries loads its own package's")]
pub fn own(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(format!("lib{name}.so"))
}

/// Builds libraries and programs in the running test's profile, and returns their folder. Waits if the build folder is
/// in use.
#[allow(dead_code, reason = "not every test that loads libraries builds any")]
pub fn build() -> PathBuf {
    succeed(&mut cargo_build());
    profile_folder()
}

/// The folder of the running test's profile.
#[allow(dead_code, reason = "not every test that loads libraries builds any")]
fn profile_folder() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf()
}

/// The command that builds all packages in the running test's profile.
///
/// The selection of packages and targets decides Cargo's features: this one has those of `cargo test --workspace`, so
/// that nothing is compiled again.
#[allow(dead_code, reason = "not every test that loads libraries builds any")]
pub fn cargo_build() -> Command {
    let folder = profile_folder();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "-q", "--workspace", "--lib", "--bins", "--examples"]);
    cargo.env("CARGO_TARGET_DIR", folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    cargo
}

/// Runs a command that must succeed, and returns its output.
pub fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {:?}\n{said}", output.status);
    said
}

/// Removes a user's settings, whose names begin with one of these prefixes, from a command's environment.
#[allow(dead_code, reason = "not every test that loads libraries needs it")]
pub fn remove_settings(command: &mut Command, prefixes: &[&str]) {
    let is_setting = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
}

/// Waits until fewer jobs of other tests, in any package, run than [`jobs_at_once`]. The lock lasts until the file is
/// closed.
#[allow(dead_code, reason = "not every test that loads libraries runs jobs")]
pub fn job_slot(built: &Path) -> File {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let slots: Vec<File> = (0..jobs_at_once())
        .map(|slot| File::create(built.join(format!("symrail-tests-{slot}.lock"))).unwrap())
        .collect();
    if let Some(free) = slots.iter().position(|slot| slot.try_lock().is_ok()) {
        return slots.into_iter().nth(free).unwrap();
    }
    // All are taken: tests that wait are spread over them.
    let call = std::process::id() as usize + CALLS.fetch_add(1, Ordering::Relaxed);
    let slot = slots.into_iter().nth(call % jobs_at_once()).unwrap();
    slot.lock().unwrap();
    slot
}

/// A job for each core: half of the jobs wait for time-outs most of their time, and others measure a little.
#[allow(dead_code, reason = "not every test that loads libraries runs jobs")]
fn jobs_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether a tool is missing; prints that if so.
#[allow(dead_code, reason = "not every test that loads libraries needs a tool")]
pub fn missing(tool: &str) -> bool {
    let version = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = !version.is_ok_and(|status| status.success());
    if missing {
        println!("SKIPPED: no {tool} on this machine");
    }
    missing
}
