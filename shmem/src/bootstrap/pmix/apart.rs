//! PMIx calls that may wait for the process manager without a bound.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use symrail_transport::Pe;

use super::super::error::{Error, Result, Step};
use super::ffi;
use super::{KIND, REMEDY};
use crate::interrupt::{GoOn, InterruptPoll, POLL_INTERVAL};

/// Makes a call in a separate thread, and waits for it at most for `timeout`. After that, or after an interrupt, the
/// thread stays behind in the call.
///
/// # Errors
/// The time-out passed, the wait was interrupted, or the system refused the thread.
pub(super) fn call<T: Send + 'static>(
    pe: Pe,
    step: Step,
    go_on: Option<&GoOn>,
    timeout: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (answer, answered) = sync_channel(1);
    // If the caller has stopped waiting, it has dropped the receiver.
    let work = move || answer.send(call()).unwrap_or_default();
    let failed = |text: String| {
        let who = format!("PE {pe}");
        Error::Pmix { who, step, call: "a thread for PMIx", text, status: ffi::SUCCESS, remedy: REMEDY }
    };
    Builder::new().name(format!("symrail-{KIND}")).spawn(work).map_err(|error| failed(error.to_string()))?;
    let (begun, mut interrupt_poll) = (Instant::now(), InterruptPoll::new(go_on));
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        match answered.recv_timeout(if interrupt_poll.may_end() { left.min(POLL_INTERVAL) } else { left }) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(failed("it ended without an answer".into())),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(waited) = interrupt_poll.ended() {
                    return Err(Error::Interrupted { pe, step, waited });
                }
                if begun.elapsed() >= timeout {
                    let missing = "the process manager does not answer".into();
                    return Err(Error::Timeout { pe, step, seconds: timeout.as_secs(), missing });
                }
            }
        }
    }
}
