//! The variables that choose one of a few words, as enums.

use strum::{Display, IntoStaticStr, VariantArray};

/// An enum that is written as one word in the environment: its value's name, in lower case.
pub trait Choice: VariantArray + Copy + PartialEq + Into<&'static str> {}

impl<T: VariantArray + Copy + PartialEq + Into<&'static str>> Choice for T {}

/// Which fabric interface to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum TransportKind {
    /// ibverbs when a usable device exists, else libfabric.
    Auto,
    /// libfabric.
    Libfabric,
    /// ibverbs.
    Ibverbs,
}

/// Which libfabric progress model to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum ProgressModel {
    /// What was measured to be best for the provider: manual where automatic progress means a helper thread.
    Auto,
    /// Ask for `FI_PROGRESS_MANUAL`.
    Manual,
    /// Ask for `FI_PROGRESS_AUTO`, probe it, fall back to manual when it does not progress.
    Automatic,
}

/// How operations are spread over rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum RailPolicy {
    /// One rail per operation, in turn.
    RoundRobin,
    /// Large operations over all rails at once.
    Stripe,
}

/// Who performs AMOs at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum AmoPath {
    /// The target agent, unless only the NIC can.
    Auto,
    /// The target agent's CPU.
    Agent,
    /// The provider or NIC, for every AMO it supports, self and same-host PEs included.
    Native,
}

/// How ibverbs carries atomics and signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum IbMode {
    /// By the device's capability.
    Auto,
    /// The NIC's own fetch-add and compare-swap.
    RdmaAtomics,
    /// The target agent performs them, asked by message.
    WriteWithImm,
}

/// Which addresses a GID may stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum AddrFamily {
    /// IPv4, written as an IPv4-mapped GID.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// What memory the symmetric heap is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum HeapKind {
    /// Shared host memory.
    Host,
    /// Host memory that the GPU can reach.
    Pinned,
    /// GPU memory.
    Device,
    /// Host memory that the CPU cannot touch, staged as a GPU's is: for tests.
    Guarded,
}

/// Whether NICs read and write a GPU's memory themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum GpuDirect {
    /// Where all rails of all PEs can.
    Auto,
    /// They must.
    On,
    /// Never.
    Off,
}

/// Who does large copies of kernels to and from memory of peers that their GPU has mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum DeviceCopy {
    /// The kernel's own loads and stores.
    Kernel,
    /// Copy engines, wherever the heap is in GPUs' memory.
    Engine,
}

/// Who starts the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum ProxyPoll {
    /// Always polls.
    Spin,
    /// Polls while there is traffic, sleeps otherwise.
    Adaptive,
}
