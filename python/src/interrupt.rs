//! Waits that end early: by a signal (Ctrl-C), or because the caller's time is up.
//!
//! Every call that may wait releases Python's lock, and waits in the runtime, which calls [`go_on`] now and then.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::{Kind, failed, raise};

/// How often a waiting thread checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// The deadline of the caller.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The exception that a signal's handler has raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The time until the next call; `None` if the calling thread must stop waiting.
pub fn go_on() -> Option<Duration> {
    let left = match DEADLINE.get().map(|deadline| deadline.saturating_duration_since(Instant::now())) {
        Some(Duration::ZERO) => return None,
        Some(left) => left.min(POLL_INTERVAL),
        None => POLL_INTERVAL,
    };
    // When Python has ended or is about to, no code can receive an exception.
    match Python::try_attach(|py| py.check_signals()) {
        Some(Err(exception)) => {
            RAISED.set(Some(exception));
            None
        }
        _ => Some(left),
    }
}

/// The exception that ended the wait, if it was a signal's.
pub fn take() -> Option<PyErr> {
    RAISED.take()
}

/// Waits until a condition holds, while Python's other threads run.
pub fn until<E: Send>(py: Python<'_>, mut is_over: impl FnMut() -> Result<bool, E> + Send) -> PyResult<Result<(), E>> {
    DEADLINE.set(None);
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
    let limit = limit_of(timeout)?;
    py.detach(|| within(limit, wait)).map_err(failed)
}

/// The time that a caller names in seconds.
pub fn limit_of(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let limit = timeout.map(Duration::try_from_secs_f64).transpose();
    limit.map_err(|error| raise(Kind::Argument, &format!("timeout: {error}")))
}

/// Runs work on this thread whose waits in the runtime end after this time altogether; `None`: as they do otherwise.
pub fn within<T>(limit: Option<Duration>, work: impl FnOnce() -> T) -> T {
    DEADLINE.set(limit.and_then(|limit| Instant::now().checked_add(limit)));
    let done = work();
    DEADLINE.set(None);
    done
}
