//! Memory for elements in flight, aligned for all types.

use std::mem::ManuallyDrop;

/// The strictest alignment of an element: a long double's or a complex double's.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Unit([u8; 16]);

/// Bytes that start at a multiple of 16. Only [`Buffer::free`] frees them: after an error, operations on them may still
/// be in flight.
pub(crate) struct Buffer(ManuallyDrop<Vec<Unit>>);

impl Buffer {
    /// `bytes` zero bytes.
    pub fn zeroed(bytes: usize) -> Buffer {
        Buffer(ManuallyDrop::new(vec![Unit([0; 16]); bytes.div_ceil(16)]))
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    /// Frees the memory. No operation on it may be in flight.
    pub fn free(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}
