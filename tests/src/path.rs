//! The paths from PE to PE.

use std::process::Command;
use std::time::Duration;

use crate::job::{Job, Outcome, run_command};

/// A path from PE to PE: the settings that select it, and how to recognise it.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Its name in test output.
    pub name: &'static str,
    /// The libfabric provider; `None` for mapped memory.
    pub provider: Option<&'static str>,
    /// Rails, by address; 0: all that the provider has.
    pub rails: u32,
    /// Further settings.
    pub env: &'static [(&'static str, &'static str)],
}

/// Loads and stores.
pub const MAPPED: Path = Path { name: "mapped", provider: None, rails: 0, env: &[] };
/// One TCP rail.
pub const ONE_RAIL: Path = Path { name: "tcp, 1 rail", provider: Some("tcp;ofi_rxm"), rails: 1, env: &[] };
/// Two TCP rails in turn.
pub const ROUND_ROBIN: Path = Path {
    name: "tcp, 2 rails in turn",
    provider: Some("tcp;ofi_rxm"),
    rails: 2,
    env: &[("SYMRAIL_RAIL_POLICY", "round-robin")],
};
/// Two TCP rails, large operations over both. The threshold makes many operations large.
pub const STRIPED: Path = Path {
    name: "tcp, 2 rails striped",
    provider: Some("tcp;ofi_rxm"),
    rails: 2,
    env: &[("SYMRAIL_RAIL_POLICY", "stripe"), ("SYMRAIL_STRIPE_THRESHOLD", "64K")],
};
/// Four TCP rails, striped.
pub const FOUR_STRIPED: Path = Path { name: "tcp, 4 rails striped", rails: 4, ..STRIPED };
/// Four TCP rails in turn.
pub const FOUR_IN_TURN: Path = Path { name: "tcp, 4 rails in turn", rails: 4, ..ROUND_ROBIN };
/// Two TCP rails, each with a proxy thread and the other as its spare.
pub const TWO_THREADS: Path =
    Path { name: "tcp, 2 rails, 2 proxy threads", env: &[("SYMRAIL_PROXY_THREADS", "2")], ..ROUND_ROBIN };
/// Four TCP rails, two for each proxy thread.
pub const FOUR_BY_TWO: Path = Path { name: "tcp, 4 rails, 2 proxy threads", rails: 4, ..TWO_THREADS };
/// libfabric's shared memory.
pub const SHM: Path = Path { name: "shm", provider: Some("shm"), rails: 0, env: &[] };
/// Four rails of libfabric's shared memory, each with a proxy thread that copies.
pub const SHM_THREADS: Path = Path {
    name: "shm, 4 rails, 4 proxy threads",
    env: &[("SYMRAIL_NIC_LIST", "shm0,shm1,shm2,shm3"), ("SYMRAIL_PROXY_THREADS", "4")],
    ..SHM
};
/// Heaps that the CPU cannot access, so that every operation is staged: over TCP, and over shared memory.
pub const STAGED_TCP: Path =
    Path { name: "staged, tcp, 2 rails", env: &[("SYMRAIL_HEAP_KIND", "guarded")], ..ROUND_ROBIN };
/// The same with a staging buffer for each of two proxy threads.
pub const STAGED_THREADS: Path = Path {
    name: "staged, tcp, 2 rails, 2 proxy threads",
    env: &[("SYMRAIL_HEAP_KIND", "guarded"), ("SYMRAIL_PROXY_THREADS", "2")],
    ..ROUND_ROBIN
};
/// See [`STAGED_TCP`].
pub const STAGED_SHM: Path = Path { name: "staged, shm", env: &[("SYMRAIL_HEAP_KIND", "guarded")], ..SHM };
/// libfabric's old sockets provider; very slow on few cores.
pub const SOCKETS: Path = Path { name: "sockets", provider: Some("sockets"), rails: 1, env: &[] };
/// libfabric's net provider.
pub const NET: Path = Path { name: "net", provider: Some("net"), rails: 1, env: &[] };

/// Every kind of path, with numbers of PEs and hosts.
pub const EVERY_KIND: [(Path, u32, u32); 9] = [
    (MAPPED, 1, 1),
    (MAPPED, 3, 1),
    (MAPPED, 8, 1),
    (ROUND_ROBIN, 2, 2),
    (ROUND_ROBIN, 3, 3),
    (STRIPED, 4, 2),
    (ONE_RAIL, 4, 4),
    (SHM, 3, 3),
    (STAGED_TCP, 3, 2),
];

impl Path {
    /// The job, with its PEs on this path. With a wire and more than two PEs, the last two share a host.
    #[must_use]
    pub fn of(&self, job: Job, pes: u32) -> Job {
        let mut job = job.pes(pes).rails(self.rails);
        if let Some(provider) = self.provider {
            job = job.hosts(2).env("SYMRAIL_TRANSPORT", "libfabric").env("SYMRAIL_LIBFABRIC_PROVIDER", provider);
        }
        self.env.iter().fold(job, |job, (name, value)| job.env(name, value)).env(EXPECTED, &self.expected())
    }

    /// As above, for a program that starts its two PEs itself; `TEST_OTHER_HOST` is the simulated host of the other
    /// one.
    #[must_use]
    pub fn of_command(&self, command: Command, env: &[(&str, &str)], limit: Duration) -> Outcome {
        let rails = self.rails.max(1).to_string();
        let addresses = (2..2 + self.rails.max(1)).map(|last| format!("127.0.0.{last}")).collect::<Vec<_>>().join(",");
        let expected = self.expected();
        let mut all = vec![("SYMRAIL_FAKE_HOST", "host0"), ("TEST_OTHER_HOST", "host0"), (EXPECTED, &expected)];
        if let Some(provider) = self.provider {
            all.extend([("TEST_OTHER_HOST", "host1"), ("SYMRAIL_LIBFABRIC_PROVIDER", provider)]);
        }
        if self.rails > 0 {
            all.extend([("SYMRAIL_NIC_LIST", &*addresses), ("SYMRAIL_LIBFABRIC_MAX_NIC_PER_PE", &rails)]);
        }
        run_command(command, &[&all, self.env, env].concat(), limit)
    }

    /// The description that [`check`] expects.
    fn expected(&self) -> String {
        self.provider.map_or_else(|| "mapped".into(), |p| format!("{p} {}", self.rails))
    }
}

/// The variable in which a test tells its PEs their expected path.
const EXPECTED: &str = "TEST_EXPECTED_PATH";

/// A job with heaps that the CPU cannot access, on one host: copy engines map them and copy between them, as GPUs do.
/// All other operations are staged over shared memory.
#[must_use]
pub fn mapped_by_movers(job: Job, pes: u32) -> Job {
    STAGED_SHM.of(job, pes).hosts(1)
}

/// Checks in a PE that the job is on the test's path.
///
/// # Panics
/// It is not.
pub fn check(rt: &symrail::Runtime) {
    let Ok(expected) = std::env::var(EXPECTED) else { return };
    let remote = (0..rt.n_pes()).filter(|&pe| !rt.is_mapped(pe)).count();
    if expected == "mapped" {
        assert_eq!(remote, 0, "a peer is not mapped");
        return;
    }
    assert!(remote > 0, "all peers are mapped");
    let rails = rt.rails();
    let (provider, count) = expected.split_once(' ').unwrap();
    assert!(rails.iter().all(|r| r.provider == provider), "{rails:?}");
    assert!(count == "0" || count == rails.len().to_string(), "{rails:?}");
}
