//! The rendezvous service: a star of TCP connections around one small server, for jobs that have no process manager.
//!
//! The launcher runs a [`Server`] for the PEs that it starts; in unique-id mode the PE that created the id runs one.
//! Every PE holds a [`Client`]. A job's 32-byte [`Secret`] decides who belongs to it.
//!
//! | file | concept |
//! |---|---|
//! | `wire` | frames, tags, challenge and hello: what makes a stranger's bytes worthless |
//! | `fault` | why a job is broken, on the wire and in words |
//! | `round` | one collective step: who contributed, whom it waits for, its result |
//! | `connection` | one socket of the service |
//! | `service` | the service's thread: members, rounds, unauthenticated connections, time-outs |
//! | `server` | the handle on that thread, and its events |
//! | `client` | a PE's end |

mod client;
mod connection;
mod fault;
mod round;
mod server;
mod service;
mod wire;

pub use client::{Client, Membership};
pub(super) use server::ONE_INTERFACE;
pub use server::{Event, OnEvent, Options, Server};
pub use wire::{MAX_CONTRIBUTION, Secret};
