//! The table: one line per variable has its field, its default, its kind, and its description in `symrail info --env`
//! and the documentation.

use std::path::PathBuf;

use ipnet::IpNet;

use super::Unknown;
use super::choices::{
    AddrFamily, AmoPath, BootstrapKind, DeviceCopy, GpuDirect, HeapKind, IbMode, ProgressModel, ProxyPoll, RailPolicy,
    TransportKind,
};
use super::kinds::{
    AddressRange, File, Kind, LogFilter, Mapping, Maybe, Name, NicList, OneOf, OrAuto, Size, Switch, Whole,
};
use crate::proxy_threads::MAX_THREADS;

/// One environment variable.
#[derive(Debug)]
pub struct Variable {
    /// The full name.
    pub name: &'static str,
    /// The sort of value, in a word.
    pub kind: &'static str,
    /// A description of accepted values.
    pub accepted: fn() -> String,
    /// The purpose of the variable, in a sentence.
    pub about: &'static str,
    /// Reads a trimmed, non-empty value into its field. Returns `false` when it is not accepted.
    pub(super) set: fn(&mut Settings, &str) -> bool,
    /// Writes its field's value as in the environment; empty when it is unset.
    pub show: fn(&Settings) -> String,
}

/// The settings, their defaults and the table.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:literal $field:ident: $type:ty = $default:expr, $kind:ty, $about:literal;)*) => {
        /// All settings from the environment, parsed and checked.
        ///
        /// Each field is the variable of the same name in upper case. [`VARIABLES`] describes what each accepts.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct Settings {
            $(
                #[doc = $about]
                $(#[$doc])*
                pub $field: $type,
            )*
            /// Bytes of `heap_size` that an interface has added to the user's value, for the library and the program's
            /// variables.
            pub heap_added: usize,
            /// Names with our prefix that do not exist.
            pub unknown: Vec<Unknown>,
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings { $($field: $default,)* heap_added: 0, unknown: Vec::new() }
            }
        }

        /// All variables, in the order of their documentation.
        pub const VARIABLES: &[Variable] = &[$(
            Variable {
                name: concat!("SYMRAIL_", $name),
                kind: <$kind as Kind>::NAME,
                accepted: <$kind as Kind>::accepted,
                about: $about,
                set: |settings, text| <$kind as Kind>::parse(text).map(|value| settings.$field = value).is_some(),
                show: |settings| <$kind as Kind>::show(&settings.$field),
            },
        )*];
    };
}

// Columns: name, field, its type and default, its kind, and its purpose.
settings! {
    "TRANSPORT" transport: TransportKind = TransportKind::Auto, OneOf<TransportKind>, "The fabric interface; auto takes ibverbs when it has a usable device, else libfabric.";
    "LIBFABRIC_PROVIDER" libfabric_provider: Option<String> = None, Maybe<Name>, "The libfabric provider, such as efa, tcp;ofi_rxm or shm; tcp, verbs and udp mean those with ;ofi_rxm or ;ofi_rxd; unset takes the best that is there.";
    "LIBFABRIC_SO" libfabric_so: Option<PathBuf> = None, Maybe<File>, "The libfabric library to load instead of libfabric.so.1.";
    "LIBFABRIC_MAX_NIC_PER_PE" libfabric_max_nic_per_pe: usize = 16, Whole<usize, 1, 64>, "The most libfabric rails that one PE opens.";
    "PROGRESS" progress: ProgressModel = ProgressModel::Auto, OneOf<ProgressModel>, "The libfabric progress model to ask for; automatic is probed and given up when it does not progress.";
    "SYSFS" sysfs: Option<PathBuf> = None, Maybe<File>, "A folder with files as in /sys, which says what machine to order rails for; unset takes /sys.";
    "NIC_LIST" nic_list: Option<NicList> = None, Maybe<NicList>, "The rails to use, or after ^ not to use.";
    /// The user's text, known to be well-formed; [`NicPeMapping`](crate::topology::NicPeMapping) parses it.
    "NIC_PE_MAPPING" nic_pe_mapping: Option<String> = None, Maybe<Mapping>, "Which NIC each PE of a host uses: the first count PEs use the first NIC, and so on; unset spreads PEs by distance.";
    "RAIL_POLICY" rail_policy: RailPolicy = RailPolicy::RoundRobin, OneOf<RailPolicy>, "Operations on one rail in turn, or large ones over all at once, or each, in pieces if large, on the rail that should complete it first, as measured.";
    "STRIPE_THRESHOLD" stripe_threshold: usize = 256 << 10, Size<1>, "The size from which the stripe policy splits an operation over rails.";
    "AMO_PATH" amo_path: AmoPath = AmoPath::Auto, OneOf<AmoPath>, "Who performs atomics at the target; auto is the target agent unless only the NIC can.";
    "IB_MODE" ib_mode: IbMode = IbMode::Auto, OneOf<IbMode>, "How ibverbs carries atomics and signals; auto decides by what the device can do.";
    /// `None`: the first active port.
    "IB_PORT" ib_port: Option<u8> = None, OrAuto<Whole<u8, 1, 254>>, "The port of each InfiniBand device; auto takes the first active one.";
    /// `None`: the GID with the best score.
    "IB_GID_INDEX" ib_gid_index: Option<u32> = None, OrAuto<Whole<u32, 0, 65535>>, "The index in the port's GID table; auto takes the GID that fits version, family and range best.";
    "IB_ROCE_VERSION" ib_roce_version: u8 = 2, Whole<u8, 1, 2>, "The RoCE version that automatic GID selection prefers.";
    "IB_ADDR_FAMILY" ib_addr_family: AddrFamily = AddrFamily::Ipv4, OneOf<AddrFamily>, "The address family that automatic GID selection prefers.";
    /// `None`: any address.
    "IB_ADDR_RANGE" ib_addr_range: Option<IpNet> = None, Maybe<AddressRange>, "The network in which automatic GID selection looks; unset looks everywhere.";
    "IB_SL" ib_sl: u8 = 0, Whole<u8, 0, 15>, "The InfiniBand service level.";
    "IB_TRAFFIC_CLASS" ib_traffic_class: u8 = 0, Whole<u8, 0, 255>, "The traffic class of RoCE and of routed InfiniBand packets.";
    "IB_PKEY_INDEX" ib_pkey_index: u16 = 0, Whole<u16, 0, 65535>, "The index in the port's partition key table.";
    /// In the encoding of verbs: 4.096 µs · 2^value.
    "IB_TIMEOUT" ib_timeout: u8 = 20, Whole<u8, 1, 31>, "How long a packet waits for its acknowledgement: 4.096 µs times two to this power.";
    "IB_RETRY_CNT" ib_retry_cnt: u8 = 7, Whole<u8, 0, 7>, "How often a packet without an acknowledgement is sent again before its operation fails.";
    // It is off, since a signal on the same queue pair may then be visible before the data that it announces.
    "IB_RELAXED_ORDERING" ib_relaxed_ordering: bool = false, Switch, "Lets PCIe reorder a NIC's writes, which is faster on some machines; signals then wait for delivery of their data.";
    "IBV_SO" ibv_so: Option<PathBuf> = None, Maybe<File>, "The verbs library to load instead of libibverbs.so.1.";
    "IB_QUEUE_DEPTH" ib_queue_depth: u32 = 1024, Whole<u32, 16, 32768>, "Work requests that a queue pair may have outstanding; fewer in jobs of more than 64 PEs, whose queue pairs share room for 65536.";
    "HEAP_SIZE" heap_size: usize = 512 << 20, Size<65536, { 1 << 46 }>, "The symmetric heap's size on each PE.";
    "HEAP_KIND" heap_kind: HeapKind = HeapKind::Host, OneOf<HeapKind>, "What memory the symmetric heap is made of. Pinned: host memory, all of it registered with a GPU; device: a GPU's memory. It is the GPU that is current, else the one with the PE's number. Guarded is for tests.";
    "GPUDIRECT" gpudirect: GpuDirect = GpuDirect::Auto, OneOf<GpuDirect>, "Whether NICs read and write a heap in a GPU's memory themselves; auto lets them where those of all PEs can, and else stages.";
    "DEVICE_COPY" device_copy: DeviceCopy = DeviceCopy::Kernel, OneOf<DeviceCopy>, "Who does kernels' large puts and gets between GPUs that map each other's heaps: their own loads and stores, or copy engines, which the proxy starts. Engines are several times as fast for a block that copies alone, and keep a core of the CPU busy.";
    // Measured with one block that waits for each copy: equal at 512 KiB, 39 against 62 GB/s at 1 MiB (H200).
    "DEVICE_COPY_THRESHOLD" device_copy_threshold: usize = 1 << 20, Size<1>, "The size from which copy engines do them, for each block of the grid.";
    "DISABLE_P2P" disable_p2p: bool = false, Switch, "Sends everything over the wire, even between PEs that could map each other's memory.";
    "FAKE_HOST" fake_host: Option<String> = None, Maybe<Name>, "A host name to take part under: PEs with different names count as being on different hosts.";
    "BOOTSTRAP" bootstrap: BootstrapKind = BootstrapKind::Auto, OneOf<BootstrapKind>, "Who started the job; auto looks for the launcher's, PMIx's and the unique id's traces, and is a single PE without any.";
    "PROXY_POLL" proxy_poll: ProxyPoll = ProxyPoll::Adaptive, OneOf<ProxyPoll>, "Whether the proxy thread always polls or sleeps while nothing happens.";
    /// `None`: derived from cores, rails and channels.
    "PROXY_THREADS" proxy_threads: Option<usize> = None, OrAuto<Whole<usize, 1, { MAX_THREADS as u64 }>>, "How many proxy threads a PE has, each with its share of the rails and channels; auto takes one for every four cores of the PE, and no more than it has rails and channels. PEs with more than another take as few as that one.";
    "PROXY_CHANNELS" proxy_channels: usize = 4, Whole<usize, 1, 256>, "How many request rings a device has; a GPU takes at most 16.";
    // Each costs 11 MB over tcp;ofi_rxm.
    "CONTEXT_ENDPOINTS" context_endpoints: usize = 8, Whole<usize, 0, 62>, "How many contexts of a PE get an endpoint of their own, with the first operation that goes over libfabric; others share the host endpoint.";
    "TIMEOUT_S" timeout_s: u64 = 60, Whole<u64, 1, 86400>, "Seconds after which a PE that gives no sign of life counts as lost; who waits that long for one that lives says so, once.";
    "CHECK_COLLECTIVES" check_collectives: bool = false, Switch, "Compares what PEs call before each barrier, collective and call on the heap, so that calls that differ are an error on all; for programs under development.";
    "LOG" log: String = "warn".into(), LogFilter, "What is logged to standard error.";
    "TRACE" trace: Option<PathBuf> = None, Maybe<File>, "A file for a time line of every work request, for Perfetto or Chrome's trace viewer; unset makes none.";
    "CACHE_DIR" cache_dir: Option<PathBuf> = None, Maybe<File>, "A folder whose folder default has execution plans for collectives of devices, which all PEs take before our own where they suit, whose folder tuned has what symrail tune measured, and in whose folder kernels compiled kernels are kept.";
    "TUNING" tuning: Option<PathBuf> = None, Maybe<File>, "A file of symrail tune, in place of the one in SYMRAIL_CACHE_DIR; off takes none.";
    "EARLY_LAUNCH" early_launch: bool = false, Switch, "Lets GPUs begin kernels of collectives before the kernel before them on the stream has ended, for whose end they wait themselves; for compute capability 9.0 and later.";
    "NCCL_INTERFACE" nccl_interface: Option<String> = None, Maybe<Name>, "The interface of this machine, by address or name, at which ranks on other machines reach it when they join by an id of ncclGetUniqueId; unset takes the one that NCCL_SOCKET_IFNAME admits, and without that serves ranks of this machine only.";
    "NCCL_LIBRARY" nccl_library: Option<PathBuf> = None, Maybe<File>, "NVIDIA's libnccl.so.2, to which libsymrail_nccl.so leaves communicators that it cannot make; unset leaves them to nobody.";
}
