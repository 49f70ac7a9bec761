//! Work of which each part waits for the others.

use crate::guard::Failure;

/// Calls `body` with each part, on a thread for each if there are several. Returns the first failure.
pub fn on_each<T: Send>(parts: Vec<T>, body: impl Fn(T) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    if parts.len() < 2 {
        return parts.into_iter().try_for_each(body);
    }
    let panicked = || Failure::usage("a thread of the call has panicked");
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || body(part))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}
