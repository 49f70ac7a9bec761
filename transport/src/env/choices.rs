//! Enums of variables that accept one of a few words.

use strum::{Display, IntoStaticStr, VariantArray};

/// An enum whose values are words in the environment: their names in lower case.
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

/// Which libfabric progress model to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum ProgressModel {
    /// The model that was measured to be best for the provider: manual where automatic progress means a helper thread.
    Auto,
    /// Request `FI_PROGRESS_MANUAL`.
    Manual,
    /// Request `FI_PROGRESS_AUTO`, probe it, and fall back to manual if it does not progress.
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
    /// Each operation, and each piece of one of more than 128 KiB, on the rail that should complete it first, by
    /// measured bandwidth and latency. Host endpoints, for small operations, use the first rail.
    Adaptive,
}

/// Which party performs AMOs at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum AmoPath {
    /// The target agent, unless only the NIC can.
    Auto,
    /// The target agent's CPU.
    Agent,
    /// The provider or NIC, for every AMO that it supports, including those on self and same-host PEs.
    Native,
}

/// How ibverbs performs atomics and signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum IbMode {
    /// The mode that suits the device's capability.
    Auto,
    /// The NIC's own fetch-add and compare-swap.
    RdmaAtomics,
    /// The target agent performs them on request by message.
    WriteWithImm,
}

/// The address family of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum AddrFamily {
    /// IPv4, written as an IPv4-mapped GID.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The memory of the symmetric heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum HeapKind {
    /// Shared host memory.
    Host,
    /// Host memory that the GPU can access.
    Pinned,
    /// GPU memory.
    Device,
    /// Host memory that the CPU cannot access, staged like a GPU's; for tests.
    Guarded,
}

/// Whether NICs read and write a GPU's memory themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum GpuDirect {
    /// They do where all rails of all PEs can.
    Auto,
    /// They must.
    On,
    /// Never.
    Off,
}

/// What performs a kernel's large copies to and from peer memory that its GPU has mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum DeviceCopy {
    /// The kernel's own loads and stores.
    Kernel,
    /// Copy engines, wherever the heap is in GPU memory.
    Engine,
}

/// The launcher of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, IntoStaticStr, Display)]
#[strum(serialize_all = "kebab-case")]
pub enum BootstrapKind {
    /// The launcher that the environment shows; a single PE if none.
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
    /// It always polls.
    Spin,
    /// It polls while there is traffic, and sleeps otherwise.
    Adaptive,
}
