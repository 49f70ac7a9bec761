//! The rendezvous service, for jobs that have no process manager: PEs join a tree of TCP connections.
//!
//! The launcher runs a [`Server`] for the PEs that it starts; in unique-id mode the PE that created the id runs one. It
//! is the root of the tree. In a job of more PEs than it serves itself, some of them run relays for the others. Every
//! PE holds a [`Client`], which dials the root, and is sent on from there. A job's 32-byte [`Secret`] decides who
//! belongs to it.
//!
//! | file | concept |
//! |---|---|
//! | `wire` | frames, tags, challenge and hello: what makes a stranger's bytes worthless |
//! | `fault` | why a job is broken, on the wire and in words |
//! | `plan` | which PEs a node serves itself, and for which it has relays |
//! | `chunk` | what consecutive PEs contribute, on the wire |
//! | `round` | one collective step: who contributed, its result |
//! | `node` | the root or a relay, as a machine without sockets and clock: members, rounds, time-outs, faults |
//! | `connection` | one socket of a service |
//! | `service` | a service's thread: drives a node; unauthenticated connections |
//! | `server` | the handle on that thread |
//! | `membership` | who joins which job, and where |
//! | `dial` | the way in: from the root to the node that serves this PE |
//! | `client` | a PE's end |

mod chunk;
mod client;
mod connection;
mod dial;
mod fault;
mod membership;
#[doc(hidden)]
pub mod node;
mod plan;
mod round;
mod server;
mod service;
mod wire;

pub use client::Client;
pub use membership::Membership;
pub use node::Event;
pub use plan::{Branch, FAN_OUT, Role, Shape};
#[doc(hidden)]
pub use round::Contribution;
pub(super) use server::ONE_INTERFACE;
pub use server::{OnEvent, Options, Server};
#[doc(hidden)]
pub use wire::Kind;
pub use wire::{MAX_CONTRIBUTION, Secret};

/// The error of a PE whose step a node ends by this frame.
#[cfg(feature = "simulation")]
#[must_use]
pub fn fault_in_words(pe: symrail_transport::Pe, payload: &[u8]) -> Option<String> {
    let fault = fault::Fault::decode(payload)?;
    Some(fault.into_error(pe, super::error::Step::Allgather(1), "the root").to_string())
}
