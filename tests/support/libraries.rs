//! Libraries for C, for tests that load them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The library of the running test's own package; if the package is a Rust library too, Cargo has built it with the
/// test.
#[allow(dead_code, reason = "not every test that loads libraries loads its own package's")]
pub fn own(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(format!("lib{name}.so"))
}

/// Builds libraries and programs in the running test's profile, and returns their folder. Waits if the build folder is
/// in use.
///
/// The selection of packages and targets decides Cargo's features: this one has those of `cargo test --workspace`, so
/// that nothing is compiled again.
#[allow(dead_code, reason = "not every test that loads libraries builds any")]
pub fn build() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let folder = exe.ancestors().nth(2).unwrap().to_path_buf();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "-q", "--workspace", "--lib", "--bins", "--examples"]);
    cargo.env("CARGO_TARGET_DIR", folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    succeed(&mut cargo);
    folder
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

/// Waits until no other test, in any package, runs a job. The lock lasts until the file is closed.
#[allow(dead_code, reason = "not every test that loads libraries needs it")]
pub fn alone(built: &Path) -> File {
    let file = File::create(built.join("symrail-tests.lock")).unwrap();
    file.lock().unwrap();
    file
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
