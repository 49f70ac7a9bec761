//! Contexts: operations that are ordered and completed apart from others.
//!
//! A runtime's own operations belong to its default context. [`create_context`](crate::Runtime::create_context) makes
//! further contexts, typically one for each thread: a fence or quiet of a context covers its own operations alone. Over
//! libfabric each context gets its own endpoint (up to `SYMRAIL_CONTEXT_ENDPOINTS`; further contexts share the default
//! context's), so threads with their own contexts do not wait for one another.
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
//! assert_eq!(data.to_vec()?, [7, 8]);
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

use std::ops::Deref;

use crate::error::{Error, Result};
use crate::operations::{Communicator, Operations};
use crate::wire::MAX_CONTEXTS;

/// A context: see the [module](self). Its operations are those of [`Operations`].
///
/// Dropping it completes its operations; [`Context::destroy`] also returns their errors.
pub struct Context<'rt> {
    operations: Operations<'rt>,
    number: usize,
}

impl<'rt> Context<'rt> {
    pub(crate) fn new(comm: &'rt Communicator) -> Result<Context<'rt>> {
        let (number, context) = comm.contexts.take().ok_or(Error::TooManyContexts { limit: MAX_CONTEXTS })?;
        Ok(Context { operations: Operations::on(comm, context), number })
    }

    /// Operations of this context, for a caller that owns the context.
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'rt> {
        self.operations
    }

    /// Completes the context's operations, and destroys it.
    ///
    /// # Errors
    /// The first operation that failed since its last quiet. The context is destroyed in any case.
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
        self.comm.contexts.give_back(self.number);
    }
}
