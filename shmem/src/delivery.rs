//! The delivery of a single operation, which can be tested while others are in flight.

use crate::error::Result;
use crate::operations::Operations;
use crate::runtime::Runtime;
use crate::wire::{Sent, Tracked};

/// The delivery of one operation; complete at once for mapped memory.
///
/// A quiet of all operations would also wait for operations to a dead PE.
#[must_use]
pub struct Delivery {
    /// `None` for mapped memory, and once the outcome was returned.
    under_way: Option<UnderWay>,
}

/// An operation on the wire, which keeps its runtime alive.
struct UnderWay {
    sent: Sent,
    /// The number of its context; `None` for the default context.
    context: Option<usize>,
    runtime: Runtime,
}

impl UnderWay {
    fn ops(&self) -> Operations<'_> {
        self.context.map_or_else(|| self.runtime.operations(), |number| Operations::on(self.runtime.comm(), number))
    }
}

impl Delivery {
    pub(crate) fn new(runtime: &Runtime, context: Option<usize>, tracked: Option<Tracked>) -> Delivery {
        Delivery::of_counted(runtime, context, tracked.map(Sent::Tracked))
    }

    pub(crate) fn of_counted(runtime: &Runtime, context: Option<usize>, sent: Option<Sent>) -> Delivery {
        Delivery { under_way: sent.map(|sent| UnderWay { sent, context, runtime: runtime.clone() }) }
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
        let Some(under_way) = &self.under_way else { return Ok(true) };
        let wire = under_way.ops().on_wire()?;
        let end = match &under_way.sent {
            Sent::Tracked(tracked) => wire.take_end(tracked),
            Sent::Counted => wire.poll_counted().map(|left| left.then_some(())).transpose(),
        };
        let Some(end) = end else { return Ok(false) };
        self.under_way = None;
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
        match &self.under_way {
            None => Ok(()),
            Some(under_way) if matches!(under_way.sent, Sent::Counted) => under_way.ops().counted_have_left(),
            Some(under_way) => under_way.ops().quiet().and_then(|()| self.is_done()).map(drop),
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(under_way) = &self.under_way else { return };
        if let (Sent::Tracked(tracked), Some(wire)) = (&under_way.sent, under_way.ops().on_wire_if_any()) {
            wire.abandon(tracked);
        }
    }
}
