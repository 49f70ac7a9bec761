//! Copying between mappings.

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are mapped for their accesses and do not overlap.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}
