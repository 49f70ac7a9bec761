//! Work of which each part waits for the others.

use std::thread::Builder;

use crate::guard::Failure;

const MORE_THREADS: &str = "allow this user more threads (ulimit -u)";

/// Calls `body` with each part, on a thread for each if there are several. Returns the first failure.
pub fn on_each<T: Send>(parts: Vec<T>, body: impl Fn(T) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    if parts.len() < 2 {
        return parts.into_iter().try_for_each(body);
    }
    let panicked = || Failure::usage("a thread of the call has panicked");
    std::thread::scope(|scope| {
        let body = &body;
        let begin = |part| Builder::new().spawn_scoped(scope, move || body(part));
        let threads: Vec<_> = parts.into_iter().map(begin).collect();
        let ended = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(panicked())),
            Err(error) => Err(Failure::usage(format!("no thread for a part of the call ({error}): {MORE_THREADS}"))),
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}
