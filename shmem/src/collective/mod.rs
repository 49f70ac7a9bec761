//! Collective operations of [`Team`]s, and of the [`ActiveSet`]s that older programs use.
//!
//! | file | concept |
//! |---|---|
//! | here | what can be called, and which algorithm it takes |
//! | `quick` | algorithms of teams: data and signal in one message, to memory that says who waits for what |
//! | `direct` | algorithms for large data and for active sets: everybody to everybody between two meetings |
//! | `same_call` | do all PEs make the same call? Asked only with `SYMRAIL_CHECK_COLLECTIVES` |
//! | [`active_set`] | PEs that meet through an array of the caller |
//! | [`reduction`] | how two elements become one |
//!
//! | operation | small | large |
//! |---|---|---|
//! | broadcast | binomial tree of put-signals | the same |
//! | reduce | recursive doubling | each PE reduces its share of the elements, then puts it to all |
//! | fcollect, alltoall | each PE put-signals its block to all, starting behind itself | the same |
//! | collect | sizes first, then as fcollect | the same |
//!
//! Destinations and sources are symmetric memory, as OpenSHMEM says: a destination may be written as soon as any PE has
//! made the call. For fetches by peers, so must be the sources of large reductions.

pub mod active_set;
mod buffer;
mod direct;
mod quick;
pub mod reduction;
pub(crate) mod same_call;

pub use active_set::ActiveSet;
pub use reduction::{Complex, LongDouble, Reduction};

use same_call::Call;

use crate::error::Result;
use crate::rma::Strided;
use crate::runtime::Runtime;
use crate::team::{Group, SMALL, Team};

/// Reductions of at most this many bytes go through the team's area, a part after the other.
const DOUBLING_UP_TO: usize = 2 * SMALL;

/// PEs that can wait for one another.
pub(crate) trait Members {
    fn runtime(&self) -> &Runtime;
    fn group(&self) -> Group;
    /// Returns when all have called it. Completes nothing.
    fn meet(&self) -> Result<()>;
}

impl Members for Team<'_> {
    fn runtime(&self) -> &Runtime {
        self.runtime
    }

    fn group(&self) -> Group {
        self.group
    }

    fn meet(&self) -> Result<()> {
        self.sync_flags()
    }
}

/// # Safety (of all operations)
/// `source` is valid for reads and `dest` for writes of what the operation says; `dest` is symmetric and ready to be written
/// on all PEs before any of them calls. Source and destination do not overlap, unless they are the same.
///
/// # Errors (of all operations)
/// A destination that is not symmetric, an operation that failed, a peer that does not answer.
impl Team<'_> {
    /// Copies `bytes` from `source` on the PE with index `root` to `dest` on all, `root` included.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn broadcast(&self, dest: *mut u8, source: *const u8, bytes: usize, root: u32) -> Result<()> {
        self.runtime.must_be_host("broadcast", [dest, source])?;
        self.agree(Call { root, ..Call::new("broadcast", bytes) })?;
        // SAFETY: the caller's promise.
        unsafe { quick::broadcast(self, dest, source, bytes, root) }
    }

    /// Copies `bytes` from each PE to `dest` on all, one PE's behind the other's.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn fcollect(&self, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
        self.runtime.must_be_host("fcollect", [dest, source])?;
        self.agree(Call::new("fcollect", bytes))?;
        // SAFETY: the caller's promise.
        unsafe { quick::to_all(self, dest, source, bytes, bytes * self.group.me() as usize) }
    }

    /// As [`Team::fcollect`], where each PE has as many bytes as it says.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn collect(&self, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
        self.runtime.must_be_host("collect", [dest, source])?;
        self.agree(Call::new("collect", 0))?;
        let sizes = quick::exchange_numbers(self, bytes as u64)?;
        let before: u64 = sizes.iter().take(self.group.me() as usize).sum();
        // SAFETY: the caller's promise.
        unsafe { quick::to_all(self, dest, source, bytes, before as usize) }
    }

    /// Copies the `i`th `bytes` of `source` to the PE with index `i`, and puts what comes from it at the same place of `dest`.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn alltoall(&self, dest: *mut u8, source: *const u8, bytes: usize) -> Result<()> {
        self.runtime.must_be_host("alltoall", [dest, source])?;
        self.agree(Call::new("alltoall", bytes))?;
        // SAFETY: the caller's promise.
        unsafe { quick::all_to_all(self, dest, source, bytes) }
    }

    /// As [`Team::alltoall`] with strided blocks of `shape.count` elements.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn alltoalls(&self, dest: *mut u8, source: *const u8, shape: Strided) -> Result<()> {
        self.runtime.must_be_host("alltoalls", [dest, source])?;
        self.agree(Call::new("alltoalls", shape.count * shape.size))?;
        // SAFETY: the caller's promise.
        unsafe { direct::all_to_all_strided(self, dest, source, shape) }
    }

    /// Combines `count` elements of all PEs' `source` into `dest` on all. The result has the same bits on all PEs.
    ///
    /// # Safety
    /// See above. Up to 8 KiB, `dest` and `source` may be any memory.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn reduce(&self, dest: *mut u8, source: *const u8, count: usize, reduction: Reduction) -> Result<()> {
        let bytes = count.saturating_mul(reduction.size());
        self.runtime.must_be_host("reduce", [dest, source])?;
        self.agree(Call::new(reduction.call(), bytes))?;
        if bytes > DOUBLING_UP_TO {
            // SAFETY: the caller's promise.
            return unsafe { direct::reduce(self, dest, source, count, reduction) };
        }
        let part = SMALL / reduction.size();
        for first in (0..count).step_by(part) {
            let at = first * reduction.size();
            let (dest, source) = (dest.wrapping_add(at), source.wrapping_add(at));
            // SAFETY: the caller's promise, for a part.
            unsafe { quick::reduce(self, dest, source, part.min(count - first), reduction) }?;
        }
        Ok(())
    }

    /// As [`Team::reduce`], of the PEs with lower indexes only and, if `inclusive`, this one. Without any, `dest` becomes 0.
    ///
    /// # Safety
    /// See above; `source` is symmetric.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn scan(
        &self,
        dest: *mut u8,
        source: *const u8,
        count: usize,
        reduction: Reduction,
        inclusive: bool,
    ) -> Result<()> {
        self.runtime.must_be_host("scan", [dest, source])?;
        self.agree(Call::new("scan", count.saturating_mul(reduction.size())))?;
        // SAFETY: the caller's promise.
        unsafe { direct::scan(self, dest, source, count, reduction, inclusive) }
    }
}
