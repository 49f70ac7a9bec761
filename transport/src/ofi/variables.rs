//! What libfabric, and the libraries that come with it, take from the environment only.
//!
//! An environment may not be changed while other threads read it (`getenv`, `getaddrinfo`), and nobody can know what
//! other threads do. So whoever starts PEs sets these variables before the program runs: `symrail run` does. A process
//! that was started otherwise sets them itself while it still has one thread only ([`set_defaults`]). Failing that,
//! libfabric's own defaults stay, which costs memory and time but is no error. Nothing else can carry them: libfabric
//! has no configuration file, and hints reach neither a buffer's size nor the universe's.

/// The size of a message that `ofi_rxm` copies through buffers. Two that differ in it do not connect.
pub const RXM_BUFFERS: &str = "FI_OFI_RXM_BUFFER_SIZE";

/// Variables and values for where libfabric's own defaults do not fit: `ofi_rxm` keeps chunks of 1,024
/// receive buffers of 16 KiB, four of them for each endpoint over TCP, which was 354 MB and 2.6 s of
/// page faults for a PE with four rails (35 MB and none with these). Our messages fit into the smaller buffers. It also
/// has room for 2,048 receives, where a rail posts 64 ([`messages`](super::messages)): 0.8 MB for each endpoint.
///
/// And it asks for a completion queue that 1,024 peers could fill at once, on every rail. Over TCP that is a ring of
/// 12.6 MB, which completions walk through, so that a PE grows for hours; over verbs it is more than small devices have
/// (soft-RoCE: 32,767 entries). With 16 it has room for as much as a rail has under way at most
/// ([`endpoint`](super::endpoint)).
///
/// In libfabric 1.17 `ofi_rxm` posts a buffer again to a connection over verbs that it has closed, and the process ends
/// by SIGSEGV; with buffers that all connections share it has none to do that with (`docs/failover.md`). Over TCP they
/// are shared in any case.
///
/// The last two keep libinfinipath and libpsm2 from installing signal handlers. Those are removed again in any case
/// when libfabric is loaded; with these there is no moment at which they are there.
pub(crate) const DEFAULTS: [(&str, &str); 7] = [
    (RXM_BUFFERS, "4304"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "256"),
    ("FI_OFI_RXM_RX_SIZE", "256"),
    ("FI_UNIVERSE_SIZE", "16"),
    ("FI_OFI_RXM_USE_SRX", "1"),
    ("IPATH_NO_BACKTRACE", "1"),
    ("HFI_NO_BACKTRACE", "1"),
];

/// Those that the user has not set, for the environment of a process that is to be started.
pub fn defaults() -> impl Iterator<Item = (&'static str, &'static str)> {
    DEFAULTS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none())
}

/// The meaning of a variable for libfabric.
#[must_use]
pub fn in_force(name: &str) -> String {
    let value = std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    value.unwrap_or_else(|| "libfabric's default".to_owned())
}

/// Sets in this process those that the user has not set, if no other thread can be reading the environment. Called
/// before anything of ours starts a thread; the library reads them when it is loaded.
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
        // SAFETY: this thread is the only one, so nobody reads the environment meanwhile, and nobody else can start
        // one.
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
        // A test's thread is never the only one.
        let before: Vec<_> = std::env::vars_os().collect();
        set_defaults();
        assert!(std::env::vars_os().eq(before));
        assert!(threads() > Some(1));
    }
}
