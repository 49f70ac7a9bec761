//! Whether waiting threads share their cores with one another, because PEs outnumber the cores.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use symrail_core::clock;

/// A yield that takes so long has let another thread run, which soon waited itself.
const OTHERS_RAN: Duration = Duration::from_micros(3);
/// A yield that takes so long has let a thread run that computes: the core comes back when its time slice is over.
const COMPUTES: Duration = Duration::from_micros(500);
/// Yields in turn that let nobody run before a thread is taken to have its core for itself.
const ALONE: u32 = 32;

/// What the yields of a PE's waiting threads have told.
///
/// Where PEs that wait share cores, each polls in vain while the one that it waits for needs the core: who yields after
/// each poll in vain gets its answer sooner. Who has a core for itself, or shares it with threads that compute, would
/// only lose by that.
#[derive(Debug, Default)]
pub(super) struct SharedCores {
    shared: AtomicBool,
    /// Yields in turn that let nobody run.
    short: AtomicU32,
}

impl SharedCores {
    /// Whether to yield after each poll in vain.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Lets others run. Returns the time after it.
    pub fn yield_now(&self) -> Instant {
        let before = clock::now();
        std::thread::yield_now();
        let back = clock::now();
        self.learn(back.saturating_duration_since(before));
        back
    }

    /// A yield took so long.
    fn learn(&self, took: Duration) {
        let short = if took < OTHERS_RAN { self.short.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.short.store(short, Ordering::Relaxed);
        let shared = took < COMPUTES && short < ALONE && (self.are_there() || short == 0);
        self.shared.store(shared, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_tell_who_else_runs() {
        let cores = SharedCores::default();
        let micros = Duration::from_micros;
        cores.learn(micros(1));
        assert!(!cores.are_there(), "nobody else ran");
        cores.learn(micros(40));
        assert!(cores.are_there(), "somebody ran, and waited again soon");
        (1..ALONE).for_each(|_| cores.learn(micros(0)));
        assert!(cores.are_there(), "others may just be busy");
        cores.learn(micros(0));
        assert!(!cores.are_there(), "nobody else runs any more");
        cores.learn(micros(40));
        cores.learn(micros(3000));
        assert!(!cores.are_there(), "who ran computes");
    }
}
