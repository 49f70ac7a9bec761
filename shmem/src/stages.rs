//! The durations of the stages of joining: one line for `SYMRAIL_LOG=info`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::bootstrap::{Bootstrap, Result, Traffic};

/// A clock for the stages of joining.
pub(crate) struct Stages {
    begun: Instant,
    last: Instant,
    text: String,
}

impl Stages {
    /// Joining begins.
    pub fn begin() -> Stages {
        let now = Instant::now();
        Stages { begun: now, last: now, text: String::new() }
    }

    /// A stage has ended.
    pub fn ended(&mut self, stage: &str) {
        let now = Instant::now();
        let comma = if self.text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{comma}{stage} {:.1}", millis(now - self.last));
        self.last = now;
    }

    /// Makes a collective step that is a stage by itself; errors and warnings name it.
    ///
    /// # Errors
    /// The step's.
    pub fn step<T>(
        &mut self,
        stage: &'static str,
        bootstrap: &mut dyn Bootstrap,
        take: impl FnOnce(&mut dyn Bootstrap) -> Result<T>,
    ) -> Result<T> {
        bootstrap.set_stage(Some(stage));
        let result = take(bootstrap).map_err(|error| error.in_stage(stage));
        bootstrap.set_stage(None);
        self.ended(stage);
        result
    }

    /// Joining has ended: logs its duration, and its traffic in the bootstrap.
    pub fn log(&self, n_pes: u32, Traffic { messages, bytes }: Traffic) {
        tracing::info!(
            "joined in {:.1} ms as one of {n_pes} PEs: {}; {messages} messages of {bytes} bytes",
            millis(self.begun.elapsed()),
            self.text
        );
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
