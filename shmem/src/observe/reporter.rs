//! The thread that writes a PE's figures down, a few times a second, so that nothing on the way of an operation has to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::figures::{Figures, Page};
use crate::wire::Lanes;

const BETWEEN: Duration = Duration::from_millis(250);

/// The running thread; ends when dropped.
pub(crate) struct Reporter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts the thread. `figures` is what does not change.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn start(mut figures: Figures, lanes: Option<Lanes>) -> std::io::Result<Reporter> {
        let mut page = Page::create()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let joined = Instant::now();
        let report = move || {
            while !stopped.load(Ordering::Acquire) {
                figures.age_us = joined.elapsed().as_micros() as u64;
                figures.lanes = lanes.as_ref().map_or_else(Vec::new, Lanes::figures);
                if let Err(error) = page.write(&figures) {
                    tracing::warn!(%error, "nobody can look at this PE's figures from outside");
                    return;
                }
                std::thread::park_timeout(BETWEEN);
            }
        };
        let thread = std::thread::Builder::new().name("symrail-figures".into()).stack_size(64 << 10).spawn(report)?;
        Ok(Reporter { stop, thread: Some(thread) })
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread has no way to panic that is worth telling a second time.
            let _ = thread.join();
        }
    }
}
