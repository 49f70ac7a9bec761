//! The contexts of a PE, up to the most that it can have at a time.

use std::collections::VecDeque;
use std::sync::Mutex;

use symrail_core::lock;
use symrail_transport::endpoint::command::Priority;

use super::context::ContextState;

/// Contexts that a PE can have at a time.
pub(crate) const MAX_CONTEXTS: usize = 1024;

/// The contexts that a runtime has, and can have.
pub(crate) struct Contexts {
    contexts: Box<[ContextState]>,
    /// Unused contexts. Contexts that have an endpoint already are first, those that share one are last.
    free: Mutex<VecDeque<usize>>,
}

impl Default for Contexts {
    fn default() -> Contexts {
        let contexts = (0..MAX_CONTEXTS).map(|_| ContextState::default()).collect();
        Contexts { contexts, free: Mutex::new((0..MAX_CONTEXTS).collect()) }
    }
}

impl Contexts {
    /// The number of an unused context; `None` if all are in use.
    pub fn take(&self) -> Option<usize> {
        lock(&self.free).pop_front()
    }

    /// The context with a number that [`Contexts::take`] has returned.
    #[inline]
    pub fn get(&self, number: usize) -> &ContextState {
        &self.contexts[number]
    }

    /// Returns a context that no thread uses any more.
    pub fn give_back(&self, number: usize) {
        let Some(context) = self.contexts.get(number) else { return };
        context.set_priority(Priority::Urgent);
        let mut free = lock(&self.free);
        if context.has_own_endpoint() { free.push_front(number) } else { free.push_back(number) }
    }
}
