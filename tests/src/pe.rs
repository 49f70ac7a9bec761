//! Common parts of all test programs.

use std::io::Write as _;
use std::sync::Mutex;

use symrail::{Result, Runtime};

/// The current test step, for errors.
static DOING: Mutex<String> = Mutex::new(String::new());

/// Sets the current test step, for errors that do not name it.
pub fn doing(what: String) {
    if let Ok(mut doing) = DOING.lock() {
        *doing = what;
    }
}

fn being_done() -> String {
    DOING.lock().map_or_else(|_| String::new(), |what| format!(" [{what}]"))
}

/// Runs a PE: joins, does its work, leaves. An error is printed with the PE's number, and the exit code is 1.
/// `SYMRAIL_LOG` selects what is logged to stderr; nothing without it.
#[must_use]
pub fn run(work: impl FnOnce(&Runtime) -> Result<()>) -> std::process::ExitCode {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SYMRAIL_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
    let joined = Runtime::init();
    let rt = match joined {
        Ok(rt) => rt,
        Err(error) => {
            complain(&format!("joining: {error}"));
            return std::process::ExitCode::FAILURE;
        }
    };
    crate::path::check(&rt);
    let me = rt.my_pe();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        complain(&format!("PE {me}: panicked{}", being_done()));
    }));
    match work(&rt).and_then(|()| rt.finalize()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("PE {me}: {error}{}", being_done()));
            std::process::ExitCode::FAILURE
        }
    }
}

/// Prints a line in one write, so that lines of several PEs do not mix.
fn complain(line: &str) {
    // A failure is ignored: no other output is left for it.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The arguments as if each program were a binary of its own: the program's name, then its arguments.
pub fn args() -> impl Iterator<Item = String> {
    std::env::args().skip(1)
}

/// The argument at `index`, or a default.
///
/// # Panics
/// It is not of that type.
#[must_use]
pub fn arg<T: std::str::FromStr>(index: usize, default: T) -> T {
    match args().nth(index + 1) {
        Some(text) => text.parse().unwrap_or_else(|_| panic!("argument {index}: {text}")),
        None => default,
    }
}

/// The PE at this distance behind.
#[must_use]
pub fn neighbour(rt: &Runtime, distance: u32) -> u32 {
    (rt.my_pe() + distance) % rt.n_pes()
}

/// The PE at this distance before.
#[must_use]
pub fn before(rt: &Runtime, distance: u32) -> u32 {
    (rt.my_pe() + rt.n_pes() - distance % rt.n_pes()) % rt.n_pes()
}
