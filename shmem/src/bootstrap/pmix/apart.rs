//! Calls of PMIx's that may wait for the process manager, which nothing of PMIx's ends.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;

use symrail_transport::Pe;

use super::super::error::{Error, Result, Step};
use super::ffi;
use super::{KIND, REMEDY};
use crate::interrupt::{GoOn, InterruptPoll, POLL_INTERVAL};

/// Makes a call. Where waits may be ended, a thread of its own makes it, which stays behind in the call if the wait was
/// ended.
///
/// # Errors
/// The wait was ended, or the system has no thread for it.
pub(super) fn call<T: Send + 'static>(
    pe: Pe,
    step: Step,
    go_on: Option<&GoOn>,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if go_on.is_none() {
        return Ok(call());
    }
    let (answer, answered) = sync_channel(1);
    // Whoever has stopped waiting has dropped the other end.
    let work = move || answer.send(call()).unwrap_or_default();
    let failed = |text: String| {
        let who = format!("PE {pe}");
        Error::Pmix { who, step, call: "a thread for PMIx", text, status: ffi::SUCCESS, remedy: REMEDY }
    };
    Builder::new().name(format!("symrail-{KIND}")).spawn(work).map_err(|error| failed(error.to_string()))?;
    let mut interrupt_poll = InterruptPoll::new(go_on);
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
