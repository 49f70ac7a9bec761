//! Looking at a job from outside: figures of the running PEs, and a trace of what they did.
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

pub(crate) use reporter::Reporter;
pub(crate) use trace::Trace;

/// What a PE shows of itself.
pub(crate) struct Observation {
    pub trace: Option<Trace>,
    pub _reporter: Option<Reporter>,
}

impl Observation {
    /// Writes some of the trace, if there is one. That it cannot be written is no reason to fail.
    pub fn write(&self, write: impl FnOnce(&Trace) -> std::io::Result<()>) {
        let Some(trace) = &self.trace else { return };
        if let Err(error) = write(trace) {
            tracing::warn!(%error, "the trace could not be written");
        }
    }
}
