//! An operation whose delivery is asked for by itself, while others go on.

use crate::error::Result;
use crate::operations::Operations;
use crate::wire::Tracked;

/// The delivery of one operation; done at once on memory that is mapped.
///
/// A quiet of all operations would also wait for those to a PE that is gone.
#[must_use]
pub struct Delivery<'rt> {
    ops: Operations<'rt>,
    /// Until its end was told.
    tracked: Option<Tracked>,
}

impl<'rt> Delivery<'rt> {
    pub(crate) fn new(ops: Operations<'rt>, tracked: Option<Tracked>) -> Delivery<'rt> {
        Delivery { ops, tracked }
    }

    /// Whether what was put is in the target's memory, and nothing will send it again: its source may be used again,
    /// and so may the memory that it was put to. Makes no progress by itself.
    ///
    /// # Errors
    /// Why the operation failed, told once.
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
