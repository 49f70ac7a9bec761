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

use symrail_transport::endpoint::command::Priority;

use crate::error::{Error, Result};
use crate::operations::Operations;
use crate::runtime::Runtime;
use crate::wire::MAX_CONTEXTS;

/// A context: see the [module](self). It keeps its runtime alive.
///
/// Dropping it completes its operations; [`Context::destroy`] also returns their errors.
pub struct Context {
    number: usize,
    runtime: Runtime,
}

impl Context {
    pub(crate) fn new(runtime: &Runtime) -> Result<Context> {
        let number = runtime.comm().contexts.take().ok_or(Error::TooManyContexts { limit: MAX_CONTEXTS })?;
        Ok(Context { number, runtime: runtime.clone() })
    }

    /// The operations of this context.
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations::on(self.runtime.comm(), self.number)
    }

    /// Sets the priority of its later operations; at first they are urgent. Operations of a bulk context of 64 KiB and
    /// more travel in [pieces](Priority::Bulk) that others hardly wait for. They need a rail's full window less, so they
    /// are slower where the CPU moves the bytes.
    pub fn set_priority(&self, priority: Priority) {
        self.runtime.comm().contexts.get(self.number).set_priority(priority);
    }

    /// The runtime that it belongs to.
    #[inline]
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Its number among this PE's contexts, for [`Runtime::operations_on`].
    #[inline]
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Completes the context's operations, and destroys it.
    ///
    /// # Errors
    /// The first operation that failed since its last quiet. The context is destroyed in any case.
    pub fn destroy(self) -> Result<()> {
        self.quiet()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Err(error) = self.quiet()
            && !matches!(error, Error::Finalized { .. } | Error::Forked { .. })
        {
            tracing::warn!(%error, "an operation failed on a context that was dropped");
        }
        self.runtime.comm().contexts.give_back(self.number);
    }
}
