//! The errors of this crate and of the layers below.

use std::time::Duration;

use symrail_transport::{Operation, Pe};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the transport.
    #[error(transparent)]
    Transport(#[from] symrail_transport::Error),
    /// An error of the symmetric heap.
    #[error(transparent)]
    Heap(#[from] symrail_heap::HeapError),
    /// An error of the bootstrap.
    #[error(transparent)]
    Bootstrap(#[from] crate::bootstrap::Error),
    /// An error of a device's channel.
    #[error("a channel cannot be made: {0}")]
    Channel(String),
    /// An address that is not in the symmetric heap.
    #[error(
        "{operation} with PE {pe}: {bytes} bytes at {address:#x} are not in the symmetric heap ({heap_bytes} bytes at {heap:#x})"
    )]
    NotSymmetric {
        /// The operation that failed.
        operation: Operation,
        /// The peer.
        pe: Pe,
        /// The address.
        address: usize,
        /// The length in bytes.
        bytes: usize,
        /// Where the heap starts.
        heap: usize,
        /// Its current length.
        heap_bytes: usize,
    },
    /// Memory of this PE that a call would access and that is not there: beyond the end of the symmetric heap or of the
    /// program's data.
    #[error(
        "{what} on PE {pe}: {bytes} bytes at {address:#x} are not in the symmetric heap's memory ({heap_bytes} bytes at {heap:#x}); allocate as much as the call accesses"
    )]
    NotAllocated {
        /// The call.
        what: &'static str,
        /// This PE.
        pe: Pe,
        /// The address.
        address: usize,
        /// The length in bytes.
        bytes: usize,
        /// Where the heap starts.
        heap: usize,
        /// Its current length.
        heap_bytes: usize,
    },
    /// Elements beyond the end of a symmetric slice, or of the local side of a strided transfer.
    #[error("{what} with PE {pe}: {count} elements from element {start} on are not among its {len}")]
    OutOfBounds {
        /// The operation that failed.
        what: &'static str,
        /// The peer; this PE for local access.
        pe: Pe,
        /// The first element.
        start: usize,
        /// The number of elements; for strided transfers, the number that they span.
        count: usize,
        /// The slice's number of elements.
        len: usize,
    },
    /// Two symmetric slices of different runtimes in one operation.
    #[error("{what} with PE {pe}: the two slices belong to different runtimes; use slices of one runtime")]
    OtherRuntime {
        /// The operation that failed.
        what: &'static str,
        /// The peer.
        pe: Pe,
    },
    /// Memory that other PEs have allocated together.
    #[error("PE {pe}: {what}: other PEs have allocated it; free it with the team that did")]
    OtherTeam {
        /// This PE.
        pe: Pe,
        /// The call.
        what: &'static str,
    },
    /// A PE has the most contexts that it can have.
    #[error("this PE has {limit} contexts already; destroy some that are not needed any more")]
    TooManyContexts {
        /// That number.
        limit: usize,
    },
    /// A PE's system refused memory by which all heaps were to grow.
    #[error("the symmetric heap stays at {heap_bytes} bytes: PE {pe} could not grow it: {reason}")]
    GrowthRefused {
        /// The PE.
        pe: Pe,
        /// The system's error.
        reason: String,
        /// The heap's size, on all PEs.
        heap_bytes: usize,
    },
    /// No range of a [`TeamHeap`](crate::TeamHeap) is free on all PEs of a team.
    #[error(
        "PE {pe}: no {bytes} bytes are free on all PEs of the team in a team heap of {heap_bytes}; make it larger \
         (heap_bytes), and with it the symmetric heap (SYMRAIL_HEAP_SIZE)"
    )]
    TeamHeapFull {
        /// This PE.
        pe: Pe,
        /// The size asked for.
        bytes: usize,
        /// The heap's size.
        heap_bytes: usize,
    },
    /// The CPU has to copy, but cannot access the symmetric heap.
    #[error("PE {pe}: the symmetric heap is in memory of a device; make plans for GPUs, or set SYMRAIL_HEAP_KIND=host")]
    DeviceHeap {
        /// This PE.
        pe: Pe,
    },
    /// A PE did not answer while this PE waited.
    #[error("PE {waiting} waited in {what}; PE {pe} does not answer: {reason}")]
    PeerLost {
        /// The PE that waited.
        waiting: Pe,
        /// The call in which it waited.
        what: &'static str,
        /// The PE that does not answer.
        pe: Pe,
        /// The outcome of the last request to it.
        reason: String,
    },
    /// The check that [`Runtime::set_interrupt`](crate::Runtime::set_interrupt) installed, or the limit of
    /// [`with_timeout`](crate::with_timeout), ended a wait.
    #[error("PE {waiting} stopped waiting in {what} after {waited:?}{}", not_there(.missing))]
    Interrupted {
        /// The PE that waited.
        waiting: Pe,
        /// The call in which it waited.
        what: &'static str,
        /// How long it waited.
        waited: Duration,
        /// The PEs that were awaited and not in the same call. Empty, because unknown, within the first second, and if
        /// any PE could have ended the wait.
        missing: Vec<Pe>,
    },
    /// This process was forked from the process that joined.
    #[error(
        "PE {pe} is process {joined}, and this is process {here}, forked from it: it takes no part in the job; communicate in the parent, or let the child exec"
    )]
    Forked {
        /// The PE.
        pe: Pe,
        /// The process that joined.
        joined: u32,
        /// This process.
        here: u32,
    },
    /// This PE has left the job: [`Runtime::finalize`](crate::Runtime::finalize) was called on one of its handles.
    #[error("PE {pe} has left the job (finalize); join a new job for further operations")]
    Finalized {
        /// The PE.
        pe: Pe,
    },
    /// What is to be freed or destroyed is in use on some PE; nothing was freed.
    #[error(
        "PE {pe}: {what} is in use, here by {handles} other handles, or on another PE; free what uses it first, on all PEs"
    )]
    InUse {
        /// This PE.
        pe: Pe,
        /// What is in use.
        what: &'static str,
        /// The number of other handles on this PE.
        handles: usize,
    },
    /// PEs of a team made different collective calls. Detected only with `SYMRAIL_CHECK_COLLECTIVES`.
    #[error(
        "PE {pe} called {called} where PE {other} called {other_called}; PEs of a team make the same calls in the same order"
    )]
    CallsDiffer {
        /// A PE.
        pe: Pe,
        /// Its call.
        called: String,
        /// Another PE.
        other: Pe,
        /// That PE's call.
        other_called: String,
    },
    /// PEs made the same collective call with different parameters.
    #[error(
        "{call}: {what} of PE {pe} and PE {other} differ: {mine} and {theirs}; pass the same on all PEs of the team"
    )]
    ParametersDiffer {
        /// The call.
        call: &'static str,
        /// The parameter.
        what: &'static str,
        /// A PE.
        pe: Pe,
        /// Its value.
        mine: u64,
        /// Another PE.
        other: Pe,
        /// That PE's value.
        theirs: u64,
    },
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        reason: String,
    },
}

impl Error {
    /// Whether the heap has no such block, or none at such a multiple of a power of two: nothing has changed then, and
    /// the program may continue.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        use symrail_heap::HeapError as E;
        match self {
            Error::Heap(E::Exhausted { .. }) => true,
            Error::Heap(E::Alignment { align, .. }) => align.is_power_of_two(),
            _ => false,
        }
    }

    /// The peer that has failed or cannot be reached, if that is the error.
    #[must_use]
    pub fn peer(&self) -> Option<Pe> {
        use symrail_transport::Error as E;
        match self {
            Error::PeerLost { pe, .. }
            | Error::Transport(E::Operation { pe, .. } | E::Timeout { pe, .. } | E::PeerLost { pe, .. }) => Some(*pe),
            _ => None,
        }
    }
}

fn not_there(missing: &[Pe]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    let names: Vec<_> = missing.iter().map(Pe::to_string).collect();
    format!("; missing there: PE {}", names.join(", "))
}

impl From<symrail_heap::cuda::CudaError> for Error {
    fn from(error: symrail_heap::cuda::CudaError) -> Error {
        Error::System { what: "using the GPU", reason: error.to_string() }
    }
}
