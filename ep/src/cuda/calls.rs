//! The sequence of high-throughput calls, as the host has launched them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::layout::high_throughput::COMBINE;
use crate::error::{Error, Result};

/// The kinds of calls, as headers name them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Dispatch = 1,
    Again,
    Combine = COMBINE as isize,
}

impl Call {
    /// Whether its routes are new.
    pub fn has_new_routes(self) -> bool {
        self == Call::Dispatch
    }
}

/// The calls so far.
#[derive(Default)]
pub(super) struct Calls {
    /// Whether there is a dispatch that was neither received nor abandoned.
    open: AtomicBool,
    /// Whether the last call was a dispatch.
    dispatched: AtomicBool,
    /// The number of dispatches outside of graphs.
    tickets: AtomicU64,
    /// The last call's number among them; 0 for combines and captured calls.
    ticket: AtomicU64,
}

impl Calls {
    /// A call has begun.
    pub fn begin(&self, call: Call, ticket: u64) {
        self.ticket.store(ticket, Ordering::Relaxed);
        self.open.store(true, Ordering::Relaxed);
        self.dispatched.store(call != Call::Combine, Ordering::Relaxed);
    }

    /// The ticket of a new dispatch, by which the host will know its counts.
    pub fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The last call was refused: other ranks may not have ended their earlier calls.
    pub fn refused(&self) {
        self.dispatched.store(false, Ordering::Relaxed);
    }

    /// The ticket of the last call; 0 if the host cannot wait for its counts.
    pub fn ticket(&self) -> u64 {
        self.ticket.load(Ordering::Relaxed)
    }

    /// Ends the open call. Returns whether there was one.
    pub fn end(&self) -> bool {
        self.open.swap(false, Ordering::Relaxed)
    }

    /// Refuses to receive if no dispatch is open.
    pub fn must_be_open(&self) -> Result<()> {
        if self.open.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Order { what: "receive follows a dispatch that was not refused, once" })
    }

    /// Refuses access to the memory for rows to combine while other ranks may read the rows of an earlier combine
    /// there. A dispatch ends only when all ranks have ended their earlier calls.
    pub fn must_have_dispatched(&self) -> Result<()> {
        if self.dispatched.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Order {
            what: "rows to combine are written in place after a dispatch, and before any other combine; another \
                   combine takes rows of the caller's own memory",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dispatch_is_received_and_only_once() {
        let calls = Calls::default();
        assert!(calls.must_be_open().is_err() && calls.ticket() == 0);
        let ticket = calls.next_ticket();
        calls.begin(Call::Dispatch, ticket);
        assert!(ticket != 0 && calls.ticket() == ticket);
        assert!(calls.must_be_open().is_ok());
        assert!(calls.end() && !calls.end());
        assert!(matches!(calls.must_be_open(), Err(Error::Order { .. })));
    }

    #[test]
    fn rows_are_combined_in_place_once_behind_a_dispatch() {
        let calls = Calls::default();
        assert!(calls.must_have_dispatched().is_err(), "there was no dispatch");
        for dispatch in [Call::Dispatch, Call::Again] {
            calls.begin(dispatch, 0);
            assert!(calls.must_have_dispatched().is_ok());
            calls.end();
            assert!(calls.must_have_dispatched().is_ok(), "a received dispatch");
            calls.begin(Call::Combine, 0);
            calls.end();
            assert!(matches!(calls.must_have_dispatched(), Err(Error::Order { .. })), "others may read them still");
        }
        calls.begin(Call::Dispatch, 1);
        calls.refused();
        assert!(calls.must_have_dispatched().is_err(), "others may not have announced anything");
    }
}
