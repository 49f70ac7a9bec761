//! The flows of contexts: as many as a PE can have at a time.

use std::collections::VecDeque;
use std::sync::Mutex;

use symrail_core::lock;

use super::flow::Flow;

/// Contexts that a PE can have at a time.
pub(crate) const MAX_CONTEXTS: usize = 1024;

/// The contexts that a runtime has, and can have.
pub(crate) struct Contexts {
    flows: Box<[Flow]>,
    /// Those that are not in use. What has an endpoint already comes first, what shares one last.
    free: Mutex<VecDeque<usize>>,
}

impl Default for Contexts {
    fn default() -> Contexts {
        let flows = (0..MAX_CONTEXTS).map(|_| Flow::default()).collect();
        Contexts { flows, free: Mutex::new((0..MAX_CONTEXTS).collect()) }
    }
}

impl Contexts {
    /// One that is not in use, with its number; `None` if all are.
    pub fn take(&self) -> Option<(usize, &Flow)> {
        let number = lock(&self.free).pop_front()?;
        Some((number, self.flows.get(number)?))
    }

    /// Gives one back, which nobody uses any more.
    pub fn give_back(&self, number: usize) {
        let Some(flow) = self.flows.get(number) else { return };
        let mut free = lock(&self.free);
        if flow.has_own_endpoint() { free.push_front(number) } else { free.push_back(number) }
    }
}
