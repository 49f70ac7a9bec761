//! The delivery of a single operation, which can be tested while others are in flight.

use crate::error::Result;
use crate::operations::Operations;
use crate::wire::{Sent, Tracked};

/// The delivery of one operation; complete at once for mapped memory.
///
/// A quiet of all operations would also wait for operations to a dead PE.
#[must_use]
pub struct Delivery<'rt> {
    ops: Operations<'rt>,
    /// `None` once the outcome was returned.
    sent: Option<Sent>,
}

impl<'rt> Delivery<'rt> {
    pub(crate) fn new(ops: Operations<'rt>, tracked: Option<Tracked>) -> Delivery<'rt> {
        Delivery { ops, sent: tracked.map(Sent::Tracked) }
    }

    pub(crate) fn of_counted(ops: Operations<'rt>, sent: Option<Sent>) -> Delivery<'rt> {
        Delivery { ops, sent }
    }

    /// Whether the data is in the target's memory and will not be sent again. Then the source may be reused, and so may
    /// the target memory. For a counted put ([`Runtime::put_counted`]): whether it and all counted puts before it have
    /// left this PE, so that their sources may be reused. Makes no progress by itself.
    ///
    /// # Errors
    /// The operation's error, returned once.
    ///
    /// [`Runtime::put_counted`]: crate::Runtime::put_counted
    pub fn is_done(&mut self) -> Result<bool> {
        let end = match &self.sent {
            None => return Ok(true),
            Some(Sent::Tracked(tracked)) => self.ops.on_wire()?.take_end(tracked),
            Some(Sent::Counted) => self.ops.on_wire()?.poll_counted().map(|left| left.then_some(())).transpose(),
        };
        let Some(end) = end else { return Ok(false) };
        self.sent = None;
        end.map(|()| true)
    }

    /// Waits until [`Delivery::is_done`] is true.
    ///
    /// # Errors
    /// The operation's error, or that of another operation that this waits for.
    pub fn wait(mut self) -> Result<()> {
        if self.is_done()? {
            return Ok(());
        }
        match self.sent {
            Some(Sent::Counted) => self.ops.counted_have_left(),
            _ => self.ops.quiet().and_then(|()| self.is_done()).map(drop),
        }
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        if let (Some(Sent::Tracked(tracked)), Some(wire)) = (&self.sent, self.ops.on_wire_if_any()) {
            wire.abandon(tracked);
        }
    }
}
