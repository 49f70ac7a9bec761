//! Agents: processes that know one another by name, read and write one another's registered memory, join at any time
//! and leave at any time.
//!
//! An [`Agent`] registers memory and exports metadata: its name, how to reach it, and the memory that others may access.
//! The program carries the metadata to other agents, which load it. From then on they read and write lists of
//! [`Descriptor`]s by the agent's name. A [`Transfer`] is prepared once and posted any number of times; a notification
//! with it becomes visible at the target behind its data.
//!
//! | module | concept |
//! |---|---|
//! | [`agent`](Agent) | the agent: memory, metadata, transfers and notifications by name |
//! | `memory` | registered memory here and at peers, found by address |
//! | `metadata` | the bytes that one agent exports and another one loads |
//! | `list` | lists of descriptors, as the operations that move them |
//! | `transfer` | a list on its way, from post to the end |
//! | `peer` | another agent: its connection and its state |
//! | `ring` | the memory through which notifications pass |
//! | `outbox` | notifications that wait to be sent or to be confirmed |
//! | `inbox` | notifications that have arrived |
//! | [`devices`] | memory of GPUs, and its copies |
//! | `sharing` | memory of GPUs here that other agents map |
//! | `mappings` | other agents' memory of GPUs that is mapped here |
//! | `worker` | the thread that connects, notices lost peers, and advances what no caller advances |
//! | `error` | errors |
//!
//! # Completion
//! A transfer has ended when all its bytes are visible, at the target or here, and its notification is in the target's
//! memory. It fails when any part of it has failed. No end is reported while an operation of it can still access memory
//! of this process.
//!
//! # Memory of GPUs
//! Copy engines move bytes between memory of two GPUs of one host, after the owner has shared it with the other agent,
//! which maps it at the first transfer. Rails move all else, by way of pinned host memory unless they reach that of the
//! GPU.
//!
//! # Connections
//! A connection is made by the first transfer or notification to an agent, by [`Agent::connect`], or by the other agent.
//! It lasts until one of the two is dropped or its process ends. Then the other one fails everything under way with
//! [`Error::Lost`] within seconds; a host that vanishes without a sign is noticed within `SYMRAIL_TIMEOUT_S`.

mod agent;
#[doc(hidden)]
pub mod devices;
mod error;
mod inbox;
mod list;
mod mappings;
mod memory;
mod metadata;
mod outbox;
mod peer;
mod ring;
mod sharing;
mod transfer;
mod worker;

pub use agent::Agent;
pub use error::{Error, Result};
pub use inbox::Notification;
pub use list::Direction;
pub use memory::{Descriptor, MemoryId};
pub use transfer::Transfer;
