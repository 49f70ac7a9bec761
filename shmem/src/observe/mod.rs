//! Observing a job from outside: figures of the running PEs, and a trace of what they did.
//!
//! | file | concept |
//! |---|---|
//! | [`description`] | what a PE has and how it reaches the others; what a program may require of that |
//! | [`figures`] | what a PE tells about itself while it runs, and how others on its host read it (`symrail top`) |
//! | `reporter` | the thread that tells it, and tells endpoints of PEs that have left |
//! | `console` | warnings where the program listens to none |
//! | `trace` | `SYMRAIL_TRACE`: every work request on a time line, for Perfetto or Chrome |

pub(crate) mod console;
pub mod description;
pub mod figures;
mod reporter;
mod trace;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use symrail_core::lock;

pub(crate) use reporter::Reporter;
pub(crate) use trace::Trace;

/// What a PE shows of itself.
pub(crate) struct Observation {
    pub trace: Option<Trace>,
    /// What programs have noted of the phases of their work.
    phases: Mutex<Vec<Phase>>,
    pub _reporter: Option<Reporter>,
}

/// The most phases that are kept.
const MOST_PHASES: usize = 1 << 20;

/// A phase of a program's work: its name, when it began, how long it took.
pub(crate) type Phase = (&'static str, Instant, Duration);

impl Observation {
    pub fn new(trace: Option<Trace>, reporter: Option<Reporter>) -> Observation {
        Observation { trace, phases: Mutex::default(), _reporter: reporter }
    }

    /// Keeps a phase for the trace, if there is one.
    pub fn phase(&self, name: &'static str, begun: Instant, took: Duration) {
        if self.trace.is_some() {
            let mut phases = lock(&self.phases);
            if phases.len() < MOST_PHASES {
                phases.push((name, begun, took));
            }
        }
    }

    /// Takes what was kept.
    pub fn take_phases(&self) -> Vec<Phase> {
        std::mem::take(&mut lock(&self.phases))
    }

    /// Writes some of the trace, if there is one. That it cannot be written is no reason to fail.
    pub fn write(&self, write: impl FnOnce(&Trace) -> std::io::Result<()>) {
        let Some(trace) = &self.trace else { return };
        if let Err(error) = write(trace) {
            tracing::warn!(%error, "the trace could not be written");
        }
    }
}
