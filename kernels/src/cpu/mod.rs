//! The CPU device: threads that issue the same requests as a GPU kernel, through the same channels.
//!
//! A "kernel" is a closure that [`Grid::launch`] runs on every thread of a grid; its [`Thread`] offers the operations
//! under the names that GPU users know. Where a peer's heap is mapped, an operation is loads and stores; else it is a
//! request in a channel, answered by the flush word or by a reply.
//!
//! | file | what it holds |
//! |---|---|
//! | [`view`] | what a device sees of its PE: heap, peers, channels, teams |
//! | [`symmetric`] | names for symmetric and local memory, with their bounds |
//! | [`element`] | the types of values and of atomic words |
//! | [`grid`] | starting the threads; [`block`] their barrier |
//! | [`thread`] | a thread's identity, the path of an operation, fence and quiet |
//! | [`rma`] | put, get, p, g, put_signal, peer_ptr |
//! | [`atomics`] | atomic memory operations, signal_op |
//! | [`wait`] | wait_until, test |
//! | `waiter` | how every wait waits |
//! | `answers` | many threads that wait for answers |
//! | [`team`] | barriers of all PEs and of teams |
//! | [`error`] | what can go wrong |
//!
//! # Promises
//! - A thread pushes to one channel, `thread_id % channels`; its requests stay in order there.
//! - `fence` orders the calling thread's own operations. `quiet` completes everything that any thread of the device
//!   pushed before the call (so that a block may synchronise and let one thread be quiet for all).
//! - A barrier is called by one thread of a PE at a time.
//! - Every wait ends within the view's time-out, with an error.
//! - All threads of a grid run at the same time; a grid of many more threads than cores runs, slowly.

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
pub use symrail_core::{Cmp, SignalOp};
pub use thread::Thread;
pub use view::{DeviceParts, DeviceTeam, DeviceView};
