//! The symmetric heap: memory that every PE has at the same offsets, and access to it by loads and stores.
//!
//! # Invariants
//! - PEs that make the same calls get the same offsets ([`allocator`]).
//! - The heap's metadata is not in the heap: a stray put damages data, not the allocator.
//! - The address range never moves. Memory is committed segment by segment, and never removed ([`memory`]).
//! - A peer's heap is mapped only when it is certainly the one that the peer described. Otherwise it is accessed
//!   through the transport, and the reason is kept ([`peers`]).
//! - Other processes change heap memory at any time, so it is accessed only by raw pointers. `unsafe` is in
//!   [`mapping`], [`memory`], [`guarded`], [`copy_engine`], [`mailbox`], [`mailbox_copy_engine`], [`cuda`] and
//!   [`copy`].
//! - Nothing here communicates. The owner of the heap exchanges handles and calls.
//!
//! # Where to start
//! [`heap`] combines the rest: [`SymmetricHeap::new`], [`SymmetricHeap::alloc`], [`SymmetricHeap::segments`].
//!
//! | module | concept |
//! |---|---|
//! | [`heap`] | one PE's heap: blocks, segments, offsets and addresses |
//! | [`allocator`] | assigns offsets to blocks; never accesses memory |
//! | [`memory`] | the memory file behind the offsets |
//! | [`mapping`] | mapping and unmapping files |
//! | [`handle`], [`host`] | the data that a PE publishes about its heap and its host |
//! | [`site`] | the hosts of PEs, which determine their rails |
//! | [`agreement`] | settings and calls that must be equal on all PEs |
//! | [`peers`] | the mapped heaps of same-host peers |
//! | [`copy`](mod@copy) | copying between mappings, for same-host puts and gets |
//! | [`copy_engine`] | copying to and from memory that the CPU cannot touch |
//! | [`mailbox`], [`mailbox_copy_engine`] | small writes to it that a waiting kernel makes |
//! | [`export`] | exporting such memory for NICs |
//! | [`guarded`] | such memory where there is no GPU, for tests |
//! | [`cuda`] | GPUs: their memory, and host memory that they can access |
//! | [`error`] | errors |

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
