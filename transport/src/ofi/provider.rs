//! Facts about libfabric's providers that they do not report: one line each, in this file only.

/// Providers to try when none is named, best first: real fabrics, then TCP. `shm` is not among them because it cannot
/// leave the host, and `sockets` because its progress thread sleeps for milliseconds, and because its connections can
/// stop for good once their receive buffers are full: it waits for a whole header before it reads any of it.
pub(super) const PREFERENCE: [&str; 7] = ["efa", "cxi", "opx", "psm3", "verbs;ofi_rxm", "tcp;ofi_rxm", "tcp"];

/// The traits of a provider, or of one layer of a provider whose name lists several, separated by semicolons. The
/// traits of all layers add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traits {
    /// Its target side is a CPU.
    pub software: bool,
    /// Automatic progress is a helper thread, which costs every operation a wake-up and shares our cores, or there is
    /// none.
    pub helper_thread: bool,
    /// It connects by itself. It refuses a second connection to an endpoint as long as its end of the first one lives
    /// (`RXM_REJECT_EALREADY`).
    pub connected: bool,
    /// Its bytes pass TCP sockets: each work request is a system call or more, and a packet.
    pub over_tcp: bool,
    /// Its fabric is memory of this host.
    pub in_memory: bool,
    /// Its messages pass through buffers whose size we choose ([`variables`](super::variables)).
    pub buffers: bool,
}

const NONE: Traits = Traits {
    software: false,
    helper_thread: false,
    connected: false,
    over_tcp: false,
    in_memory: false,
    buffers: false,
};

/// Layers that have any of these traits.
const LAYERS: [(&str, Traits); 8] = [
    ("ofi_rxm", Traits { helper_thread: true, connected: true, buffers: true, ..NONE }),
    ("ofi_rxd", Traits { helper_thread: true, ..NONE }),
    ("tcp", Traits { software: true, helper_thread: true, connected: true, over_tcp: true, ..NONE }),
    ("net", Traits { software: true, helper_thread: true, connected: true, ..NONE }),
    ("sockets", Traits { software: true, helper_thread: true, connected: true, ..NONE }),
    ("udp", Traits { software: true, helper_thread: true, ..NONE }),
    ("shm", Traits { software: true, helper_thread: true, in_memory: true, ..NONE }),
    ("sm2", Traits { software: true, helper_thread: true, in_memory: true, ..NONE }),
];

/// A provider's traits, by its full name.
pub(super) fn traits(provider: &str) -> Traits {
    let layers = provider.split(';').filter_map(|layer| LAYERS.iter().find(|(name, _)| *name == layer));
    layers.fold(NONE, |all, (_, one)| Traits {
        software: all.software | one.software,
        helper_thread: all.helper_thread | one.helper_thread,
        connected: all.connected | one.connected,
        over_tcp: all.over_tcp | one.over_tcp,
        in_memory: all.in_memory | one.in_memory,
        buffers: all.buffers | one.buffers,
    })
}

/// Whether the provider's fabric is memory of this host.
#[must_use]
pub fn is_in_memory(provider: &str) -> bool {
    traits(provider).in_memory
}

/// The full name for a user's short name, which leaves out the layer that provides reliable datagrams.
pub(super) fn full_name(name: &str) -> &str {
    match name {
        "tcp" => "tcp;ofi_rxm",
        "verbs" => "verbs;ofi_rxm",
        "udp" => "udp;ofi_rxd",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_add_what_they_have() {
        let tcp = traits("tcp;ofi_rxm");
        assert!(tcp.software && tcp.connected && tcp.over_tcp && tcp.buffers && tcp.helper_thread && !tcp.in_memory);
        let verbs = traits("verbs;ofi_rxm");
        assert!(!verbs.software && verbs.connected && verbs.buffers && verbs.helper_thread && !verbs.over_tcp);
        assert!(is_in_memory("shm") && is_in_memory("sm2") && !is_in_memory("efa"));
        for real in ["efa", "cxi", "opx", "psm3", "verbs"] {
            assert_eq!(traits(real), NONE, "{real}");
        }
    }

    #[test]
    fn what_is_preferred_is_named_in_full() {
        for name in PREFERENCE.iter().filter(|name| **name != "tcp") {
            assert_eq!(full_name(name), *name);
        }
        assert_eq!(["tcp", "verbs", "udp"].map(full_name), ["tcp;ofi_rxm", "verbs;ofi_rxm", "udp;ofi_rxd"]);
    }
}
