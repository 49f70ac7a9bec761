//! Warnings of a library whose program listens to none.

use std::io::IsTerminal;

use symrail_transport::env::Settings;
use tracing::subscriber::NoSubscriber;
use tracing_subscriber::EnvFilter;

/// Runs something whose warnings the user must hear: if the program has no subscriber for this thread, they go to
/// standard error, one line each. `SYMRAIL_LOG` says what goes there. Nothing is installed: the program may still
/// install a subscriber of its own.
pub(crate) fn heard<R>(work: impl FnOnce() -> R) -> R {
    if !tracing::dispatcher::get_default(|dispatch| dispatch.is::<NoSubscriber>()) {
        return work();
    }
    let asked = if Settings::is_set("SYMRAIL_LOG") { std::env::var("SYMRAIL_LOG").ok() } else { None };
    let filter = asked.and_then(|text| EnvFilter::try_new(text).ok()).unwrap_or_else(|| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::stderr().is_terminal());
    tracing::subscriber::with_default(log.with_writer(std::io::stderr).finish(), work)
}
