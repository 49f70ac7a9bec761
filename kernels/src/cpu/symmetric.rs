//! Names for memory: symmetric (the same place at every PE) and local.

use std::marker::PhantomData;

use super::element::Element;
use super::error::DeviceError;

/// `len` elements at the same offset of every PE's heap. [`DeviceView::symmetric`](super::DeviceView::symmetric)
/// creates and checks it. It is only a name, so it can be copied into kernels.
#[derive(Debug)]
pub struct Symmetric<T> {
    offset: u64,
    len: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Symmetric<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Symmetric<T> {}

impl<T: Element> Symmetric<T> {
    pub(super) fn new(offset: u64, len: u64) -> Self {
        Self { offset, len, element: PhantomData }
    }

    /// The first element's symmetric offset, in bytes.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// The number of elements.
    #[must_use]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.len * T::WIDTH.bytes() as u64
    }

    /// The `len` elements from index `start` on.
    ///
    /// # Errors
    /// They are not all among these elements.
    #[inline]
    pub fn part(self, start: u64, len: u64) -> Result<Self, DeviceError> {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(beyond(start, len, self.len));
        }
        Ok(Self::new(self.offset + start * T::WIDTH.bytes() as u64, len))
    }

    /// The one element at `index`.
    ///
    /// # Errors
    /// There is no such element.
    pub fn at(self, index: u64) -> Result<Self, DeviceError> {
        self.part(index, 1)
    }
}

#[cold]
fn beyond(start: u64, len: u64, all: u64) -> DeviceError {
    DeviceError::Argument(format!("elements {start}..{start}+{len} are not within the {all} elements of the object"))
}

/// Memory of the calling PE for an operation's source or destination: symmetric, or a registered buffer.
#[derive(Debug, Clone, Copy)]
pub struct LocalMemory<T> {
    pub(super) place: Place,
    pub(super) len: u64,
    element: PhantomData<fn() -> T>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Heap(u64),
    Address(usize),
}

impl<T: Element> LocalMemory<T> {
    /// A buffer that was registered with the runtime. The engine refuses others.
    ///
    /// # Safety
    /// `first` is valid for `len` elements and aligned. From the start of an operation until it is complete (after an
    /// error: until the channel is quiet or the engine is gone), the buffer stays valid and no code writes to it. No
    /// code reads it while it is a get's destination.
    #[must_use]
    pub unsafe fn registered(first: *mut T, len: usize) -> Self {
        Self { place: Place::Address(first.expose_provenance()), len: len as u64, element: PhantomData }
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.len * T::WIDTH.bytes() as u64
    }
}

impl<T: Element> From<Symmetric<T>> for LocalMemory<T> {
    fn from(memory: Symmetric<T>) -> Self {
        Self { place: Place::Heap(memory.offset), len: memory.len, element: PhantomData }
    }
}
