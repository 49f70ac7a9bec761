//! Typed symmetric memory with checked bounds: the safe way to use the heap.
//!
//! A [`SymSlice`] is the same `n` elements on every PE. An index names an element; an index out of bounds is an error.
//! [`Runtime::alloc_slice`] and [`SymSlice::free`] are collective.
//!
//! ```
//! use symrail::{Cmp, Runtime, SignalUpdate};
//! # fn main() -> symrail::Result<()> {
//! let rt = Runtime::init()?; // alone, unless something like `symrail run` has started several of us
//! let next = (rt.my_pe() + 1) % rt.n_pes();
//! let data = rt.alloc_slice::<f64>(3)?;
//! let ready = rt.alloc_slice::<u64>(1)?;
//! data.put_signal(0, &[0.5, 1.5, 2.5], SignalUpdate::set((&ready, 0), 1), next)?;
//! ready.wait_until(0, Cmp::Eq, 1)?;
//! assert_eq!(data.to_vec()?, [0.5, 1.5, 2.5]);
//! assert!(data.put(2, &[0.0, 0.0], next).is_err(), "there is no element 3");
//! ready.free()?;
//! data.free()?;
//! rt.finalize()
//! # }
//! ```
//!
//! A slice may outlive its runtime: this PE's elements stay there, and operations with PEs are refused after
//! [`Runtime::finalize`].
//!
//! ```
//! # fn main() -> symrail::Result<()> {
//! let rt = symrail::Runtime::init()?;
//! let (data, me) = (rt.alloc_slice::<u64>(1)?, rt.my_pe());
//! data.write(0, 7)?;
//! rt.finalize()?;
//! assert_eq!(data.read(0)?, 7);
//! assert!(matches!(data.p(0, 8, me), Err(symrail::Error::Finalized { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! A slice holds plain data only:
//!
//! ```compile_fail,E0277
//! let rt = symrail::Runtime::init().unwrap();
//! let flags = rt.alloc_slice::<bool>(1).unwrap(); // a peer might write 2
//! ```
//!
//! | file | concept |
//! |---|---|
//! | [`element`] | the types of elements |
//! | here | allocation, bounds, this PE's own elements |
//! | [`rma`] | puts, gets, put-signals |
//! | [`atomics`] | AMOs |
//! | [`wait`] | waiting for this PE's elements to change |
//!
//! # Why this is sound
//! - The crate never makes a reference into the heap, because peers write to it at any time. This PE's elements are
//!   read and written one by one, by atomic loads and stores. Puts and gets of ranges on mapped PEs are copies by the
//!   CPU, which are not atomic: a copy that races with other accesses to the same elements gives them any mixture of
//!   old and new bytes. The language calls such a race undefined; NICs and processes of other PEs race in the same way
//!   with every access. The copies are raw copies of plain bytes, and every bit pattern is a value of an element
//!   ([`Symmetric`]). PEs synchronise by words that signals, AMOs and waits access atomically.
//! - Memory of a slice stays mapped until the runtime has closed its rails, and the slice keeps the runtime alive. Views
//!   borrow the slice, and only the slice frees its block. If a PE uses a slice after its *peers* have freed theirs, it
//!   reads and writes plain data of another allocation there: a mistake, but every element still holds a value of its
//!   type.
//! - Non-blocking operations have symmetric memory on both sides. A borrowed buffer would be unsound, however its
//!   borrow were tied to a quiet: a quiet that gives up after `TIMEOUT_S` ends the wait, but a NIC may still access the
//!   buffer. For the same reason blocking operations with borrowed buffers go through memory of the runtime on the
//!   wire. Large transfers are therefore fastest from symmetric memory to symmetric memory.

pub mod atomics;
pub mod element;
pub mod rma;
pub mod wait;

use std::marker::PhantomData;
use std::ops::Deref;

pub use element::Symmetric;
use symrail_transport::Pe;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::operations::Operations;
use crate::runtime::Runtime;
use crate::space::at;

/// `len` elements of type `T` on every PE, allocated from the heap. See the [module](self).
///
/// Its operations are those of [`SymView`], on the default context. Dropping it frees nothing, since freeing is
/// collective: see [`SymSlice::free`].
pub struct SymSlice<T> {
    view: SymView<'static, T>,
}

/// The elements of a [`SymSlice`], with operations on one context. If that is not the default one, it borrows slice and
/// context, so it cannot be used after the slice was freed.
pub struct SymView<'a, T> {
    on: On<'a>,
    /// The address of the first element, in this process; a multiple of 64.
    first: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

/// The context of a view's operations.
enum On<'a> {
    /// The default context of a runtime, which is kept alive.
    Default(Runtime),
    Context(&'a Context),
}

impl<T> Deref for SymSlice<T> {
    type Target = SymView<'static, T>;

    #[inline]
    fn deref(&self) -> &SymView<'static, T> {
        &self.view
    }
}

impl<T> std::fmt::Debug for SymSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view.fmt(f)
    }
}

impl<T> std::fmt::Debug for SymView<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "{element} × {} at {:#x}, symmetric", self.len, self.first)
    }
}

impl Runtime {
    /// Allocates `len` elements on every PE's heap, all 0. Collective.
    ///
    /// # Errors
    /// The heap is exhausted, or PEs asked for different sizes; then no PE gets memory.
    pub fn alloc_slice<T: Symmetric>(&self, len: usize) -> Result<SymSlice<T>> {
        let allocator = self.allocator();
        let first = allocator.calloc(len, size_of::<T>())?;
        if !first.is_null() {
            allocator.keep(first)?;
        }
        // An empty slice is at the start of the heap.
        let first = if len == 0 { self.comm().space.users_base() } else { first.expose_provenance() };
        Ok(SymSlice { view: SymView { on: On::Default(self.clone()), first, len, element: PhantomData } })
    }
}

impl<T: Symmetric> SymSlice<T> {
    /// The same elements, with operations on another context.
    ///
    /// # Errors
    /// [`Error::OtherRuntime`].
    pub fn on<'a>(&'a self, context: &'a Context) -> Result<SymView<'a, T>> {
        if !self.runtime().is_same(context.runtime()) {
            return Err(Error::OtherRuntime { what: "on", pe: self.runtime().my_pe() });
        }
        Ok(SymView { on: On::Context(context), first: self.first, len: self.len, element: PhantomData })
    }

    /// Frees the elements. Collective.
    ///
    /// # Errors
    /// PEs freed different slices; then nothing is freed.
    pub fn free(self) -> Result<()> {
        if self.len == 0 { Ok(()) } else { self.runtime().allocator().free_kept(self.address(0).cast()) }
    }
}

impl<T: Symmetric> SymView<'_, T> {
    /// The number of elements on each PE.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The runtime whose heap it is in.
    #[inline]
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        match &self.on {
            On::Default(runtime) => runtime,
            On::Context(context) => context.runtime(),
        }
    }

    #[inline]
    fn ops(&self) -> Operations<'_> {
        match &self.on {
            On::Default(runtime) => runtime.operations(),
            On::Context(context) => context.operations(),
        }
    }

    /// The number of the operations' context; `None` for the default one.
    fn context(&self) -> Option<usize> {
        match &self.on {
            On::Default(_) => None,
            On::Context(context) => Some(context.number()),
        }
    }

    /// The symmetric address of the first element, for the untyped operations of [`Runtime`]; it names the same element
    /// on every PE. Peers write there at any time: never make a reference of it.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.address(0)
    }

    /// Reads an element of this PE.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn read(&self, index: usize) -> Result<T> {
        let at = self.own(index, 1)?;
        if self.ops().comm.space.is_staged(at.cast()) {
            return self.ops().read_staged(at);
        }
        // SAFETY: the element is in this PE's committed heap and aligned, and no references to it exist.
        Ok(unsafe { T::load(at) })
    }

    /// Sets an element of this PE.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn write(&self, index: usize, value: T) -> Result<()> {
        let at = self.own(index, 1)?;
        if self.ops().comm.space.is_staged(at.cast()) {
            return self.ops().write_staged(at, &[value]);
        }
        // SAFETY: as for `read`.
        unsafe { T::store(at, value) };
        Ok(())
    }

    /// Copies this PE's elements from `start` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read_slice(&self, start: usize, dest: &mut [T]) -> Result<()> {
        let from = self.own(start, dest.len())?;
        if self.ops().comm.space.is_staged(from.cast()) {
            // SAFETY: the slice is valid for as many bytes, and this call waits until they have arrived.
            return unsafe {
                self.runtime().get(dest.as_mut_ptr().cast(), from.cast(), size_of_val(dest), self.runtime().my_pe())
            };
        }
        for (i, to) in dest.iter_mut().enumerate() {
            // SAFETY: as for `read`, for all of them.
            *to = unsafe { T::load(from.add(i)) };
        }
        Ok(())
    }

    /// Sets this PE's elements from `start` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn write_slice(&self, start: usize, source: &[T]) -> Result<()> {
        let to = self.own(start, source.len())?;
        if self.ops().comm.space.is_staged(to.cast()) {
            return self.ops().write_staged(to, source);
        }
        for (i, &value) in source.iter().enumerate() {
            // SAFETY: as for `read`, for all of them.
            unsafe { T::store(to.add(i), value) };
        }
        Ok(())
    }

    /// Sets all of this PE's elements to `value`.
    ///
    /// # Errors
    /// Those of a put to this PE's own memory, if the CPU cannot access it.
    pub fn fill(&self, value: T) -> Result<()> {
        if self.ops().comm.space.is_staged(self.address(0).cast()) {
            return self.ops().write_staged(self.address(0), &vec![value; self.len]);
        }
        for i in 0..self.len {
            // SAFETY: as for `read`, for all of them.
            unsafe { T::store(self.address(i), value) };
        }
        Ok(())
    }

    /// A copy of all of this PE's elements.
    ///
    /// # Errors
    /// Those of a get from this PE's own memory, if the CPU cannot access it.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut all = vec![T::default(); self.len];
        self.read_slice(0, &mut all)?;
        Ok(all)
    }

    /// The address of an element that exists.
    #[inline]
    fn address(&self, index: usize) -> *mut T {
        at(self.first, (index * size_of::<T>()) as u64).cast()
    }

    /// The address of `count` elements of this PE.
    #[inline]
    fn own(&self, start: usize, count: usize) -> Result<*mut T> {
        self.range("local access", self.runtime().my_pe(), start, count)
    }

    /// The symmetric address of `count` elements, for an operation with a PE.
    #[inline]
    fn range(&self, what: &'static str, pe: Pe, start: usize, count: usize) -> Result<*mut T> {
        if start <= self.len && count <= self.len - start {
            return Ok(self.address(start));
        }
        Err(self.out_of_bounds(what, pe, start, count))
    }

    /// The symmetric address of `count` elements that are `stride` apart.
    fn strided(&self, what: &'static str, pe: Pe, start: usize, stride: usize, count: usize) -> Result<*mut T> {
        let last = count.saturating_sub(1).saturating_mul(stride);
        let span = if count == 0 { 0 } else { last.saturating_add(1) };
        self.range(what, pe, start, span)
    }

    #[cold]
    fn out_of_bounds(&self, what: &'static str, pe: Pe, start: usize, count: usize) -> Error {
        Error::OutOfBounds { what, pe, start, count, len: self.len }
    }
}
