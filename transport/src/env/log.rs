//! The log on standard error, for programs that have no log of their own.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Writes what the filter lets through to standard error, a line for each event. A filter that cannot be read lets
/// warnings through: reading the settings is what tells the user.
#[must_use]
pub fn to_stderr(filter: &str) -> impl Subscriber + Send + Sync + 'static {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::stderr().is_terminal());
    log.with_writer(std::io::stderr).finish()
}

/// Logs so, unless the program has a log already.
pub fn start(filter: &str) {
    let _ = to_stderr(filter).try_init();
}

/// The filter that `SYMRAIL_LOG` asks for, for those who log before they read the settings. Empty counts as unset: a
/// filter of nothing would not even let errors through.
#[must_use]
pub fn asked_for() -> Option<String> {
    std::env::var("SYMRAIL_LOG").ok().filter(|text| !text.is_empty())
}
