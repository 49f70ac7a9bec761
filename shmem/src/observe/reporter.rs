//! The thread that publishes a PE's figures a few times a second, so that no operation has to; it also reports PEs that
//! have left, as the bootstrap knows, to the endpoints.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::figures::{Figures, Page};
use crate::bootstrap::Bootstrap;
use crate::wire::Lanes;

const BETWEEN: Duration = Duration::from_millis(250);

/// The running thread; ends when dropped.
pub(crate) struct Reporter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts the thread. `figures` holds the constant figures; `lanes` are those of the endpoints, if there are any.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn start(
        mut figures: Figures,
        lanes: Option<Lanes>,
        bootstrap: Arc<Mutex<Box<dyn Bootstrap>>>,
    ) -> std::io::Result<Reporter> {
        let mut page = Some(Page::create()?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let joined = Instant::now();
        let report = move || {
            while !stopped.load(Ordering::Acquire) {
                figures.age_us = joined.elapsed().as_micros() as u64;
                figures.lanes = lanes.as_ref().map_or_else(Vec::new, Lanes::figures);
                let written = page.as_mut().map_or(Ok(()), |page| page.write(&figures));
                if let Err(error) = written {
                    tracing::warn!(%error, "nobody can read this PE's figures from outside");
                    page = None;
                }
                // If another thread is in a step of the bootstrap, that thread gets the report there.
                if let (Some(lanes), Ok(mut bootstrap)) = (&lanes, bootstrap.try_lock()) {
                    bootstrap.lost_pes().iter().for_each(|lost| lanes.has_left(lost.pe, &lost.why));
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
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}
