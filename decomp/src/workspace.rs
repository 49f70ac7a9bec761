//! Memory for blocks that do not go straight to the output.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use symrail::kernels::cuda::{Gpu, LastUse};
use symrail::team::heap::Block;
use symrail::{Group, Runtime};
use symrail_core::lock;

use crate::error::Result;

/// Symmetric memory of a team for its plans. Each plan in flight needs its own: rounds on GPUs with the same one run in
/// the order in which they were enqueued, on whatever streams, so that all PEs enqueue them in the same order.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) block: Option<Block>,
    owner: u64,
    /// The offset from which on it is used.
    begin: usize,
    /// Behind the last round on a GPU, if there was one.
    last: Option<LastUse>,
    /// Whether a graph has captured a round with it.
    is_kept: bool,
}

impl Workspace {
    pub(crate) fn new(block: Block, owner: u64) -> Workspace {
        Workspace { block: Some(block), owner, begin: 0, last: None, is_kept: false }
    }

    /// No memory: every plan refuses it, and tells its peers.
    #[must_use]
    pub fn none() -> Workspace {
        Workspace { block: None, owner: 0, begin: 0, last: None, is_kept: false }
    }

    /// The number of bytes, from the address that [`Workspace::base`] returns on.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.all_bytes() - self.begin
    }

    /// The number of all bytes: the largest size that a PE has requested.
    #[must_use]
    pub fn all_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.bytes)
    }

    /// The symmetric address.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), |block| block.base.wrapping_add(self.begin))
    }

    /// Lets plans use the bytes from this offset on, or from the end on if it is beyond. All PEs use the same offset.
    pub fn begin_at(&mut self, offset: usize) {
        self.begin = offset.min(self.all_bytes());
    }

    /// Notes that a graph uses the memory: a replay writes to it at any time. A plan on a GPU notes the graphs that
    /// capture its rounds by itself.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Whether a graph of this PE uses the memory.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The last round on a GPU, which later ones follow.
    pub(crate) fn last_use(&mut self, gpu: &Arc<Gpu>) -> Result<&LastUse> {
        Ok(match &mut self.last {
            Some(last) => last,
            none => none.insert(LastUse::new(gpu)?),
        })
    }
}

/// A number for an owner of workspaces, which no earlier owner of this process has.
pub(crate) fn new_owner() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Lets decompositions over the same PEs use one another's workspaces.
#[derive(Default)]
pub struct Sharing(Mutex<Vec<(Runtime, Group, u64)>>);

impl Sharing {
    /// The owner for a team with these PEs.
    pub(crate) fn owner(&self, runtime: &Runtime, group: Group) -> u64 {
        let mut all = lock(&self.0);
        if let Some((.., owner)) = all.iter().find(|(of, pes, _)| of.is_same(runtime) && *pes == group) {
            return *owner;
        }
        let owner = new_owner();
        all.push((runtime.clone(), group, owner));
        owner
    }
}
