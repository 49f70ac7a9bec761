//! The log on standard error, for programs that have no log of their own.

use std::cell::Cell;
use std::fmt::{Debug, Write};
use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// Writes events that pass the filter to standard error, one line each. A filter that cannot be parsed lets warnings
/// pass, because reading the settings reports the error to the user.
#[must_use]
pub fn to_stderr(filter: &str) -> impl Subscriber + Send + Sync + 'static {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("warn"));
    let lines = fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(AtAnyTime(lines)).with(filter)
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

/// A layer that formats events in a buffer of the thread, for exit handlers and destructors, too: they run when that
/// buffer is gone, and the layer would panic.
struct AtAnyTime<L>(L);

/// Notes when the thread's values are destroyed.
struct Noted;

impl Drop for Noted {
    fn drop(&mut self) {
        GONE.set(true);
    }
}

thread_local! {
    static GONE: Cell<bool> = const { Cell::new(false) };
    static NOTED: Noted = const { Noted };
}

impl<S: Subscriber + for<'span> LookupSpan<'span>, L: Layer<S>> Layer<S> for AtAnyTime<L> {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if GONE.get() {
            let mut line = Line(format!("{:>5} {}:", event.metadata().level(), event.metadata().target()));
            event.record(&mut line);
            eprintln!("{}", line.0);
            return;
        }
        self.0.on_event(event, context);
        // Values are destroyed in the reverse order of their first use, this one before the buffer.
        let _ = NOTED.try_with(|_| ());
    }
}

/// An event as text.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AtTheEnd;

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            tracing::warn!(answer = 42, "at the end of a thread");
        }
    }

    thread_local! {
        static LAST: AtTheEnd = const { AtTheEnd };
    }

    #[test]
    fn a_destructor_may_log_when_the_buffer_is_gone() {
        start("warn");
        let thread = std::thread::spawn(|| {
            // Used first, destroyed last.
            LAST.with(|_| ());
            tracing::warn!("in the midst of a thread");
        });
        assert!(thread.join().is_ok());
    }
}
