//! The channel of `symrail-proxy`, compiled with loom's atomics. The models need no other part of that crate: a build of
//! all of it with loom takes three times the processor time.
#![cfg(loom)]

#[path = "../../src/channel/mod.rs"]
pub mod channel;
