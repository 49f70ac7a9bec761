//! The interface between NVSHMEM's host library and a remote transport.
//!
//! The structures below are the same in all known versions; those that differ are in [`layout`]. They are declared from
//! their sizes and offsets, which tests check. Units are bytes. Pointers of the host library are only dereferenced
//! where `ops` gives the reason.

pub mod layout;
pub mod verbs;

use std::ffi::{c_int, c_void};

use symrail_proxy::session::memory::HANDLE_SIZE;

/// A memory handle, which the plugin fills and the host library sends to all PEs.
pub type MemHandle = [u8; HANDLE_SIZE];

/// NVSHMEM's status codes that the plugin uses.
pub mod status {
    use std::ffi::c_int;
    pub const SUCCESS: c_int = 0;
    pub const INVALID_VALUE: c_int = 1;
    pub const INTERNAL: c_int = 7;
}

/// The flag in `attr`: endpoints are connected before use.
pub const ATTR_CONNECTED: c_int = 2;
/// The result of `can_reach_peer`: the CPU writes, reads and performs AMOs.
pub const CAP_CPU: c_int = 0x10 | 0x20 | 0x40;

/// The host library's numbers of queue pairs: 0 is for host threads. (3.4 has `is_proxy` instead, with the same
/// numbers.)
pub mod qp {
    use std::ffi::c_int;
    pub const DEFAULT: c_int = 1;
    pub const ALL: c_int = c_int::MAX;
}

/// The kind of a remote access.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RmaVerb {
    pub op: c_int,
    pub is_nbi: c_int,
    pub is_stream: c_int,
    pub stream: *mut c_void,
}

/// One side of an access.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RmaMemDesc {
    /// The address in the process that owns the memory.
    pub ptr: *mut c_void,
    /// Offset from the heap's first byte, for remote sides.
    pub offset: u64,
    pub handle: *mut MemHandle,
}

/// The length of an access.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RmaBytesDesc {
    pub elements: usize,
    pub element_bytes: c_int,
    pub source_stride: isize,
    pub dest_stride: isize,
}

impl RmaBytesDesc {
    /// The total length in bytes.
    pub fn bytes(&self) -> Option<u64> {
        u64::try_from(self.element_bytes).ok()?.checked_mul(self.elements as u64)
    }
}

/// The word of an AMO, its operands, and the destination of the old value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AmoMemDesc {
    pub remote: RmaMemDesc,
    pub retflag: u64,
    pub retptr: *mut c_void,
    pub valptr: *mut c_void,
    pub cmpptr: *mut c_void,
    pub val: u64,
    pub cmp: u64,
    pub ret_handle: *mut MemHandle,
}

/// The size of an AMO's word.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AmoBytesDesc {
    pub name_type: c_int,
    pub element_bytes: c_int,
}

/// The host library's description of a PE.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PeInfo {
    pub pcie: [c_int; 3],
    pub pe: c_int,
    pub host_hash: u64,
    pub gpu_uuid: [u8; 16],
}

/// The bootstrap's functions, filled in after `nvshmemt_init`.
#[derive(Debug)]
#[repr(C)]
pub struct Bootstrap {
    pub version: c_int,
    pub rank: c_int,
    pub size: c_int,
    pub local_pe: c_int,
    pub local_pes: c_int,
    pub allgather: Option<unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut Bootstrap) -> c_int>,
    pub alltoall: Option<unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut Bootstrap) -> c_int>,
    pub barrier: Option<unsafe extern "C" fn(*mut Bootstrap) -> c_int>,
}

/// `std::vector` of libstdc++, by reference.
#[derive(Debug)]
#[repr(C)]
pub struct Vector<T> {
    pub begin: *const T,
    pub end: *const T,
    pub capacity_end: *const T,
}

impl<T> Vector<T> {
    /// The vector's elements.
    ///
    /// # Safety
    /// It is a vector of the host library, which stays unchanged during the call that it was passed to.
    pub unsafe fn elements(&self) -> &[T] {
        if self.begin.is_null() || self.end <= self.begin {
            return &[];
        }
        // SAFETY: both point into the vector's one allocation, and the second is not before the first.
        unsafe { std::slice::from_raw_parts(self.begin, self.end.offset_from(self.begin).cast_unsigned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_their_sizes_and_offsets() {
        assert_eq!(size_of::<MemHandle>(), 512);
        assert_eq!((size_of::<RmaVerb>(), offset_of!(RmaVerb, stream)), (24, 16));
        assert_eq!((size_of::<RmaMemDesc>(), offset_of!(RmaMemDesc, handle)), (24, 16));
        assert_eq!(size_of::<RmaBytesDesc>(), 32);
        assert_eq!((offset_of!(RmaBytesDesc, source_stride), offset_of!(RmaBytesDesc, dest_stride)), (16, 24));
        assert_eq!(size_of::<AmoMemDesc>(), 80);
        assert_eq!((offset_of!(AmoMemDesc, val), offset_of!(AmoMemDesc, cmp)), (56, 64));
        assert_eq!((offset_of!(AmoMemDesc, retflag), offset_of!(AmoMemDesc, retptr)), (24, 32));
        assert_eq!(offset_of!(AmoMemDesc, ret_handle), 72);
        assert_eq!(size_of::<AmoBytesDesc>(), 8);
        assert_eq!((size_of::<PeInfo>(), offset_of!(PeInfo, host_hash), offset_of!(PeInfo, gpu_uuid)), (40, 16, 24));
        assert_eq!((offset_of!(Bootstrap, allgather), offset_of!(Bootstrap, barrier)), (0x18, 0x28));
        assert_eq!(size_of::<Vector<RmaMemDesc>>(), 24);
    }
}
