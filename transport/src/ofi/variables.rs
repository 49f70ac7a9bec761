//! Settings that libfabric, and the libraries that come with it, read only from the environment.
//!
//! A process may not change its environment while other threads read it (`getenv`, `getaddrinfo`), and no library knows
//! what other threads do. So the launcher sets these variables before the program runs, as `symrail run` does. A
//! process that was started otherwise sets them itself while it has only one thread ([`set_defaults`]). Failing that,
//! libfabric's own defaults stay, which costs memory and time but is no error. There is no other way: libfabric has no
//! configuration file, and hints set neither a buffer's size nor the universe's.

/// The size of messages that `ofi_rxm` copies through buffers. Two processes with different sizes do not connect.
pub const RXM_BUFFERS: &str = "FI_OFI_RXM_BUFFER_SIZE";

/// Variables and values where libfabric's own defaults do not fit. `ofi_rxm` keeps chunks of 1,024 receive buffers of
/// 16 KiB, four of them for each endpoint over TCP, which was 354 MB and 2.6 s of page faults for a PE with four rails
/// (35 MB and none with these). Our messages fit into the smaller buffers. It also has room for 2,048 receives, whereas
/// a rail posts 64 ([`messages`](super::messages)): 0.8 MB for each endpoint.
///
/// `ofi_rxm` also requests a completion queue on every rail that 1,024 peers could fill at once. Over TCP that is a
/// ring of 12.6 MB, which completions walk through, so that a PE grows for hours. Over verbs it exceeds the limit of
/// small devices (soft-RoCE: 32,767 entries). With 16 it has room for the most work that a rail has under way
/// ([`open`](mod@super::open)).
///
/// In libfabric 1.17 `ofi_rxm` posts a buffer again to a connection over verbs that it has closed, and the process ends
/// by SIGSEGV. With buffers that all connections share it has no such buffer (`docs/failover.md`). They take the same
/// memory however many PEs a PE talks to; without them each connection has its own.
///
/// The last two keep libinfinipath and libpsm2 from installing signal handlers. Loading libfabric removes those
/// handlers in any case; with these variables they are never installed.
pub(crate) const DEFAULTS: [(&str, &str); 7] = [
    (RXM_BUFFERS, "4304"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "256"),
    ("FI_OFI_RXM_RX_SIZE", "256"),
    ("FI_UNIVERSE_SIZE", "16"),
    ("FI_OFI_RXM_USE_SRX", "1"),
    ("IPATH_NO_BACKTRACE", "1"),
    ("HFI_NO_BACKTRACE", "1"),
];

/// Defaults that the user has not set, for the environment of a new process.
pub fn defaults() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEFAULTS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none())
}

/// The value of a variable that libfabric uses.
#[must_use]
pub fn in_force(name: &str) -> String {
    let value = std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    value.unwrap_or_else(|| "libfabric's default".to_owned())
}

/// Sets the defaults that the user has not set in this process, if no other thread can be reading the environment. It
/// is called before this library starts a thread; libfabric reads the variables when it is loaded.
pub fn set_defaults() {
    let missing: Vec<_> = defaults().collect();
    if missing.is_empty() {
        return;
    }
    if threads() != Some(1) {
        let names = missing.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        tracing::info!(
            "libfabric takes more memory than it needs: this process has several threads, so its environment cannot be \
             changed; start it with symrail run, join the job before threads are started, or set {names}"
        );
        return;
    }
    for (name, value) in missing {
        // SAFETY: this thread is the only one, so no thread reads the environment meanwhile, and none can start
        // another.
        unsafe { std::env::set_var(name, value) };
    }
}

/// The number of threads of this process.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_others_may_read_is_left_alone() {
        // The thread of a test is never the only one.
        let before: Vec<_> = std::env::vars_os().collect();
        set_defaults();
        assert!(std::env::vars_os().eq(before));
        assert!(threads() > Some(1));
    }
}
