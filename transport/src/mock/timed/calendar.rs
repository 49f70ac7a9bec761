//! The calendar of events.

use std::collections::BTreeMap;

/// Events in the order of their times. Events of the same time keep the order in which they were planned.
pub struct Calendar<E> {
    events: BTreeMap<(u64, u64), E>,
    planned: u64,
}

impl<E> Calendar<E> {
    /// Plans an event.
    pub fn at(&mut self, time: u64, event: E) {
        self.planned += 1;
        self.events.insert((time, self.planned), event);
    }

    /// The next event, and its time.
    pub fn take(&mut self) -> Option<(u64, E)> {
        self.events.pop_first().map(|((time, _), event)| (time, event))
    }

    /// The number of events planned so far.
    #[must_use]
    pub fn planned(&self) -> u64 {
        self.planned
    }
}

impl<E> Default for Calendar<E> {
    fn default() -> Self {
        Calendar { events: BTreeMap::new(), planned: 0 }
    }
}
