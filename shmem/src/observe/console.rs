//! Warnings of a library in a program without a subscriber.

use symrail_transport::env::log;
use tracing::subscriber::NoSubscriber;

/// Runs work whose warnings must reach the user: if the program has no subscriber for this thread, they go to standard
/// error, one line each. `SYMRAIL_LOG` selects them. The function installs nothing: the program may still install its
/// own subscriber.
pub(crate) fn on_stderr<R>(work: impl FnOnce() -> R) -> R {
    if !tracing::dispatcher::get_default(|dispatch| dispatch.is::<NoSubscriber>()) {
        return work();
    }
    let filter = log::asked_for().unwrap_or_else(|| "warn".into());
    tracing::subscriber::with_default(log::to_stderr(&filter), work)
}
