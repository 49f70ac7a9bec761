//! Settings: every `SYMRAIL_` environment variable, in one typed table.

use std::path::PathBuf;

/// Everything that can be set from the environment, parsed and checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Settings {
    pub transport: TransportKind,
    pub libfabric_provider: Option<String>,
    pub libfabric_so: Option<PathBuf>,
    pub libfabric_max_nic_per_pe: usize,
    pub progress: ProgressModel,
    pub nic_list: Option<NicList>,
    pub nic_pe_mapping: Option<String>,
    pub rail_policy: RailPolicy,
    pub stripe_threshold: usize,
    pub amo_path: AmoPath,
    pub heap_size: usize,
    pub heap_kind: HeapKind,
    pub disable_p2p: bool,
    pub fake_host: Option<String>,
    pub bootstrap: BootstrapKind,
    pub proxy_poll: ProxyPoll,
    pub proxy_channels: usize,
    pub timeout_s: u64,
    pub log: String,
}

/// Which fabric interface to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// ibverbs when a usable device exists, else libfabric.
    Auto,
    /// libfabric.
    Libfabric,
    /// ibverbs.
    Ibverbs,
}

/// Which libfabric progress model to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressModel {
    /// What was measured to be best for the provider: manual where automatic progress means a helper thread.
    Auto,
    /// Ask for `FI_PROGRESS_MANUAL`.
    Manual,
    /// Ask for `FI_PROGRESS_AUTO`, probe it, fall back to manual when it does not progress.
    Automatic,
}

/// NICs to use (or, with a leading `^`, not to use), by rail name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicList {
    /// The names exclude instead of include.
    pub exclude: bool,
    /// Rail names: devices, domains or addresses.
    pub names: Vec<String>,
}

/// How operations are spread over rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RailPolicy {
    /// One rail per operation, in turn.
    RoundRobin,
    /// Large operations over all rails at once.
    Stripe,
}

/// Who performs AMOs at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmoPath {
    /// The target agent, unless only the NIC can.
    Auto,
    /// The target agent's CPU.
    Agent,
    /// The provider or NIC, for every AMO it supports, self and same-host PEs included.
    Native,
}

/// What memory the symmetric heap is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapKind {
    /// Shared host memory.
    Host,
    /// Host memory that the GPU can reach.
    Pinned,
    /// GPU memory.
    Device,
}

/// Who starts the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootstrapKind {
    /// The one whose traces are in the environment; a single PE if none.
    Auto,
    /// `symrail run`.
    Launcher,
    /// PMIx.
    Pmix,
    /// A unique id.
    Uid,
}

/// How the proxy thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyPoll {
    /// Always polls.
    Spin,
    /// Polls while there is traffic, sleeps otherwise.
    Adaptive,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            transport: TransportKind::Auto,
            libfabric_provider: None,
            libfabric_so: None,
            libfabric_max_nic_per_pe: 16,
            progress: ProgressModel::Auto,
            nic_list: None,
            nic_pe_mapping: None,
            rail_policy: RailPolicy::RoundRobin,
            stripe_threshold: 256 << 10,
            amo_path: AmoPath::Auto,
            heap_size: 512 << 20,
            heap_kind: HeapKind::Host,
            disable_p2p: false,
            fake_host: None,
            bootstrap: BootstrapKind::Auto,
            proxy_poll: ProxyPoll::Adaptive,
            proxy_channels: 4,
            timeout_s: 60,
            log: "warn".into(),
        }
    }
}
