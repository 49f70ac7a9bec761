//! Errors of the symmetric heap, as values that name the remedy.

use symrail_transport::Pe;

/// The result of fallible functions of this crate.
pub type Result<T, E = HeapError> = std::result::Result<T, E>;

/// The bytes of a heap that the user has not asked for.
fn besides(heap_size: &u64, asked: &u64) -> String {
    match heap_size.saturating_sub(*asked) {
        0 => String::new(),
        besides => format!("; {besides} bytes more are for the library itself"),
    }
}

/// An error of the symmetric heap.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// No free block is large enough.
    #[error(
        "PE {pe}: the symmetric heap has no room for {requested} bytes (alignment {align}): {free} of {heap_size} bytes are free, the largest block has {largest}; raise SYMRAIL_HEAP_SIZE (now {asked}{}) on all PEs", besides(.heap_size, .asked)
    )]
    Exhausted {
        /// The PE of the call.
        pe: Pe,
        /// The request in bytes; `u64::MAX` when a count times a size does not fit in 64 bits.
        requested: u64,
        /// The alignment asked for, in bytes.
        align: u64,
        /// Free memory in all, in bytes.
        free: u64,
        /// The largest block that could be had, in bytes.
        largest: u64,
        /// The capacity, in bytes.
        heap_size: u64,
        /// The size that the user has chosen, in bytes; the rest is the library's own, or rounding.
        asked: u64,
    },
    /// An unsupported alignment.
    #[error(
        "PE {pe}: alignment {align} is not possible in the symmetric heap; use a power of two from {least} to {most}"
    )]
    Alignment {
        /// The PE of the call.
        pe: Pe,
        /// The requested size, in bytes.
        align: u64,
        /// The least that is accepted, in bytes.
        least: u64,
        /// The most that is accepted, in bytes.
        most: u64,
    },
    /// An address that is not the start of an allocated block.
    #[error(
        "PE {pe}: {address:#x} is not the start of an allocated block of the symmetric heap (at {base:#x}, {heap_size} bytes); was it freed already?"
    )]
    NotAllocated {
        /// The PE of the call.
        pe: Pe,
        /// The local address.
        address: usize,
        /// The heap's local address.
        base: usize,
        /// The capacity, in bytes.
        heap_size: u64,
    },
    /// A block that has an owner.
    #[error(
        "PE {pe}: the block at {address:#x} belongs to the runtime or to a typed slice, which gives it back itself (SymSlice::free)"
    )]
    Kept {
        /// The PE of the call.
        pe: Pe,
        /// The local address.
        address: usize,
    },
    /// The operating system refused memory.
    #[error("PE {pe}: {call} for {bytes} bytes of symmetric heap failed: {reason}; {remedy}")]
    Memory {
        /// The PE of the call.
        pe: Pe,
        /// The system call.
        call: &'static str,
        /// The length, in bytes.
        bytes: u64,
        /// The system's error.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// An error that concerns several PEs: different settings or calls, malformed handles, unsupported kinds.
    #[error(transparent)]
    Transport(#[from] symrail_transport::Error),
}
