//! The rendezvous service, for jobs that have no process manager: PEs join a tree of TCP connections.
//!
//! The launcher runs a [`Server`] for the PEs that it starts; with a unique id, the PE that created the id runs one. It
//! is the root of the tree. If a job has more PEs than the root serves, some PEs run relays for the others. Every PE
//! holds a [`Client`]. It dials the root, which may redirect it to a relay. A job's 32-byte [`Secret`] authenticates
//! its PEs.
//!
//! | file | concept |
//! |---|---|
//! | `wire` | frames, tags, challenge and hello: authentication of every byte |
//! | `fault` | why a job is broken, on the wire and in words |
//! | `plan` | which PEs a node serves itself, and for which it has relays |
//! | `chunk` | the contributions of consecutive PEs, on the wire |
//! | `round` | one collective step: its contributions, its result |
//! | `node` | the root or a relay, as a state machine without sockets and clock: members, rounds, time-outs, faults |
//! | `socket` | addresses of services, and their sockets: of TCP, or of a Unix domain |
//! | `connection` | one connection of a service |
//! | `service` | a service's thread: drives a node; unauthenticated connections |
//! | `server` | the handle of that thread |
//! | `membership` | which PE joins which job, and where |
//! | `nearby` | the address at which processes of one machine reach each other |
//! | `dial` | joining: from the root to the node that serves this PE |
//! | `client` | a PE's end |

mod chunk;
mod client;
mod connection;
mod dial;
mod fault;
mod membership;
mod nearby;
#[doc(hidden)]
pub mod node;
mod plan;
mod round;
mod server;
mod service;
mod socket;
mod wire;

pub use client::Client;
pub use membership::Membership;
pub use nearby::nearby;
pub use node::Event;
pub use plan::{Branch, FAN_OUT, Role, Shape};
#[doc(hidden)]
pub use round::Contribution;
pub(super) use server::ONE_INTERFACE;
pub use server::{OnEvent, Options, Server};
pub use socket::Address;
#[doc(hidden)]
pub use wire::Kind;
pub use wire::{MAX_CONTRIBUTION, Secret};

/// The error of a PE whose step a node ends with this frame.
#[cfg(feature = "simulation")]
#[must_use]
pub fn fault_in_words(pe: symrail_transport::Pe, payload: &[u8]) -> Option<String> {
    let fault = fault::Fault::decode(payload)?;
    Some(fault.into_error(pe, super::error::Step::Allgather(1), "the root").to_string())
}
