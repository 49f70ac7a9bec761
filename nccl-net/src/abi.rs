//! The layouts of the tables that NCCL looks for, from the contract in NVIDIA/nccl, `src/include/plugin/net/net_v9.h`
//! to `net_v12.h` (commit 5067397c).
//!
//! | version | differs from the one before in |
//! |---|---|
//! | 10 | `init` gets a profiler, `connect` a configuration, `isend` and `irecv` profilers' handles |
//! | 11 | a context for each communicator: `init` returns it, `listen`, `connect` and `finalize` get it; `setNetAttr` |
//! | 12 | properties: up to 8 devices in a virtual one, ids of rail and plane |

use std::ffi::{c_char, c_int, c_void};

use crate::report::Logger;

/// The size of a handle that NCCL carries from a listener to the process that connects.
pub const HANDLE_SIZE: usize = 128;
/// The most requests of a connection that NCCL has under way.
pub const MOST_REQUESTS: usize = 32;
/// The kind of memory that all tables can register.
pub const PTR_HOST: c_int = 1;
/// GPU memory; only in tables of one-sided operations.
pub const PTR_CUDA: c_int = 2;
/// The largest size that NCCL accepts for `maxP2pBytes` and `maxCollBytes`.
pub const MOST_BYTES: usize = 1 << 40;
/// An id that is not defined.
pub const UNDEFINED: i16 = -1;

/// The properties of a device; a virtual device consists of up to `N` others.
#[repr(C)]
pub struct Properties<const N: usize> {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    /// In Mbit/s.
    pub speed: c_int,
    pub port: c_int,
    /// In microseconds; 0 is unknown.
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub device_type: c_int,
    pub device_version: c_int,
    pub n_devices: c_int,
    pub devices: [c_int; N],
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
}

pub type PropertiesV9 = Properties<4>;

#[repr(C)]
pub struct PropertiesV11 {
    pub common: Properties<4>,
    pub max_multi_request_size: c_int,
}

#[repr(C)]
pub struct PropertiesV12 {
    pub common: Properties<8>,
    pub max_multi_request_size: c_int,
    pub rail_id: i16,
    pub plane_id: i16,
}

pub type Out = *mut *mut c_void;
pub type Ptr = *mut c_void;
pub type Int = *mut c_int;
pub type Code = c_int;

/// Defines a table: the functions that differ between versions, in their places among those that do not.
macro_rules! table {
    ($name:ident, $props:ty, init($($init:ty),*), listen($($listen:ty),*), connect($($connect:ty),*),
     isend($($isend:ty),*), irecv($($irecv:ty),*) $(, finalize: $finalize:ty, set_attributes: $attr:ty)?) => {
        #[repr(C)]
        pub struct $name {
            pub name: *const c_char,
            pub init: unsafe extern "C" fn($($init),*) -> Code,
            pub devices: unsafe extern "C" fn(Int) -> Code,
            pub get_properties: unsafe extern "C" fn(c_int, *mut $props) -> Code,
            pub listen: unsafe extern "C" fn($($listen),*) -> Code,
            pub connect: unsafe extern "C" fn($($connect),*) -> Code,
            pub accept: unsafe extern "C" fn(Ptr, Out, Out) -> Code,
            pub reg_mr: unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Out) -> Code,
            pub reg_mr_dma_buf: Option<unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, c_int, Out) -> Code>,
            pub dereg_mr: unsafe extern "C" fn(Ptr, Ptr) -> Code,
            pub isend: unsafe extern "C" fn($($isend),*) -> Code,
            pub irecv: unsafe extern "C" fn($($irecv),*) -> Code,
            pub iflush: unsafe extern "C" fn(Ptr, c_int, Out, Int, Out, Out) -> Code,
            pub test: unsafe extern "C" fn(Ptr, Int, Int) -> Code,
            pub close_send: unsafe extern "C" fn(Ptr) -> Code,
            pub close_recv: unsafe extern "C" fn(Ptr) -> Code,
            pub close_listen: unsafe extern "C" fn(Ptr) -> Code,
            pub get_device_mr: Option<unsafe extern "C" fn(Ptr, Ptr, Out) -> Code>,
            pub irecv_consumed: Option<unsafe extern "C" fn(Ptr, c_int, Ptr) -> Code>,
            pub make_v_device: Option<unsafe extern "C" fn(Int, Ptr) -> Code>,
            $(pub finalize: $finalize, pub set_attributes: $attr,)?
        }

        // SAFETY: it consists of functions, and of a name that never changes.
        unsafe impl Sync for $name {}
    };
}

type Sizes = *mut usize;
type Context = Ptr;
type Profiler = Ptr;
type Config = Ptr;

table!(
    NetV9,
    PropertiesV9,
    init(Option<Logger>),
    listen(c_int, Ptr, Out),
    connect(c_int, Ptr, Out, Out),
    isend(Ptr, Ptr, usize, c_int, Ptr, Out),
    irecv(Ptr, c_int, Out, Sizes, Int, Out, Out)
);
table!(
    NetV10,
    PropertiesV9,
    init(Option<Logger>, Profiler),
    listen(c_int, Ptr, Out),
    connect(c_int, Config, Ptr, Out, Out),
    isend(Ptr, Ptr, usize, c_int, Ptr, Ptr, Out),
    irecv(Ptr, c_int, Out, Sizes, Int, Out, Out, Out)
);
table!(NetV11, PropertiesV11, init(Out, u64, Config, Option<Logger>, Profiler), listen(Context, c_int, Ptr, Out),
    connect(Context, c_int, Ptr, Out, Out), isend(Ptr, Ptr, usize, c_int, Ptr, Ptr, Out),
    irecv(Ptr, c_int, Out, Sizes, Int, Out, Out, Out), finalize: unsafe extern "C" fn(Context) -> Code,
    set_attributes: Option<unsafe extern "C" fn(Context, Ptr) -> Code>);
table!(NetV12, PropertiesV12, init(Out, u64, Config, Option<Logger>, Profiler), listen(Context, c_int, Ptr, Out),
    connect(Context, c_int, Ptr, Out, Out), isend(Ptr, Ptr, usize, c_int, Ptr, Ptr, Out),
    irecv(Ptr, c_int, Out, Sizes, Int, Out, Out, Out), finalize: unsafe extern "C" fn(Context) -> Code,
    set_attributes: Option<unsafe extern "C" fn(Context, Ptr) -> Code>);
