//! The delivery of a single operation, which can be tested while others are in flight.

use crate::error::Result;
use crate::operations::Operations;
use crate::wire::Tracked;

/// The delivery of one operation; complete at once for mapped memory.
///
/// A quiet of all operations would also wait for operations to a dead PE.
#[must_use]
pub struct Delivery<'rt> {
    ops: Operations<'rt>,
    /// `None` once the outcome was returned.
    tracked: Option<Tracked>,
}

impl<'rt> Delivery<'rt> {
    pub(crate) fn new(ops: Operations<'rt>, tracked: Option<Tracked>) -> Delivery<'rt> {
        Delivery { ops, tracked }
    }

    /// Whether the data is in the target's memory and will not be sent again. Then the source may be reused, and so may
    /// the target memory. Makes no progress by itself.
    ///
    /// # Errors
    /// The operation's error, returned once.
    pub fn is_done(&mut self) -> Result<bool> {
        let Some(tracked) = &self.tracked else { return Ok(true) };
        let Some(end) = self.ops.on_wire()?.take_end(tracked) else { return Ok(false) };
        self.tracked = None;
        end.map(|()| true)
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        if let (Some(tracked), Some(wire)) = (&self.tracked, self.ops.on_wire_if_any()) {
            wire.abandon(tracked);
        }
    }
}
