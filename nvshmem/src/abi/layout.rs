//! The transport structure of each known version, which the plugin allocates and both sides fill.
//!
//! | NVSHMEM | `api_version` / 10000 | size | differences |
//! |---|---|---|---|
//! | 3.4 | 3 | 0xF0 | functions first; `is_proxy` in the place of a queue pair; no put_signal |
//! | 3.5, 3.6 | 4, 5 | 0xF8 | functions last; queue pairs; put_signal |
//! | 3.7 | 6 | 0x100 | `rma_with_hints`; AMO verbs of 20 bytes |
//! | 3.8 | 7 | 0x110 | `region_flush`; how devices are assigned |

use std::ffi::{c_int, c_void};

use super::verbs::{AmoVerb, AmoVerb16, AmoVerb20};
use super::{AmoBytesDesc, AmoMemDesc, Bootstrap, MemHandle, PeInfo, RmaBytesDesc, RmaMemDesc, RmaVerb, Vector};

/// The first part, which is the same in all versions.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Head {
    pub api_version: c_int,
    pub kind: c_int,
    pub cap: *mut c_int,
}

/// The fields that both sides share, without the functions.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Fields {
    pub bootstrap: *mut Bootstrap,
    pub state: *mut c_void,
    pub type_specific_state: *mut c_void,
    pub cache: *mut c_void,
    pub device_pci_paths: *mut c_void,
    pub attr: c_int,
    pub n_devices: c_int,
    pub atomics_complete_on_quiet: u8,
    pub is_initialized: u8,
    pub no_proxy: u8,
    pub heap_base: *mut c_void,
    pub log2_granularity: usize,
    pub max_op_len: u64,
    pub atomic_host_endian_min_size: u32,
    pub index: c_int,
    pub my_pe: c_int,
    pub n_pes: c_int,
    pub alias_va_map: *mut c_void,
    pub egm_map: *mut c_void,
}

/// A function that the plugin does not provide.
type Absent = Option<unsafe extern "C" fn()>;

type Connect<T> = Option<unsafe extern "C" fn(*mut T, *mut c_int, c_int, *mut c_int, c_int) -> c_int>;
type RmaFn<T> = Option<
    unsafe extern "C" fn(*mut T, c_int, RmaVerb, *mut RmaMemDesc, *mut RmaMemDesc, RmaBytesDesc, c_int) -> c_int,
>;
type AmoFn<T> = Option<
    unsafe extern "C" fn(
        *mut T,
        c_int,
        *mut c_void,
        <T as Layout>::AmoVerb,
        *mut AmoMemDesc,
        AmoBytesDesc,
        c_int,
    ) -> c_int,
>;
type PutSignalFn<T> = Option<
    unsafe extern "C" fn(
        *mut T,
        c_int,
        RmaVerb,
        *const Vector<RmaMemDesc>,
        *const Vector<RmaMemDesc>,
        *const Vector<RmaBytesDesc>,
        <T as Layout>::AmoVerb,
        *mut AmoMemDesc,
        AmoBytesDesc,
        c_int,
    ) -> c_int,
>;

/// The functions of all versions, in the common order.
#[repr(C)]
pub struct Ops<T: Layout> {
    pub can_reach_peer: Option<unsafe extern "C" fn(*mut c_int, *mut PeInfo, *mut T) -> c_int>,
    /// 3.4 passes the first three arguments only.
    pub connect_endpoints: Connect<T>,
    pub get_mem_handle: Option<unsafe extern "C" fn(*mut MemHandle, *mut c_void, usize, *mut T, u8) -> c_int>,
    pub release_mem_handle: Option<unsafe extern "C" fn(*mut MemHandle, *mut T) -> c_int>,
    pub finalize: Option<unsafe extern "C" fn(*mut T) -> c_int>,
    pub show_info: Option<unsafe extern "C" fn(*mut T, c_int) -> c_int>,
    pub progress: Option<unsafe extern "C" fn(*mut T) -> c_int>,
    pub rma: RmaFn<T>,
    pub amo: AmoFn<T>,
    /// 3.4 passes the first three arguments only.
    pub fence: Option<unsafe extern "C" fn(*mut T, c_int, c_int, c_int) -> c_int>,
    pub quiet: Option<unsafe extern "C" fn(*mut T, c_int, c_int) -> c_int>,
}

/// Functions behind the common ones: two for consistency, and one that accepts remote handles.
type Tail = [Absent; 3];

/// The structure of one version.
pub trait Layout: Sized + 'static {
    /// The description of AMOs.
    type AmoVerb: AmoVerb;
    /// Whether `connect_endpoints` has all its arguments.
    const QUEUE_PAIRS: bool;

    /// A structure that is zero except for the functions.
    fn new(ops: Ops<Self>, put_signal: PutSignalFn<Self>) -> Self;
    /// The first part. It is a pointer, since both sides use the structure at the same time.
    ///
    /// # Safety
    /// `t` points to a structure of this layout.
    unsafe fn head(t: *mut Self) -> *mut Head;
    /// The shared fields.
    ///
    /// # Safety
    /// As for [`Layout::head`].
    unsafe fn fields(t: *mut Self) -> *mut Fields;
}

/// 3.4.
#[repr(C)]
pub struct V3 {
    head: Head,
    ops: Ops<V3>,
    tail: Tail,
    fields: Fields,
}

/// 3.5 and 3.6.
#[repr(C)]
pub struct V4 {
    head: Head,
    fields: Fields,
    ops: Ops<V4>,
    put_signal: PutSignalFn<V4>,
    tail: Tail,
}

/// 3.7.
#[repr(C)]
pub struct V6 {
    head: Head,
    fields: Fields,
    ops: Ops<V6>,
    put_signal: PutSignalFn<V6>,
    tail: Tail,
    rma_with_hints: Absent,
}

/// 3.8.
#[repr(C)]
pub struct V7 {
    head: Head,
    fields: Fields,
    ops: Ops<V7>,
    put_signal: PutSignalFn<V7>,
    tail: Tail,
    rma_with_hints: Absent,
    region_flush: Absent,
    device_assignment_mode: c_int,
}

macro_rules! layout {
    ($name:ident, $verb:ident, $queue_pairs:literal, |$put_signal:ident| $($field:ident: $value:expr),*) => {
        impl Layout for $name {
            type AmoVerb = $verb;
            const QUEUE_PAIRS: bool = $queue_pairs;

            fn new(ops: Ops<Self>, $put_signal: PutSignalFn<Self>) -> Self {
                $name { head: Head::EMPTY, fields: Fields::EMPTY, ops, tail: [None; 3], $($field: $value),* }
            }
            unsafe fn head(t: *mut Self) -> *mut Head {
                // SAFETY: the caller's promise.
                unsafe { &raw mut (*t).head }
            }
            unsafe fn fields(t: *mut Self) -> *mut Fields {
                // SAFETY: the caller's promise.
                unsafe { &raw mut (*t).fields }
            }
        }
    };
}

layout!(V3, AmoVerb16, false, |_none|);
layout!(V4, AmoVerb16, true, |f| put_signal: f);
layout!(V6, AmoVerb20, true, |f| put_signal: f, rma_with_hints: None);
layout!(V7, AmoVerb20, true, |f| put_signal: f, rma_with_hints: None, region_flush: None, device_assignment_mode: 0);

impl Head {
    const EMPTY: Head = Head { api_version: 0, kind: 0, cap: std::ptr::null_mut() };
}

impl Fields {
    const EMPTY: Fields = Fields {
        bootstrap: std::ptr::null_mut(),
        state: std::ptr::null_mut(),
        type_specific_state: std::ptr::null_mut(),
        cache: std::ptr::null_mut(),
        device_pci_paths: std::ptr::null_mut(),
        attr: 0,
        n_devices: 0,
        atomics_complete_on_quiet: 0,
        is_initialized: 0,
        no_proxy: 0,
        heap_base: std::ptr::null_mut(),
        log2_granularity: 0,
        max_op_len: 0,
        atomic_host_endian_min_size: 0,
        index: 0,
        my_pe: 0,
        n_pes: 0,
        alias_va_map: std::ptr::null_mut(),
        egm_map: std::ptr::null_mut(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn sizes_are_those_of_the_versions() {
        assert_eq!(size_of::<V3>(), 0xf0);
        assert_eq!(size_of::<V4>(), 0xf8);
        assert_eq!(size_of::<V6>(), 0x100);
        assert_eq!(size_of::<V7>(), 0x110);
    }

    #[test]
    fn fields_are_where_the_host_library_looks() {
        let fields = [
            (offset_of!(Fields, bootstrap), 0x10),
            (offset_of!(Fields, state), 0x18),
            (offset_of!(Fields, type_specific_state), 0x20),
            (offset_of!(Fields, cache), 0x28),
            (offset_of!(Fields, device_pci_paths), 0x30),
            (offset_of!(Fields, attr), 0x38),
            (offset_of!(Fields, n_devices), 0x3c),
            (offset_of!(Fields, atomics_complete_on_quiet), 0x40),
            (offset_of!(Fields, is_initialized), 0x41),
            (offset_of!(Fields, no_proxy), 0x42),
            (offset_of!(Fields, heap_base), 0x48),
            (offset_of!(Fields, log2_granularity), 0x50),
            (offset_of!(Fields, max_op_len), 0x58),
            (offset_of!(Fields, atomic_host_endian_min_size), 0x60),
            (offset_of!(Fields, index), 0x64),
            (offset_of!(Fields, my_pe), 0x68),
            (offset_of!(Fields, n_pes), 0x6c),
            (offset_of!(Fields, alias_va_map), 0x70),
            (offset_of!(Fields, egm_map), 0x78),
        ];
        for (at, offset) in fields {
            assert_eq!(at + offset_of!(V7, fields), offset, "{offset:#x}");
            assert_eq!(at + offset_of!(V3, fields), offset + 0x70, "{offset:#x}");
        }
        assert_eq!((offset_of!(V3, head), offset_of!(V7, head), offset_of!(Head, cap)), (0, 0, 8));
        assert_eq!([offset_of!(V4, fields), offset_of!(V6, fields), offset_of!(V7, fields)], [0x10; 3]);
    }

    #[test]
    fn functions_are_where_the_host_library_calls_them() {
        assert_eq!([offset_of!(V4, ops), offset_of!(V6, ops), offset_of!(V7, ops)], [0x80; 3]);
        assert_eq!(offset_of!(V3, ops), 0x10);
        let functions = [
            (offset_of!(Ops<V7>, can_reach_peer), 0x80),
            (offset_of!(Ops<V7>, connect_endpoints), 0x88),
            (offset_of!(Ops<V7>, get_mem_handle), 0x90),
            (offset_of!(Ops<V7>, release_mem_handle), 0x98),
            (offset_of!(Ops<V7>, finalize), 0xa0),
            (offset_of!(Ops<V7>, show_info), 0xa8),
            (offset_of!(Ops<V7>, progress), 0xb0),
            (offset_of!(Ops<V7>, rma), 0xb8),
            (offset_of!(Ops<V7>, amo), 0xc0),
            (offset_of!(Ops<V7>, fence), 0xc8),
            (offset_of!(Ops<V7>, quiet), 0xd0),
        ];
        for (at, offset) in functions {
            assert_eq!(at + 0x80, offset);
        }
        assert_eq!([offset_of!(V4, put_signal), offset_of!(V6, put_signal), offset_of!(V7, put_signal)], [0xd8; 3]);
        assert_eq!([offset_of!(V4, tail), offset_of!(V7, tail)], [0xe0; 2]);
        assert_eq!([offset_of!(V6, rma_with_hints), offset_of!(V7, rma_with_hints)], [0xf8; 2]);
        assert_eq!((offset_of!(V7, region_flush), offset_of!(V7, device_assignment_mode)), (0x100, 0x108));
    }
}
