//! Warnings of a library whose program listens to none.

use symrail_transport::env::log;
use tracing::subscriber::NoSubscriber;

/// Runs something whose warnings the user must hear: if the program has no subscriber for this thread, they go to
/// standard error, one line each. `SYMRAIL_LOG` says what goes there. Nothing is installed: the program may still
/// install a subscriber of its own.
pub(crate) fn heard<R>(work: impl FnOnce() -> R) -> R {
    if !tracing::dispatcher::get_default(|dispatch| dispatch.is::<NoSubscriber>()) {
        return work();
    }
    let filter = log::asked_for().unwrap_or_else(|| "warn".into());
    tracing::subscriber::with_default(log::to_stderr(&filter), work)
}
