//! Collective operations of [`Team`]s, and of the [`ActiveSet`]s that older programs use.
//!
//! | file | concept |
//! |---|---|
//! | here | the operations, and the algorithm of each |
//! | `quick` | sends whose arrival is counted: tickets, broadcasts |
//! | `blocks` | fcollect, collect and alltoall |
//! | `tree`, `relay` | the tree of a broadcast; the PEs that receive blocks for other hosts |
//! | `reduce` | the exchange that a reduction uses; shares of the PEs of a host; exchanges of numbers |
//! | `exchange` | which PE of a reduction sends which elements to which, and the order of combining |
//! | `direct` | algorithms for very large data and for active sets without an area: all to all between two barriers |
//! | `members` | PEs that can wait for one another |
//! | `call`, `same_call`, `agree` | checks that all PEs make the same call; for teams with `SYMRAIL_CHECK_COLLECTIVES` only |
//! | [`active_set`] | PEs that wait for one another through an array of the caller |
//! | `reuse` | when such an array may be used again |
//! | [`reduction`], [`number`] | how two elements are combined; types of elements, and what can be done with them |
//! | [`element`] | types of elements, as PEs compare them |
//!
//! | operation | algorithm | host by host |
//! |---|---|---|
//! | broadcast | binomial tree | a tree over the hosts, then one on each |
//! | reduce, small | recursive doubling | one PE of each host takes part for it |
//! | reduce, large | recursive halving and doubling | each PE takes part for its share of the elements |
//! | reduce, very large | each PE reduces its share of the elements, then puts it to all | as large |
//! | fcollect, collect | each PE puts its block to all, starting with the PE after itself | to one PE of each host,
//! which forwards it |
//! | reduce_scatter | each PE fetches its block from all and reduces it | as large |
//! | alltoall | each PE puts a block to each | the blocks for a host are packed, unless they are large, and distributed
//! there |
//!
//! `reduce` has the limits between the sizes. They depend on sizes, PEs and hosts alone, so that all PEs choose alike.
//!
//! Destinations and sources are symmetric memory, as OpenSHMEM requires: a peer may write a destination as soon as any
//! PE has made the call. The sources of large reductions must be symmetric too, because peers fetch them.

pub mod active_set;
mod agree;
mod blocks;
mod buffer;
pub(crate) mod call;
mod direct;
pub mod element;
mod exchange;
mod members;
pub mod number;
mod quick;
mod reduce;
pub mod reduction;
mod relay;
mod reuse;
pub(crate) mod same_call;
#[cfg(any(test, symrail_portable, not(target_arch = "x86_64")))]
mod soft_float;
mod tree;
#[cfg(all(target_arch = "x86_64", any(test, not(symrail_portable))))]
mod x87;

use std::time::Duration;

use symrail_core::clock;

pub use active_set::{ActiveSet, ActiveSets};
pub use element::{ElementType, Extent};
pub use half::{bf16, f16};
pub use number::{Bool, Complex, LongDouble};
pub use reduction::Reduction;

use call::Call;
use members::{Buffer, Members};

use crate::error::Result;
use crate::rma::Strided;
use crate::team::Team;

/// # Safety (of all operations)
/// `source` is valid for reads and `dest` for writes of the operation's length; `dest` is symmetric, and may be written
/// on all PEs before any of them calls. Source and destination do not overlap, unless they are the same.
///
/// # Errors (of all operations)
/// A destination that is not symmetric, an operation that failed, a peer that does not answer. After the latter two
/// none of this PE's operations is in flight, and its other failures are not reported again.
impl Team {
    /// Makes a collective call. A call that fails may have sent data already, and the caller may use its source again
    /// only when those sends have completed. If a PE is lost, sends to it fail later, and would become errors of the
    /// next call, perhaps one among PEs that have lost no PE. This function waits for both.
    fn call(
        &self,
        name: &'static str,
        call: Call,
        buffers: [Buffer; 2],
        collective: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let comm = self.ops().comm;
        comm.job.here()?;
        let result = self.agree(call).and_then(|_compared| {
            self.must_hold(name, &buffers)?;
            collective()
        });
        if let Err(error) = &result {
            let (since, time_limit) = (clock::now(), Duration::from_secs(comm.job.settings.timeout_s));
            let more_fails = || {
                let of_counted = self.ops().counted_have_left().is_err();
                of_counted | (error.peer().is_some() && self.ops().quiet().is_err())
            };
            while more_fails() && clock::since(since) < time_limit {}
        }
        result
    }

    /// The bytes of a block of each PE.
    fn of_all(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.group().size() as usize)
    }

    /// Copies `extent` from `source` on the PE with index `root` to `dest` on all PEs, `root` included.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn broadcast(
        &self,
        dest: *mut u8,
        source: *const u8,
        extent: impl Into<Extent>,
        root: u32,
    ) -> Result<()> {
        let call = Call { root, ..Call::new("broadcast", extent) };
        let bytes = call.bytes;
        let read = if self.group().me() == root { bytes } else { 0 };
        // SAFETY: the caller's promise.
        self.call("broadcast", call, [(dest, bytes), (source, read)], || unsafe {
            if self.group().me() == root {
                quick::copy_here(dest, source, bytes);
            }
            quick::broadcast(self, dest, source, bytes, root)
        })
    }

    /// Copies `extent` from each PE to `dest` on all PEs, in the order of their indexes.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn fcollect(&self, dest: *mut u8, source: *const u8, extent: impl Into<Extent>) -> Result<()> {
        let call = Call::new("fcollect", extent);
        let bytes = call.bytes;
        // SAFETY: the caller's promise.
        self.call("fcollect", call, [(dest, self.of_all(bytes)), (source, bytes)], || unsafe {
            blocks::to_all(self, dest, source, |index| (bytes * index as usize, bytes))
        })
    }

    /// As [`Team::fcollect`], but each PE contributes its own number of bytes.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn collect(&self, dest: *mut u8, source: *const u8, extent: impl Into<Extent>) -> Result<()> {
        let Extent { bytes, ty } = extent.into();
        let call = Call::new("collect", Extent { bytes: 0, ty });
        self.call("collect", call, [(dest, bytes), (source, bytes)], || {
            let sizes = self.gather(&[bytes as u64])?;
            let blocks = sizes.iter().scan(0usize, |end, &size| {
                let start = std::mem::replace(end, end.saturating_add(size as usize));
                Some((start, size as usize))
            });
            let blocks: Vec<_> = blocks.collect();
            let all = blocks.last().map_or(0, |&(start, bytes)| start.saturating_add(bytes));
            self.must_hold("collect", &[(dest, all)])?;
            // SAFETY: the caller's promise.
            unsafe { blocks::to_all(self, dest, source, |index| blocks[index as usize]) }
        })
    }

    /// Copies the `i`th `extent` of `source` to the PE with index `i`, and stores that PE's block at the same offset of
    /// `dest`.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn alltoall(&self, dest: *mut u8, source: *const u8, extent: impl Into<Extent>) -> Result<()> {
        let call = Call::new("alltoall", extent);
        let (bytes, all) = (call.bytes, self.of_all(call.bytes));
        // SAFETY: the caller's promise.
        self.call("alltoall", call, [(dest, all), (source, all)], || unsafe {
            blocks::all_to_all(self, dest, source, bytes)
        })
    }

    /// As [`Team::alltoall`] with strided blocks of `shape.count` elements of type `ty`.
    ///
    /// # Safety
    /// See above.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn alltoalls(&self, dest: *mut u8, source: *const u8, shape: Strided, ty: ElementType) -> Result<()> {
        // SAFETY: the caller's promise.
        self.call("alltoalls", Call::strided("alltoalls", shape, ty), spans(self, dest, source, shape), || unsafe {
            direct::all_to_all_strided(self, dest, source, shape)
        })
    }

    /// Combines `count` elements of all PEs' `source` into `dest` on all PEs. The result has the same bits on all PEs.
    ///
    /// # Safety
    /// See above. Up to 8 KiB, `dest` and `source` may be any memory.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn reduce(&self, dest: *mut u8, source: *const u8, count: usize, reduction: Reduction) -> Result<()> {
        let call = Call::new(reduction.call(), reduction.extent(count));
        // SAFETY: the caller's promise.
        self.call("reduce", call, [(dest, call.bytes), (source, call.bytes)], || unsafe {
            reduce::reduce(self, dest, source, count, reduction)?;
            reduction.finish(dest, count, self.group().size());
            Ok(())
        })
    }

    /// Combines the `i`th `count` elements of all PEs' `source` into `dest` on the PE with index `i`.
    ///
    /// # Safety
    /// See above; `source` is symmetric.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn reduce_scatter(
        &self,
        dest: *mut u8,
        source: *const u8,
        count: usize,
        reduction: Reduction,
    ) -> Result<()> {
        let call = reducing("reduce_scatter", reduction, count);
        // SAFETY: the caller's promise.
        self.call("reduce_scatter", call, [(dest, call.bytes), (source, self.of_all(call.bytes))], || unsafe {
            direct::reduce_scatter(self, dest, source, count, reduction)?;
            reduction.finish(dest, count, self.group().size());
            Ok(())
        })
    }

    /// As [`Team::reduce`], over the PEs with lower indexes only and, if `inclusive`, this one. If there are none,
    /// `dest` becomes 0.
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
        let call = reducing("scan", reduction, count);
        // SAFETY: the caller's promise.
        self.call("scan", call, [(dest, call.bytes), (source, call.bytes)], || unsafe {
            direct::scan(self, dest, source, count, reduction, inclusive)
        })
    }
}

/// A call that reduces `count` elements.
fn reducing(what: &'static str, reduction: Reduction, count: usize) -> Call {
    Call { reduction: Some(reduction.call()), ..Call::new(what, reduction.extent(count)) }
}

/// The memory that an all-to-all with strides writes and reads.
fn spans(m: &impl Members, dest: *const u8, source: *const u8, shape: Strided) -> [Buffer; 2] {
    let span = |stride| shape.span(stride, m.group().size());
    [(dest, span(shape.dest_stride)), (source, span(shape.source_stride))]
}
