//! A registered chunk of memory: which bytes of this process stand behind which offsets.

/// A range of this PE's memory that others may reach at symmetric offsets.
///
/// What holds a segment reads and writes its bytes for peers and for devices, without asking again. So the range enters
/// by [`Segment::new`], which is unsafe, and cannot be changed afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    id: u32,
    offset: u64,
    len: u64,
    base: *mut u8,
}

// SAFETY: the pointer is an address to hand to rails and to compute with; dereferencing it is its users' business.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// The `len` bytes at `base`, from the symmetric offset `offset` on. `id` is chosen once for the segment, the same
    /// on every PE.
    ///
    /// # Safety
    /// - The range is memory of this process, or of a device that the copy engine or the rails it is given to reach.
    /// - Nobody holds a reference into it while peers may write to it: it is reached through raw pointers, atomics and
    ///   devices only.
    /// - It stays mapped as long as anything that was given the segment uses it.
    #[must_use]
    pub const unsafe fn new(id: u32, offset: u64, base: *mut u8, len: u64) -> Segment {
        Segment { id, offset, len, base }
    }

    /// Chosen once for the segment, the same on every PE.
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
