//! Flushes the program's output before we end its process.
//!
//! A thread may hold a stream's lock for ever (it reads from a terminal, or was stopped while it printed), and a pipe
//! may be full without a reader. Neither may keep a job from ending, so flushing is limited to one second.

use std::ffi::c_int;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use libc::FILE;

const TIME_LIMIT: Duration = Duration::from_secs(1);

unsafe extern "C" {
    static stdout: *mut FILE;
    static stderr: *mut FILE;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
}

/// Standard output and standard error.
fn standard() -> [*mut FILE; 2] {
    // SAFETY: the C library has set them before any of our code runs.
    unsafe { [stdout, stderr] }
}

/// Flushes all streams, the standard ones first.
pub fn write_out() {
    let until = Instant::now() + TIME_LIMIT;
    // This thread takes the locks, since it may hold one already: the call may come from the midst of printing.
    let locked = standard().map(|stream| lock(stream, until));
    let flush = move || {
        for (stream, locked) in standard().into_iter().zip(locked) {
            if locked {
                // SAFETY: the thread that waits for this thread holds the stream's lock.
                unsafe { fflush_unlocked(stream) };
            }
        }
    };
    if !is_done_by(until, flush) {
        return;
    }
    for (stream, locked) in standard().into_iter().zip(locked) {
        if locked {
            // SAFETY: this thread holds the stream's lock.
            unsafe { funlockfile(stream) };
        }
    }
    // SAFETY: null stands for all streams.
    is_done_by(until, || _ = unsafe { libc::fflush(std::ptr::null_mut()) });
}

/// Locks the stream; returns whether that succeeded in time.
fn lock(stream: *mut FILE, until: Instant) -> bool {
    loop {
        // SAFETY: a standard stream, which stays open for the library's purposes whatever the program does.
        if unsafe { ftrylockfile(stream) } == 0 {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs work that may never return in its own thread. Returns whether it finished in time.
fn is_done_by(until: Instant, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, wait) = mpsc::channel();
    let work = move || {
        work();
        let _ = done.send(());
    };
    let started = thread::Builder::new().name("symrail-streams".into()).spawn(work);
    started.is_ok() && wait.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok()
}
