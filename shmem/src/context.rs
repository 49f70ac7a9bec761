//! Contexts: operations that are ordered and completed apart from others.
//!
//! A runtime's own operations are those of its default context. [`Runtime::create_context`] makes others, typically one for
//! each thread: a fence or quiet of one concerns what was started on that one alone. Over libfabric each gets an
//! endpoint of its own (as many as `SYMRAIL_CONTEXT_ENDPOINTS` says; further ones share the default context's), so
//! threads with contexts of their own do not wait for one another.
//!
//! ```
//! use symrail::Runtime;
//! # fn main() -> symrail::Result<()> {
//! let rt = Runtime::init()?;
//! let next = (rt.my_pe() + 1) % rt.n_pes();
//! let data = rt.alloc_slice::<u64>(2)?;
//! std::thread::scope(|threads| {
//!     let writers = [0, 1].map(|i| {
//!         let (rt, data) = (&rt, &data);
//!         threads.spawn(move || {
//!             let context = rt.create_context()?;
//!             data.on(&context)?.p(i, 7 + i as u64, next)?;
//!             context.quiet()?; // waits for this thread's put alone
//!             context.destroy()
//!         })
//!     });
//!     writers.into_iter().try_for_each(|writer| writer.join().expect("a thread that panicked"))
//! })?;
//! rt.barrier_all()?;
//! assert_eq!(data.to_vec(), [7, 8]);
//! data.free()?;
//! rt.finalize()
//! # }
//! ```
//!
//! A view of a slice on a context does not outlive the context:
//!
//! ```compile_fail,E0505
//! # let rt = symrail::Runtime::init().unwrap();
//! let data = rt.alloc_slice::<u64>(1).unwrap();
//! let context = rt.create_context().unwrap();
//! let view = data.on(&context).unwrap();
//! context.destroy().unwrap();
//! view.p(0, 1, 0).unwrap();
//! ```

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Mutex;

use symrail_transport::Pe;
use symrail_transport::amo::{AmoOp, AmoType};

use crate::atomics::AmoInteger;
use crate::error::{Error, Result};
use crate::rma::{SignalOp, Strided};
use crate::runtime::{Runtime, lock};
use crate::wire::{Flow, Via};

/// Contexts that a PE can have at a time.
const MAX_CONTEXTS: usize = 1024;

/// The operations of a runtime on one of its contexts.
#[derive(Clone, Copy)]
pub struct Operations<'rt> {
    pub(crate) runtime: &'rt Runtime,
    flow: &'rt Flow,
}

impl<'rt> Operations<'rt> {
    /// The runtime.
    #[inline]
    #[must_use]
    pub fn runtime(&self) -> &'rt Runtime {
        self.runtime
    }

    #[inline]
    pub(crate) fn via(&self) -> Result<Via<'rt>> {
        Ok(Via::new(self.runtime.wire()?, self.flow))
    }

    /// As [`Operations::via`]; `None` when there is no wire.
    #[inline]
    pub(crate) fn via_if_any(&self) -> Option<Via<'rt>> {
        let wire = self.runtime.wire.as_ref().ok().filter(|_| !self.runtime.is_forked());
        wire.map(|wire| Via::new(wire, self.flow))
    }
}

/// A context: see the [module](self). Its operations are those of [`Operations`].
///
/// Dropping it completes what was started on it; [`Context::destroy`] also tells how that went.
pub struct Context<'rt> {
    operations: Operations<'rt>,
    number: usize,
}

/// The contexts that a runtime has, and can have.
pub(crate) struct Contexts {
    flows: Box<[Flow]>,
    /// Those that are not in use. What has an endpoint already comes first, what shares one last.
    free: Mutex<VecDeque<usize>>,
}

impl Default for Contexts {
    fn default() -> Contexts {
        let flows = (0..MAX_CONTEXTS).map(|_| Flow::default()).collect();
        Contexts { flows, free: Mutex::new((0..MAX_CONTEXTS).collect()) }
    }
}

impl Runtime {
    /// Makes a context. Not collective: each PE has as many as it likes.
    ///
    /// # Errors
    /// [`Error::TooManyContexts`].
    pub fn create_context(&self) -> Result<Context<'_>> {
        let number = lock(&self.contexts.free).pop_front();
        let found = number.and_then(|number| Some((number, self.contexts.flows.get(number)?)));
        let (number, flow) = found.ok_or(Error::TooManyContexts { limit: MAX_CONTEXTS })?;
        Ok(Context { operations: Operations { runtime: self, flow }, number })
    }

    /// The operations on the default context, which are the runtime's own.
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations { runtime: self, flow: &self.flow }
    }
}

impl<'rt> Context<'rt> {
    /// Its operations, for who keeps the context himself.
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'rt> {
        self.operations
    }

    /// Completes what was started on the context, and gives it up.
    ///
    /// # Errors
    /// The first operation that failed since its last quiet. The context is gone in any case.
    pub fn destroy(self) -> Result<()> {
        self.quiet()
    }
}

impl<'rt> Deref for Context<'rt> {
    type Target = Operations<'rt>;

    #[inline]
    fn deref(&self) -> &Operations<'rt> {
        &self.operations
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.quiet() {
            tracing::warn!(%error, "an operation failed on a context that was dropped");
        }
        let mut free = lock(&self.runtime.contexts.free);
        if self.flow.has_own_endpoint() { free.push_front(self.number) } else { free.push_back(self.number) }
    }
}

/// The runtime's own operations, by those of the default context.
macro_rules! on_default_context {
    (
        unsafe { $($unsafe_name:ident($($unsafe_arg:ident: $unsafe_ty:ty),*);)* }
        safe { $($name:ident$(<$t:ident: $bound:ident>)?($($arg:ident: $ty:ty),*) -> $value:ty;)* }
    ) => {
        impl Runtime {
            $(
                #[doc = concat!("[`Operations::", stringify!($unsafe_name), "`] on the default context.")]
                ///
                /// # Safety
                /// As there.
                ///
                /// # Errors
                /// As there.
                #[inline]
                #[allow(clippy::too_many_arguments)] // an AMO has these parts
                pub unsafe fn $unsafe_name(&self, $($unsafe_arg: $unsafe_ty),*) -> Result<()> {
                    // SAFETY: the caller's promise.
                    unsafe { self.operations().$unsafe_name($($unsafe_arg),*) }
                }
            )*
            $(
                #[doc = concat!("[`Operations::", stringify!($name), "`] on the default context.")]
                ///
                /// # Errors
                /// As there.
                #[inline]
                pub fn $name$(<$t: $bound>)?(&self, $($arg: $ty),*) -> Result<$value> {
                    self.operations().$name($($arg),*)
                }
            )*
        }
    };
}

on_default_context! {
    unsafe {
        put(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        put_nbi(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        get(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        get_nbi(dest: *mut u8, source: *const u8, len: usize, pe: Pe);
        iput(dest: *mut u8, source: *const u8, shape: Strided, pe: Pe);
        iget(dest: *mut u8, source: *const u8, shape: Strided, pe: Pe);
        put_signal(dest: *mut u8, source: *const u8, len: usize, signal: (*mut u64, u64, SignalOp), pe: Pe);
        put_signal_nbi(dest: *mut u8, source: *const u8, len: usize, signal: (*mut u64, u64, SignalOp), pe: Pe);
        fetch_amo_nbi(result: *mut u8, dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe);
    }
    safe {
        fence() -> ();
        quiet() -> ();
        amo(dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> ();
        fetch_amo(dest: *mut u8, ty: AmoType, op: AmoOp, operand: u64, compare: u64, pe: Pe) -> u64;
        fetch_add<T: AmoInteger>(dest: *mut T, value: T, pe: Pe) -> T;
        signal_op(signal: *mut u64, value: u64, op: SignalOp, pe: Pe) -> ();
    }
}
