//! Observing a job from outside: figures of the running PEs, and a trace of what they did.
//!
//! | file | concept |
//! |---|---|
//! | [`description`] | a PE, its paths to the others, and a program's requirements on them |
//! | [`figures`] | the figures that a running PE publishes, and how other processes of its host read them (`symrail top`) |
//! | `reporter` | the thread that publishes them, and reports PEs that have left to the endpoints |
//! | `console` | warnings of programs without a subscriber |
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

/// What others can observe of a PE.
pub(crate) struct Observation {
    pub trace: Option<Trace>,
    /// The phases that programs have recorded.
    phases: Mutex<Vec<Phase>>,
    reporter: Mutex<Option<Reporter>>,
}

/// The most phases that are kept.
const MOST_PHASES: usize = 1 << 20;

/// A phase of a program's work: its name, when it began, how long it took.
pub(crate) type Phase = (&'static str, Instant, Duration);

impl Observation {
    pub fn new(trace: Option<Trace>, reporter: Option<Reporter>) -> Observation {
        Observation { trace, phases: Mutex::default(), reporter: Mutex::new(reporter) }
    }

    /// Ends the publication of figures.
    pub fn end(&self) {
        drop(lock(&self.reporter).take());
    }

    /// Records a phase for the trace, if there is one.
    pub fn phase(&self, name: &'static str, begun: Instant, took: Duration) {
        if self.trace.is_some() {
            let mut phases = lock(&self.phases);
            if phases.len() < MOST_PHASES {
                phases.push((name, begun, took));
            }
        }
    }

    /// Takes the recorded phases.
    pub fn take_phases(&self) -> Vec<Phase> {
        std::mem::take(&mut lock(&self.phases))
    }

    /// Writes to the trace, if there is one. A failure to write is only a warning.
    pub fn write(&self, write: impl FnOnce(&Trace) -> std::io::Result<()>) {
        let Some(trace) = &self.trace else { return };
        if let Err(error) = write(trace) {
            tracing::warn!(%error, "the trace could not be written");
        }
    }
}
