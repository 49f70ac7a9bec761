//! The scheduling attributes of the proxy thread.

use std::time::Duration;

/// The shortest slice of the scheduler.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// Prepares the calling thread to be a proxy thread, on `core` if one is given.
pub(crate) fn prepare_thread(core: Option<usize>) {
    // The thread needs exact short sleeps, and the default slack of 50 µs would double them. A refusal only costs
    // precision.
    // SAFETY: the call has only numbers as arguments and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64, 0_u64, 0_u64, 0_u64) };
    ask_for_short_slices();
    let Some(core) = core else { return };
    let mut set = nix::sched::CpuSet::new();
    if let Err(error) = set.set(core).and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set))
    {
        tracing::warn!(core, %error, "the proxy thread stays where the scheduler puts it");
    }
}

/// Requests the shortest time slices. A thread that wakes with a shorter slice than the computing thread on its core
/// preempts that thread, instead of waiting for the end of its slice (sched(7), Linux 6.12 and later; other kernels
/// ignore the request).
fn ask_for_short_slices() {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel fills at most `size` bytes of the structure, and all its bytes are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: as above; thread 0 is this one, and the structure lives through the call.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if known && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SHORT_SLICE.as_nanos() as u64;
        // SAFETY: the kernel reads a structure that lives through the call. A refusal only costs latency.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw mut attributes, 0) };
    }
}
