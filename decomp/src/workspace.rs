//! Memory for blocks that do not go straight to the output.

use std::sync::atomic::{AtomicU64, Ordering};

use symrail::team::heap::Block;

/// Symmetric memory of a team for its plans. Each plan in flight needs its own.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) block: Block,
    owner: u64,
}

impl Workspace {
    pub(crate) fn new(block: Block, owner: u64) -> Workspace {
        Workspace { block, owner }
    }

    /// The number of bytes: the largest size that a PE has requested.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.bytes
    }

    /// The symmetric address.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.block.base
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }
}

/// A number for an owner of workspaces, which no earlier owner of this process has.
pub(crate) fn new_owner() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
