//! Memory in which blocks wait.

use std::sync::atomic::{AtomicU64, Ordering};

use symrail::team::heap::Block;

/// Symmetric memory of a team for plans that it has made; each plan that is under way needs its own.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) block: Block,
    owner: u64,
}

impl Workspace {
    pub(crate) fn new(block: Block, owner: u64) -> Workspace {
        Workspace { block, owner }
    }

    /// How many bytes it has: as many as the PE that asked for most.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.bytes
    }

    /// Its symmetric address.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.block.base
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }
}

/// A number for something that has workspaces, other than all before it in this process.
pub(crate) fn new_owner() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
