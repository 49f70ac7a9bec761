//! The CPU device: threads that issue the same requests as a GPU kernel, through the same channels.
//!
//! A "kernel" is a closure that [`Grid::launch`] runs on every thread of a grid. Its [`Thread`] provides the operations
//! with the names that GPU users know. Where a peer's heap is mapped, an operation is loads and stores. Otherwise it is
//! a request in a channel, which the flush word or a reply completes.
//!
//! | file | content |
//! |---|---|
//! | [`view`] | a device's data about its PE: heap, peers, channels, teams |
//! | [`symmetric`] | names of symmetric and local memory, with their bounds |
//! | [`element`] | the types of values and of atomic words |
//! | [`grid`] | launching the threads; [`block`] their barrier |
//! | [`thread`] | a thread's identity, the path of an operation, fence and quiet |
//! | [`rma`] | put, get, p, g, put_signal, peer_ptr |
//! | [`atomics`] | atomic memory operations, signal_op |
//! | [`wait`] | wait_until, test |
//! | `waiter` | the back-off of every wait |
//! | `answers` | many threads that wait for answers |
//! | [`team`] | barriers of all PEs and of teams |
//! | [`error`] | errors |
//!
//! # Guarantees
//! - A thread pushes to one channel, `thread_id % channels`, where its requests stay in order.
//! - `fence` orders the calling thread's own operations. `quiet` completes all operations that any thread of the device
//!   pushed before the call (so a block may synchronise and let one thread call it for all).
//! - One thread of a PE at a time calls a barrier.
//! - Every wait ends within the view's time-out, with an error.
//! - All threads of a grid run at the same time; a grid with many more threads than cores runs slowly.

mod answers;
pub mod atomics;
pub mod block;
pub mod element;
pub mod error;
pub mod grid;
pub mod rma;
pub mod symmetric;
pub mod team;
pub mod thread;
pub mod view;
pub mod wait;
mod waiter;

pub use element::{AmoInteger, AmoWord, Element};
pub use error::{DeviceError, LaunchError};
pub use grid::Grid;
pub use symmetric::{LocalMemory, Symmetric};
pub use symrail_core::{Cmp, SignalOp, SignalUpdate};
pub use thread::Thread;
pub use view::{DeviceParts, DeviceTeam, DeviceView};
