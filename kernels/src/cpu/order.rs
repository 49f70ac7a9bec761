//! Ordering and completion.

use std::sync::atomic::{Ordering, fence};

use symrail_proxy::channel::Request;
use symrail_transport::Operation;

use super::error::DeviceError;
use super::thread::{Thread, What};
use super::waiter::Waiter;

impl Thread<'_> {
    /// Orders this thread's earlier puts, AMOs and signals before its later ones, at each PE. Does not wait for them.
    ///
    /// # Errors
    /// The channel had no room in time.
    pub fn fence(&self) -> Result<(), DeviceError> {
        // For stores to mapped peers, and before requests that follow them.
        fence(Ordering::SeqCst);
        let Some(producer) = self.parts().producers.get(self.channel()) else { return Ok(()) };
        // Nothing to order when nothing was pushed since the last fence, or all of it is delivered.
        let pushed = producer.pushed();
        if pushed != self.fenced.get() && producer.completed() < pushed {
            let what = What { operation: Operation::Quiet, pe: self.my_pe(), bytes: 0 };
            self.fenced.set(self.issue(what, producer, &Request::Fence)? + 1);
        }
        Ok(())
    }

    /// Waits until everything that was pushed to any of the device's channels before the call is delivered, and
    /// everything that this thread stored to mapped peers is visible there. A repeat costs nothing.
    ///
    /// # Errors
    /// Operations failed since this thread was last quiet (all the same, everything is complete), or time is over.
    pub fn quiet(&self) -> Result<(), DeviceError> {
        fence(Ordering::SeqCst);
        let mut failed = None;
        for (channel, producer) in self.parts().producers.iter().enumerate() {
            let pushed = producer.pushed();
            let mut waiter = Waiter::new(self.view);
            while producer.completed() < pushed {
                if !waiter.pause() {
                    let left = pushed.saturating_sub(producer.completed());
                    return Err(
                        waiter.timed_out(format!("quiet, with {left} requests of channel {channel} undelivered,"))
                    );
                }
            }
            let errors = producer.errors();
            let count = errors - self.known_errors[channel].replace(errors);
            if count > 0 {
                failed.get_or_insert(DeviceError::FailedBeforeQuiet { count, channel });
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
