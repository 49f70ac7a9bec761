//! Waits that end early: by a signal (Ctrl-C), or because the caller's time is up.
//!
//! Every call that may wait releases Python's lock, and waits in the runtime, which calls [`go_on`] now and then.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use symrail::with_timeout;

use crate::errors::{Kind, failed, raise};

/// How often a waiting thread checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// The exception that a signal's handler has raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The time until the next call; `None` if the calling thread must stop waiting.
pub fn go_on() -> Option<Duration> {
    // When Python has ended or is about to, no code can receive an exception.
    match Python::try_attach(|py| py.check_signals()) {
        Some(Err(exception)) => {
            // An exit handler may wait when the thread's values are gone; nobody takes the exception then.
            let _ = RAISED.try_with(|raised| raised.replace(Some(exception)));
            None
        }
        _ => Some(POLL_INTERVAL),
    }
}

/// The exception that ended the wait, if it was a signal's.
pub fn take() -> Option<PyErr> {
    RAISED.try_with(RefCell::take).ok().flatten()
}

/// Waits until a condition holds, while Python's other threads run.
pub fn until<E: Send>(py: Python<'_>, mut is_over: impl FnMut() -> Result<bool, E> + Send) -> PyResult<Result<(), E>> {
    py.detach(|| {
        let mut look = Instant::now() + POLL_INTERVAL;
        loop {
            match is_over() {
                Ok(false) => std::thread::yield_now(),
                Ok(true) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
            if Instant::now() >= look {
                if go_on().is_none()
                    && let Some(raised) = take()
                {
                    return Err(raised);
                }
                look = Instant::now() + POLL_INTERVAL;
            }
        }
    })
}

/// Runs work that may wait, for at most `seconds`, while Python's other threads run.
pub fn waiting<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl FnOnce() -> symrail::Result<T> + Send,
) -> PyResult<T> {
    let timeout = parse_timeout(timeout)?;
    py.detach(|| with_timeout(timeout, wait)).map_err(failed)
}

/// A time-out that a caller names in seconds.
pub fn parse_timeout(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let parsed = timeout.map(Duration::try_from_secs_f64).transpose();
    parsed.map_err(|error| raise(Kind::Argument, &format!("timeout: {error}")))
}
