//! PMIx calls that may wait for the process manager without a bound.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;

use symrail_transport::Pe;

use super::super::error::{Error, Result, Step};
use super::ffi;
use super::{KIND, REMEDY};
use crate::interrupt::{GoOn, InterruptPoll, POLL_INTERVAL};

/// Makes a call. If waits can be interrupted, a separate thread makes it; after an interrupt that thread stays behind
/// in the call.
///
/// # Errors
/// The wait was interrupted, or the system refused the thread.
pub(super) fn call<T: Send + 'static>(
    pe: Pe,
    step: Step,
    go_on: Option<&GoOn>,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let mut interrupt_poll = InterruptPoll::new(go_on);
    if !interrupt_poll.may_end() {
        return Ok(call());
    }
    let (answer, answered) = sync_channel(1);
    // If the caller has stopped waiting, it has dropped the receiver.
    let work = move || answer.send(call()).unwrap_or_default();
    let failed = |text: String| {
        let who = format!("PE {pe}");
        Error::Pmix { who, step, call: "a thread for PMIx", text, status: ffi::SUCCESS, remedy: REMEDY }
    };
    Builder::new().name(format!("symrail-{KIND}")).spawn(work).map_err(|error| failed(error.to_string()))?;
    loop {
        match answered.recv_timeout(POLL_INTERVAL) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(failed("it ended without an answer".into())),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(waited) = interrupt_poll.ended() {
                    return Err(Error::Interrupted { pe, step, waited });
                }
            }
        }
    }
}
