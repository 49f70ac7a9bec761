//! Segments: registered memory of this process at symmetric offsets.

/// A range of this PE's memory that others may access at symmetric offsets.
///
/// The holder of a segment accesses its bytes for peers and for devices without further checks. So only the unsafe
/// [`Segment::new`] sets the range, and it cannot be changed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    id: u32,
    offset: u64,
    len: u64,
    base: *mut u8,
}

// SAFETY: the pointer is an address for rails and for computations; only its users dereference it.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// The `len` bytes at `base`, which begin at the symmetric offset `offset`. `id` is unique for the segment and the
    /// same on every PE.
    ///
    /// # Safety
    /// - The range is memory of this process, or of a device that the segment's copy engine or rails can access.
    /// - No code holds a reference into it while peers may write to it: it is accessed only by raw pointers, atomics
    ///   and devices.
    /// - It stays mapped as long as any user of the segment uses it.
    #[must_use]
    pub const unsafe fn new(id: u32, offset: u64, base: *mut u8, len: u64) -> Segment {
        Segment { id, offset, len, base }
    }

    /// The id, which is unique for the segment and the same on every PE.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Symmetric offset of the first byte.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.len
    }

    /// Symmetric offset behind the last byte.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// This PE's address of the first byte.
    #[inline]
    #[must_use]
    pub const fn base(&self) -> *mut u8 {
        self.base
    }
}
