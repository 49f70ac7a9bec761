//! The network plugin that NCCL loads: two-sided messages between host buffers, and one-sided operations, over sessions
//! ([`symrail_proxy::session`]).
//!
//! NCCL loads `libnccl-net-symrail.so` for `NCCL_NET_PLUGIN=symrail` and takes the newest tables of functions that it
//! knows: of `ncclNetPlugin_v9` to `_v12`, and of those of [`rma`].
//!
//! | module | concept |
//! |---|---|
//! | `abi` | the tables' layouts, by version |
//! | `table` | the functions of the tables |
//! | `rma` | one-sided operations, with tables of their own |
//! | `network` | the sessions of the process, and the device's properties |
//! | `connect` | listening, connecting and accepting |
//! | `ring` | the memory at each end of a connection into which the other end puts |
//! | `channel` | what the sending and the receiving end have in common: the peer's state, operations under way |
//! | `send`, `receive` | the two ends of a connection |
//! | `report` | conversion of errors to NCCL's codes and log, and containment of panics |
//!
//! # How a message travels
//! The receiver puts a descriptor of its buffer (handle, offset, size, tag) into a ring at the sender. The sender puts
//! the bytes straight into the buffer, and the message's size into a ring at the receiver. So a message is one operation
//! in each direction. A small one whose descriptor has not arrived does not wait for it: it goes into a slot of the
//! receiver's ring, and the receiver copies it. Nothing blocks; only operations have a time limit.
//!
//! Over one rail on which CPUs move the bytes, an operation is one message on the wire without an answer: the target
//! counts its arrival. Over several it may have to be repeated, so that the data is acknowledged. Descriptors and
//! messages that travel with their signals are acknowledged at leisure.
//!
//! # Guarantees
//! - A receive that is done has all its bytes in memory.
//! - A peer whose process has ended fails the connection's requests at once, and one that cannot be reached, or whose
//!   connection was reset, within about 1.5 `SYMRAIL_TIMEOUT_S`.
//! - Nothing here ends the process or unwinds into the caller. Only `closeSend`, `closeRecv` and `deregMr` may wait: for
//!   operations that still use the memory, at most about twice `SYMRAIL_TIMEOUT_S`.
//! - Over TCP, nothing is written to memory once `deregMr` has returned: a sender that has begun and does not answer is
//!   disconnected.

mod abi;
mod channel;
mod connect;
mod network;
mod receive;
mod report;
mod ring;
mod rma;
mod send;
mod table;
