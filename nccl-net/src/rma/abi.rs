//! The layouts of the tables of one-sided operations, from the contract in NVIDIA/nccl, `src/include/plugin/rma/` and
//! `src/include/plugin/gin/` (commits of v2.28.9-1 and 5067397c), and, for versions 15 and 16, in aws/aws-ofi-nccl and
//! ROCm/rccl.
//!
//! | table | differs from the one before in |
//! |---|---|
//! | GIN 11 | for NCCL 2.28 to 2.30.4: operations belong to the group, their only context |
//! | RMA 13 | contexts, `iget`, `iflush`; NCCL looks for it under GIN's name too |
//! | RMA 14 | no device handles; a signal may be weak |
//! | RMA 15 | a word of hints for each operation |
//! | RMA 16 | properties of the group |
//!
//! GIN 11 has no functions of contexts here: NCCL 2.30.4 takes the group in their place then, and otherwise would not
//! take their device handle.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{Code, Int, Out, PropertiesV11, PropertiesV12, Ptr};
use crate::report::Logger;

/// What a device is: NCCL's own proxy reads the requests of kernels and calls these tables.
pub const GIN_PROXY: c_int = 2;
/// Adds 1 to a signal, or the value.
pub const SIGNAL_INC: u32 = 1;
pub const SIGNAL_ADD: u32 = 2;

/// What NCCL asks of a context; the first field of every version's structure that has contexts.
pub type Contexts = c_int;

/// The properties of a group.
#[repr(C)]
pub struct GroupProperties {
    /// Whether any signal makes all puts visible that have arrived, whoever sent them.
    pub flushes_all_puts_on_any_signal: bool,
}

/// Defines a table: the functions that differ between versions, in their places among those that do not.
macro_rules! table {
    ($name:ident, $props:ty, $(group_properties: $group:ty,)? create: $create:ty, register: $register:ty,
     register_dma_buf: $dma_buf:ty, put: $put:ty, put_signal: $put_signal:ty $(, get: $get:ty, flush: $flush:ty)?) => {
        #[repr(C)]
        pub struct $name {
            pub name: *const c_char,
            pub init: unsafe extern "C" fn(Out, u64, Option<Logger>) -> Code,
            pub devices: unsafe extern "C" fn(Int) -> Code,
            $(pub get_group_properties: $group,)?
            pub get_properties: unsafe extern "C" fn(c_int, *mut $props) -> Code,
            pub listen: unsafe extern "C" fn(Ptr, c_int, Ptr, Out) -> Code,
            pub connect: unsafe extern "C" fn(Ptr, *mut Ptr, c_int, c_int, Ptr, Out) -> Code,
            pub create_context: Option<$create>,
            pub reg_mr_sym: $register,
            pub reg_mr_sym_dma_buf: $dma_buf,
            pub dereg_mr_sym: unsafe extern "C" fn(Ptr, Ptr) -> Code,
            pub destroy_context: Option<unsafe extern "C" fn(Ptr) -> Code>,
            pub close_coll: unsafe extern "C" fn(Ptr) -> Code,
            pub close_listen: unsafe extern "C" fn(Ptr) -> Code,
            pub iput: $put,
            pub iput_signal: $put_signal,
            $(pub iget: $get, pub iflush: $flush,)?
            pub test: unsafe extern "C" fn(Ptr, Ptr, Int) -> Code,
            pub progress: unsafe extern "C" fn(Ptr) -> Code,
            pub query_last_error: Option<unsafe extern "C" fn(Ptr, *mut bool) -> Code>,
            pub finalize: unsafe extern "C" fn(Ptr) -> Code,
        }

        // SAFETY: it consists of functions, and of a name that never changes.
        unsafe impl Sync for $name {}
    };
}

type Off = u64;
type Rank = u32;
type Register2 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, Out, Out) -> Code;
type RegisterDmaBuf2 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, c_int, u64, Out, Out) -> Code;
type Register = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, Out) -> Code;
type RegisterDmaBuf = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, c_int, u64, Out) -> Code;
type Create = unsafe extern "C" fn(Ptr, *const Contexts, Out) -> Code;
type Flush = unsafe extern "C" fn(Ptr, c_int, Ptr, Rank, Out) -> Code;
type Put = unsafe extern "C" fn(Ptr, c_int, Off, Ptr, usize, Off, Ptr, Rank, Out) -> Code;
type PutWithHints = unsafe extern "C" fn(Ptr, c_int, Off, Ptr, usize, Off, Ptr, Rank, u32, Out) -> Code;
type PutSignalWithHints =
    unsafe extern "C" fn(Ptr, c_int, Off, Ptr, usize, Off, Ptr, Rank, Off, Ptr, u64, u32, bool, u32, Out) -> Code;

table!(GinV11, PropertiesV11,
    create: unsafe extern "C" fn(Ptr, c_int, c_int, Out, Out) -> Code,
    register: Register2, register_dma_buf: RegisterDmaBuf2,
    put: unsafe extern "C" fn(Ptr, Off, Ptr, usize, Off, Ptr, Rank, Out) -> Code,
    put_signal: unsafe extern "C" fn(Ptr, Off, Ptr, usize, Off, Ptr, Rank, Off, Ptr, u64, u32, Out) -> Code);
table!(RmaV13, PropertiesV12,
    create: unsafe extern "C" fn(Ptr, *const GinConfigV13, Out, Out) -> Code,
    register: Register2, register_dma_buf: RegisterDmaBuf2, put: Put,
    put_signal: unsafe extern "C" fn(Ptr, c_int, Off, Ptr, usize, Off, Ptr, Rank, Off, Ptr, u64, u32, Out) -> Code,
    get: Put, flush: Flush);
table!(RmaV14, PropertiesV12, create: Create, register: Register, register_dma_buf: RegisterDmaBuf, put: Put,
    put_signal: unsafe extern "C" fn(Ptr, c_int, Off, Ptr, usize, Off, Ptr, Rank, Off, Ptr, u64, u32, bool, Out) -> Code,
    get: Put, flush: Flush);
table!(RmaV15, PropertiesV12, create: Create, register: Register, register_dma_buf: RegisterDmaBuf, put: PutWithHints,
    put_signal: PutSignalWithHints, get: PutWithHints, flush: Flush);
table!(RmaV16, PropertiesV12,
    group_properties: unsafe extern "C" fn(*mut c_void, *mut GroupProperties) -> Code,
    create: Create, register: Register, register_dma_buf: RegisterDmaBuf, put: PutWithHints,
    put_signal: PutSignalWithHints, get: PutWithHints, flush: Flush);

/// What NCCL asks of a context in version 13.
#[repr(C)]
pub struct GinConfigV13 {
    pub n_signals: c_int,
    pub n_counters: c_int,
    pub n_contexts: c_int,
    pub queue_depth: c_int,
    pub traffic_class: c_int,
}
