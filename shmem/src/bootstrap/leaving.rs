//! Work that ends by itself and that the process's normal end waits for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use symrail_core::lock;

static THREADS: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());
/// The process that waits at its end; 0: none yet. A fork has no such threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Runs `work`, which ends within seconds, in a thread of its own; without a thread in this one.
pub fn wait_aside(work: impl FnOnce() + Send + 'static) {
    let here = std::process::id();
    match PROCESS.swap(here, Ordering::AcqRel) {
        0 => {
            // SAFETY: the function has no parameters and does not unwind. The C library calls it when the process ends
            // normally, or when this library is unloaded.
            let _ = unsafe { libc::atexit(join) };
        }
        // The threads of the process that this one was forked from.
        before if before != here => std::mem::forget(std::mem::take(&mut *lock(&THREADS))),
        _ => {}
    }
    let (give, take) = channel::<Box<dyn FnOnce() + Send>>();
    let started = std::thread::Builder::new().name("symrail-leave".into()).spawn(move || {
        if let Ok(work) = take.recv() {
            work();
        }
    });
    let Ok(thread) = started else { return work() };
    let _ = give.send(Box::new(work));
    let mut threads = lock(&THREADS);
    threads.retain(|thread| !thread.is_finished());
    threads.push(thread);
}

extern "C" fn join() {
    if PROCESS.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    let threads = std::mem::take(&mut *lock(&THREADS));
    for thread in threads {
        let _ = thread.join();
    }
}
