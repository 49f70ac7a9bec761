//! The user's arrays.

use std::marker::PhantomData;

use symrail::{SymView, Symmetric};

use crate::blocks::Extent;

mod sealed {
    pub trait Sealed {}
}

/// Plain numbers, of which every pattern of bits is a value.
pub trait Element: Copy + Send + 'static + sealed::Sealed {}

macro_rules! elements {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {}
        impl sealed::Sealed for [$t; 2] {}
        impl Element for [$t; 2] {}
    )*};
}
elements! { u16 i16 u32 i32 u64 i64 f32 f64 }

/// Elements of an array: memory of this process alone, or of the symmetric heap. Complex numbers are pairs; half
/// precision is any 2 bytes.
#[derive(Debug)]
pub struct Buffer<'a> {
    pub(crate) ptr: *mut u8,
    pub(crate) bytes: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl Buffer<'_> {
    /// A buffer of `bytes` bytes at an address.
    ///
    /// # Safety
    /// The bytes are valid for reads and writes as long as the buffer lives. Only the runtime's peers use them
    /// meanwhile.
    #[must_use]
    pub unsafe fn raw(ptr: *mut u8, bytes: usize) -> Self {
        Buffer { ptr, bytes, life: PhantomData }
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent { at: self.ptr.addr() as u64, bytes: self.bytes }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for Buffer<'a> {
    fn from(elements: &'a mut [T]) -> Self {
        Buffer { ptr: elements.as_mut_ptr().cast(), bytes: size_of_val(elements), life: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for Buffer<'a> {
    fn from(elements: &'a mut Vec<T>) -> Self {
        elements.as_mut_slice().into()
    }
}

impl<'a, T: Symmetric> From<&'a SymView<'_, T>> for Buffer<'a> {
    fn from(elements: &'a SymView<'_, T>) -> Self {
        Buffer { ptr: elements.as_ptr().cast(), bytes: elements.len() * size_of::<T>(), life: PhantomData }
    }
}
