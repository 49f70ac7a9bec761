//! Launching the threads of a grid.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};
use std::time::Duration;

use super::block::Block;
use super::error::{DeviceError, LaunchError};
use super::thread::Thread;
use super::view::DeviceView;

/// How often [`Grid::launch_watched`] calls its function.
const WATCH_INTERVAL: Duration = Duration::from_millis(10);

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// The number of blocks.
    pub blocks: usize,
    /// Threads per block.
    pub threads_per_block: usize,
}

impl Grid {
    /// Threads in all.
    #[must_use]
    pub fn threads(self) -> usize {
        self.blocks.saturating_mul(self.threads_per_block)
    }

    /// Runs `kernel` on every thread of the grid and returns their results, in the order of [`Thread::thread_id`]. It
    /// returns when all threads have ended; it does not wait for their unfinished operations.
    ///
    /// # Errors
    /// The first error or panic of a thread, or the grid could not be launched as a whole.
    pub fn launch<R, E, K>(self, view: &DeviceView, kernel: K) -> Result<Vec<R>, LaunchError<E>>
    where
        R: Send,
        E: From<DeviceError> + Send,
        K: Fn(&Thread<'_>) -> Result<R, E> + Sync,
    {
        self.launch_watched(view, kernel, || {})
    }

    /// As [`Grid::launch`]; the calling thread calls `watch` every 10 ms until all threads have ended.
    ///
    /// # Errors
    /// As for [`Grid::launch`].
    pub fn launch_watched<R, E, K>(
        self,
        view: &DeviceView,
        kernel: K,
        mut watch: impl FnMut(),
    ) -> Result<Vec<R>, LaunchError<E>>
    where
        R: Send,
        E: From<DeviceError> + Send,
        K: Fn(&Thread<'_>) -> Result<R, E> + Sync,
    {
        let Grid { blocks, threads_per_block } = self;
        if self.threads() == 0 {
            return Err(LaunchError::Empty { blocks, threads_per_block });
        }
        let block_table: Vec<Block> = (0..blocks).map(|id| Block::new(id, threads_per_block)).collect();
        let first_error = Mutex::new(None);
        let (unfinished, launcher) = (AtomicUsize::new(0), thread::current());
        let report = |error: LaunchError<E>| {
            if let Ok(mut slot) = first_error.lock() {
                slot.get_or_insert(error);
            }
        };
        let results: Vec<Option<R>> = thread::scope(|scope| {
            let mut running = Vec::with_capacity(self.threads());
            for id in 0..self.threads() {
                let block = &block_table[id / threads_per_block];
                let (kernel, report) = (&kernel, &report);
                unfinished.fetch_add(1, Ordering::Relaxed);
                let ended = Ended { unfinished: &unfinished, launcher: &launcher };
                let work = move || {
                    let _ended = ended;
                    let mut leave = LeaveBlock { block, well: false };
                    match kernel(&Thread::new(view, self, block, id)) {
                        Ok(result) => {
                            leave.well = true;
                            Some(result)
                        }
                        Err(error) => {
                            report(LaunchError::Kernel { thread: id, error });
                            None
                        }
                    }
                };
                match Builder::new().name(format!("device-{id}")).spawn_scoped(scope, work) {
                    Ok(handle) => running.push(handle),
                    Err(source) => {
                        report(LaunchError::Spawn { thread: id, source });
                        block_table.iter().for_each(|block| block.leave(false));
                        break;
                    }
                }
            }
            while unfinished.load(Ordering::Acquire) > 0 {
                thread::park_timeout(WATCH_INTERVAL);
                watch();
            }
            let join = |(id, handle): (usize, thread::ScopedJoinHandle<'_, Option<R>>)| {
                handle.join().unwrap_or_else(|_| {
                    report(LaunchError::Panicked { thread: id });
                    None
                })
            };
            running.into_iter().enumerate().map(join).collect()
        });
        match first_error.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => Ok(results.into_iter().flatten().collect()),
        }
    }
}

/// Tells the launching thread when a thread ends, or could not be started.
struct Ended<'a> {
    unfinished: &'a AtomicUsize,
    launcher: &'a thread::Thread,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if self.unfinished.fetch_sub(1, Ordering::Release) == 1 {
            self.launcher.unpark();
        }
    }
}

/// Leaves the block when the kernel ends, even by a panic.
struct LeaveBlock<'a> {
    block: &'a Block,
    well: bool,
}

impl Drop for LeaveBlock<'_> {
    fn drop(&mut self) {
        self.block.leave(self.well);
    }
}
