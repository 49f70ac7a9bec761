//! The environment variables that OpenSHMEM itself names.

use std::io::Write;

use symrail::{Runtime, Settings};
use symrail_core::Escaped;
use symrail_transport::env::log;

/// Applies `SHMEM_SYMMETRIC_SIZE`, OpenSHMEM's name for the heap's size, unless our variable is set.
pub fn apply_symmetric_size(settings: &mut Settings) -> Result<(), String> {
    let Ok(text) = std::env::var("SHMEM_SYMMETRIC_SIZE") else { return Ok(()) };
    if text.is_empty() || Settings::is_set("SYMRAIL_HEAP_SIZE") {
        return Ok(());
    }
    let refused = || {
        format!(
            "SHMEM_SYMMETRIC_SIZE={}: not accepted; use a number of bytes, or one followed by K, M, G or T",
            Escaped(&text)
        )
    };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: f64 = match text[digits.len()..].to_ascii_lowercase().trim_end_matches('b') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1024.0 * 1024.0,
        "g" => 1024.0 * 1024.0 * 1024.0,
        "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(refused()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| refused())?;
    if !(number * unit).is_finite() || number <= 0.0 {
        return Err(refused());
    }
    settings.heap_size = (number * unit) as usize;
    Ok(())
}

/// Logs to stderr at the level of `SYMRAIL_LOG`; without it, debug messages with `SHMEM_DEBUG` and warnings otherwise.
pub fn start_log() {
    let usual = if is_set("SHMEM_DEBUG") { "debug" } else { "warn" };
    log::start(&log::asked_for().unwrap_or_else(|| usual.into()));
}

/// Prints on PE 0 at start: `SHMEM_VERSION` asks for the version, `SHMEM_INFO` also for the values of these variables.
pub fn print(runtime: &Runtime) {
    let (version, info) = (is_set("SHMEM_VERSION"), is_set("SHMEM_INFO"));
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
             Variables of Symrail's own: symrail info --env\n",
            runtime.n_pes()
        );
    }
    // A failed write is ignored: no reader is left.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0")
}
