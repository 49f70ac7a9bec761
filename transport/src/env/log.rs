//! The log on standard error, for programs that have no log of their own.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Writes events that pass the filter to standard error, one line each. A filter that cannot be parsed lets warnings
/// pass, because reading the settings reports the error to the user.
#[must_use]
pub fn to_stderr(filter: &str) -> impl Subscriber + Send + Sync + 'static {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::stderr().is_terminal());
    log.with_writer(std::io::stderr).finish()
}

/// Starts this log, unless the program has one already.
pub fn start(filter: &str) {
    let _ = to_stderr(filter).try_init();
}

/// The filter in `SYMRAIL_LOG`, for programs that log before they read the settings. Empty counts as unset, because an
/// empty filter would suppress even errors.
#[must_use]
pub fn asked_for() -> Option<String> {
    std::env::var("SYMRAIL_LOG").ok().filter(|text| !text.is_empty())
}
