//! The table: one line per variable drives reading, `symrail info --env` and the documentation.

use super::Settings;
use super::choices::{
    AddrFamily, AmoPath, BootstrapKind, DeviceCopy, GpuDirect, HeapKind, IbMode, ProgressModel, ProxyPoll, RailPolicy,
    TransportKind,
};
use super::kinds::{
    AddressRange, File, Kind, LogFilter, Mapping, Maybe, Name, NicList, OneOf, OrAuto, Size, Switch, Whole,
};
use crate::share::MAX_THREADS;

/// One environment variable.
#[derive(Debug)]
pub struct Variable {
    /// The full name.
    pub name: &'static str,
    /// The sort of value, in a word.
    pub kind: &'static str,
    /// What it accepts, in words.
    pub accepted: fn() -> String,
    /// What it is for, in a sentence.
    pub about: &'static str,
    /// Reads a trimmed, non-empty value into its field; `false` when it is not accepted.
    pub(super) set: fn(&mut Settings, &str) -> bool,
    /// Writes its field's value as the environment would hold it; empty when it is unset.
    pub show: fn(&Settings) -> String,
}

/// A line of the table: name, field, kind, sentence.
macro_rules! variable {
    ($name:literal, $field:ident, $kind:ty, $about:literal) => {
        Variable {
            name: concat!("SYMRAIL_", $name),
            kind: <$kind as Kind>::NAME,
            accepted: <$kind as Kind>::accepted,
            about: $about,
            set: |settings, text| <$kind as Kind>::parse(text).map(|value| settings.$field = value).is_some(),
            show: |settings| <$kind as Kind>::show(&settings.$field),
        }
    };
}

/// Every variable, in the order in which they are documented.
#[rustfmt::skip] // One line per variable.
pub const VARIABLES: &[Variable] = &[
    variable!("TRANSPORT", transport, OneOf<TransportKind>, "The fabric interface; auto takes ibverbs when it has a usable device, else libfabric."),
    variable!("LIBFABRIC_PROVIDER", libfabric_provider, Maybe<Name>, "The libfabric provider, such as efa, tcp;ofi_rxm or shm; tcp, verbs and udp mean those with ;ofi_rxm or ;ofi_rxd; unset takes the best that is there."),
    variable!("LIBFABRIC_SO", libfabric_so, Maybe<File>, "The libfabric library to load instead of libfabric.so.1."),
    variable!("LIBFABRIC_MAX_NIC_PER_PE", libfabric_max_nic_per_pe, Whole<usize, 1, 64>, "The most libfabric rails that one PE opens."),
    variable!("PROGRESS", progress, OneOf<ProgressModel>, "The libfabric progress model to ask for; automatic is probed and given up when it does not progress."),
    variable!("SYSFS", sysfs, Maybe<File>, "A folder with files as in /sys, which says what machine to order rails for; unset takes /sys."),
    variable!("NIC_LIST", nic_list, Maybe<NicList>, "The rails to use, or after ^ not to use."),
    variable!("NIC_PE_MAPPING", nic_pe_mapping, Maybe<Mapping>, "Which NIC each PE of a host uses: the first count PEs use the first NIC, and so on; unset spreads PEs by distance."),
    variable!("RAIL_POLICY", rail_policy, OneOf<RailPolicy>, "Each operation on one rail in turn, or large ones over all rails at once."),
    variable!("STRIPE_THRESHOLD", stripe_threshold, Size<1>, "The size from which the stripe policy splits an operation over rails."),
    variable!("AMO_PATH", amo_path, OneOf<AmoPath>, "Who performs atomics at the target; auto is the target agent unless only the NIC can."),
    variable!("IB_MODE", ib_mode, OneOf<IbMode>, "How ibverbs carries atomics and signals; auto decides by what the device can do."),
    variable!("IB_PORT", ib_port, OrAuto<Whole<u8, 1, 254>>, "The port of each InfiniBand device; auto takes the first active one."),
    variable!("IB_GID_INDEX", ib_gid_index, OrAuto<Whole<u32, 0, 65535>>, "The index in the port's GID table; auto takes the GID that fits version, family and range best."),
    variable!("IB_ROCE_VERSION", ib_roce_version, Whole<u8, 1, 2>, "The RoCE version that automatic GID selection prefers."),
    variable!("IB_ADDR_FAMILY", ib_addr_family, OneOf<AddrFamily>, "The address family that automatic GID selection prefers."),
    variable!("IB_ADDR_RANGE", ib_addr_range, Maybe<AddressRange>, "The network in which automatic GID selection looks; unset looks everywhere."),
    variable!("IB_SL", ib_sl, Whole<u8, 0, 15>, "The InfiniBand service level."),
    variable!("IB_TRAFFIC_CLASS", ib_traffic_class, Whole<u8, 0, 255>, "The traffic class of RoCE and of routed InfiniBand packets."),
    variable!("IB_PKEY_INDEX", ib_pkey_index, Whole<u16, 0, 65535>, "The index in the port's partition key table."),
    variable!("IB_TIMEOUT", ib_timeout, Whole<u8, 1, 31>, "How long a packet waits for its acknowledgement: 4.096 µs times two to this power."),
    variable!("IB_RETRY_CNT", ib_retry_cnt, Whole<u8, 0, 7>, "How often a packet without an acknowledgement is sent again before its operation fails."),
    variable!("IB_RELAXED_ORDERING", ib_relaxed_ordering, Switch, "Lets PCIe reorder a NIC's writes, which is faster on some machines; signals then wait for delivery of their data."),
    variable!("IBV_SO", ibv_so, Maybe<File>, "The verbs library to load instead of libibverbs.so.1."),
    variable!("IB_QUEUE_DEPTH", ib_queue_depth, Whole<u32, 16, 32768>, "Work requests that a queue pair may have outstanding; fewer in jobs of more than 64 PEs, whose queue pairs share room for 65536."),
    variable!("HEAP_SIZE", heap_size, Size<65536, { 1 << 46 }>, "The symmetric heap's size on each PE."),
    variable!("HEAP_KIND", heap_kind, OneOf<HeapKind>, "What memory the symmetric heap is made of. Pinned: host memory, all of it registered with a GPU; device: a GPU's memory. It is the GPU that is current, else the one with the PE's number. Guarded is for tests."),
    variable!("GPUDIRECT", gpudirect, OneOf<GpuDirect>, "Whether NICs read and write a heap in a GPU's memory themselves; auto lets them where those of all PEs can, and else stages."),
    variable!("DEVICE_COPY", device_copy, OneOf<DeviceCopy>, "Who does kernels' large puts and gets between GPUs that map each other's heaps: their own loads and stores, or copy engines, which the proxy starts. Engines are several times as fast for a block that copies alone, and keep a core of the CPU busy."),
    variable!("DEVICE_COPY_THRESHOLD", device_copy_threshold, Size<1>, "The size from which copy engines do them, for each block of the grid."),
    variable!("DISABLE_P2P", disable_p2p, Switch, "Sends everything over the wire, even between PEs that could map each other's memory."),
    variable!("FAKE_HOST", fake_host, Maybe<Name>, "A host name to take part under: PEs with different names count as being on different hosts."),
    variable!("BOOTSTRAP", bootstrap, OneOf<BootstrapKind>, "Who started the job; auto looks for the launcher's, PMIx's and the unique id's traces, and is a single PE without any."),
    variable!("PROXY_POLL", proxy_poll, OneOf<ProxyPoll>, "Whether the proxy thread always polls or sleeps while nothing happens."),
    variable!("PROXY_THREADS", proxy_threads, OrAuto<Whole<usize, 1, { MAX_THREADS as u64 }>>, "How many proxy threads a PE has, each with its share of the rails and channels; auto takes one for every four cores of the PE, and no more than it has rails and channels. PEs with more than another take as few as that one."),
    variable!("PROXY_CHANNELS", proxy_channels, Whole<usize, 1, 256>, "How many request rings a device has; a GPU takes at most 16."),
    variable!("CONTEXT_ENDPOINTS", context_endpoints, Whole<usize, 0, 62>, "How many contexts of a PE get an endpoint of their own, with the first operation that goes over libfabric; others share the host endpoint."),
    variable!("TIMEOUT_S", timeout_s, Whole<u64, 1, 86400>, "Seconds after which a PE that gives no sign of life counts as lost; who waits that long for one that lives says so, once."),
    variable!("CHECK_COLLECTIVES", check_collectives, Switch, "Compares what PEs call before each barrier, collective and call on the heap, so that calls that differ are an error on all; for programs under development."),
    variable!("LOG", log, LogFilter, "What is logged to standard error."),
    variable!("TRACE", trace, Maybe<File>, "A file for a time line of every work request, for Perfetto or Chrome's trace viewer; unset makes none."),
    variable!("CACHE_DIR", cache_dir, Maybe<File>, "A folder whose folder default has execution plans for collectives of devices, which all PEs take before our own where they suit, and whose folder tuned has what symrail tune measured."),
    variable!("TUNING", tuning, Maybe<File>, "A file of symrail tune, in place of the one in SYMRAIL_CACHE_DIR; off takes none."),
    variable!("NCCL_INTERFACE", nccl_interface, Maybe<Name>, "The address of this machine at which ranks on other machines reach it when they join by an id of ncclGetUniqueId; unset serves ranks of this machine only."),
    variable!("NCCL_LIBRARY", nccl_library, Maybe<File>, "NVIDIA's libnccl.so.2, to which libsymrail_nccl.so leaves communicators that it cannot make; unset leaves them to nobody."),
];
