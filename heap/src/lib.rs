//! The symmetric heap: which memory every PE has at the same offsets, and who can reach it by loads and stores.
//!
//! # Invariants
//! - PEs that make the same calls get the same offsets ([`allocator`]).
//! - What the heap knows about itself is not in the heap: a stray put breaks data, not the allocator.
//! - The address range never moves; memory comes behind it segment by segment, and is not taken away ([`memory`]).
//! - A peer's heap is mapped only when it is certainly the one that the peer described; else it is reached over the
//!   wire, and the reason is kept ([`peers`]).
//! - Heap memory changes under us. It is reached by raw pointers only. `unsafe` stands in [`mapping`], [`memory`],
//!   [`guarded`], [`copy_engine`], [`mailbox`], [`mailbox_copy_engine`], [`cuda`] and [`copy`].
//! - Nothing here communicates. Handles and calls are exchanged by whoever owns the heap.
//!
//! # Where to start
//! [`heap`] puts the rest together: [`SymmetricHeap::new`], [`SymmetricHeap::alloc`], [`SymmetricHeap::segments`].
//!
//! | module | concept |
//! |---|---|
//! | [`heap`] | one PE's heap: blocks, segments, offsets and addresses |
//! | [`allocator`] | which offsets belong to whom; touches no memory |
//! | [`memory`] | the memory file behind the offsets |
//! | [`mapping`] | mapping and unmapping files |
//! | [`handle`], [`host`] | what a PE publishes about its heap and its host |
//! | [`site`] | where PEs run: what their rails depend on |
//! | [`agreement`] | what PEs must have or call alike |
//! | [`peers`] | the mapped heaps of same-host peers |
//! | [`copy`](mod@copy) | copying between mappings, the way of same-host puts and gets |
//! | [`copy_engine`] | copying to and from memory that the CPU cannot touch |
//! | [`mailbox`], [`mailbox_copy_engine`] | small writes to it, left to a kernel that waits |
//! | [`export`] | handing such memory to NICs |
//! | [`guarded`] | such memory where there is no GPU, for tests |
//! | [`cuda`] | GPUs: their memory, and host memory that they reach |
//! | [`error`] | what can go wrong |

pub mod agreement;
pub mod allocator;
pub mod copy;
pub mod copy_engine;
pub mod cuda;
pub mod error;
pub mod export;
pub mod guarded;
pub mod handle;
pub mod heap;
pub mod host;
pub mod mailbox;
pub mod mailbox_copy_engine;
pub mod mapping;
pub mod memory;
pub mod peers;
pub mod site;

pub use agreement::{AllocCall, AllocOp, check_agreement};
pub use allocator::Stats;
pub use copy_engine::CopyEngine;
pub use error::{HeapError, Result};
pub use handle::{HeapHandle, MemoryKind};
pub use heap::{Allocation, SymmetricHeap};
pub use host::HostIdentity;
pub use memory::Segment;
pub use peers::{PeerMap, Reach, Refusal};
pub use site::Site;
