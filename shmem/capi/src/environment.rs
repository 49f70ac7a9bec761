//! The environment variables that OpenSHMEM itself names.

use std::ffi::OsString;
use std::io::Write;

use symrail::{Runtime, Settings};
use symrail_core::Escaped;
use symrail_transport::env::log;

/// A variable with its name: `SHMEM_` and what follows, or the deprecated `SMA_` if the former is not set. An empty one
/// counts as not set.
fn variable(name: &str) -> Option<(String, OsString)> {
    ["SHMEM_", "SMA_"].into_iter().find_map(|prefix| {
        let name = format!("{prefix}{name}");
        let value = std::env::var_os(&name).filter(|value| !value.is_empty())?;
        Some((name, value))
    })
}

/// Applies `SHMEM_SYMMETRIC_SIZE`, OpenSHMEM's name for the heap's size, unless our variable is set.
pub fn apply_symmetric_size(settings: &mut Settings) -> Result<(), String> {
    let Some((name, value)) = variable("SYMMETRIC_SIZE") else { return Ok(()) };
    if Settings::is_set("SYMRAIL_HEAP_SIZE") {
        return Ok(());
    }
    let text = value.to_string_lossy();
    settings.heap_size = symmetric_size(&text).ok_or_else(|| {
        format!("{name}={}: not accepted; use a number of bytes, or one followed by K, M, G or T", Escaped(&text))
    })?;
    Ok(())
}

/// The bytes that a number and one letter, its unit, stand for; what follows the letter is ignored.
fn symmetric_size(text: &str) -> Option<usize> {
    let parse = |end| Some((text.get(..end)?.parse::<f64>().ok()?, text.get(end..)?));
    let (number, unit) = (1..=text.len()).rev().find_map(parse)?;
    let unit: f64 = match unit.trim_start().chars().next().map(|letter| letter.to_ascii_lowercase()) {
        None | Some('b') => 1.0,
        Some('k') => 1024.0,
        Some('m') => 1024.0 * 1024.0,
        Some('g') => 1024.0 * 1024.0 * 1024.0,
        Some('t') => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        Some(_) => return None,
    };
    let bytes = (number * unit).ceil();
    (bytes.is_finite() && bytes >= 0.0).then_some(bytes as usize)
}

/// Logs to stderr at the level of `SYMRAIL_LOG`; without it, debug messages with `SHMEM_DEBUG` and warnings otherwise.
pub fn start_log() {
    let usual = if is_set("DEBUG") { "debug" } else { "warn" };
    log::start(&log::asked_for().unwrap_or_else(|| usual.into()));
}

/// Prints on PE 0 at start: `SHMEM_VERSION` asks for the version, `SHMEM_INFO` also for the values of these variables.
pub fn print(runtime: &Runtime) {
    let (version, info) = (is_set("VERSION"), is_set("INFO"));
    if runtime.my_pe() != 0 || !(version || info) {
        return;
    }
    let mut text = format!("Symrail {}: OpenSHMEM 1.5\n", env!("CARGO_PKG_VERSION"));
    if info {
        let heap = runtime.settings().heap_size;
        text += &format!(
            "{} PEs with symmetric heaps of {heap} bytes, the program's variables among them\n\
             SHMEM_VERSION         print the version at start\n\
             SHMEM_INFO            print this at start\n\
             SHMEM_SYMMETRIC_SIZE  the symmetric heap's size, such as 2G\n\
             SHMEM_DEBUG           log what happens to standard error\n\
             The deprecated names that begin with SMA_ are read where these are not set.\n\
             Variables of Symrail's own: symrail info --env\n",
            runtime.n_pes()
        );
    }
    // A failed write is ignored: no reader is left.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|(_, value)| value != "0")
}
